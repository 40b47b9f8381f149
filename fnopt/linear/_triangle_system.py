"""Steps by QR factorization, the most accurate steps for small and medium problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fnopt.linear._norms import divide, length, norm
from fnopt.linear._secular import backward, forward
from fnopt.linear._system import DampedStep
from fnopt.linear._triangle import (
    Triangle,
    damped_triangle,
    gauss_newton_solution,
    singular_triangle,
)
from fnopt.numerics import matmul

# Largest step length, relative to the radius. Moré (1978) iterates until the length is within 1.1
# times the radius. Here the damping of the next step follows from this solution, and a program
# without an inner loop compiles in two thirds of the time.
_MAX_LENGTH = 1.5
# Smallest root of the damping, in machine epsilons of the largest entry, so that no pivot is zero.
# It is a few times the rounding error of a Householder QR (Higham 2002, theorem 19.4).
_MIN_DAMPING = 8.0


def cut_to_radius(step: DampedStep, radius: jax.Array) -> DampedStep:
    """Shorten the step to at most 1.5 times the radius.

    Args:
        step: A solution of the damped system, with its length.
        radius: The trust-region radius.
    """
    p_norm, limit = step.solution_length, jnp.asarray(_MAX_LENGTH, radius.dtype) * radius
    assert p_norm is not None
    t = jnp.where(p_norm > limit, divide(limit, p_norm), jnp.ones_like(limit))
    # For (A^T A + lam I) p = -A^T r, the step t p reduces the model by t (||A p||^2 + lam ||p||^2)
    # - t^2 ||A p||^2 / 2.
    half = jnp.asarray(0.5, t.dtype)
    predicted = t * ((1 - half * t) * step.model_norm + step.lam * p_norm * p_norm)
    return step._replace(p=t * step.p, model_norm=t * t * step.model_norm, predicted=predicted)


@dataclasses.dataclass(frozen=True)
class TriangleSystem:
    r"""A linear model represented by the triangular factor of its QR decomposition.

    A step takes one QR decomposition of the triangular factor with the damping as additional rows.
    The condition number isn't squared, so directions with small singular values still contribute
    to the step. Problems with a singular Jacobian at the solution converge along such directions.
    The radius bounds the effect of rounding errors.

    Args:
        triangle: The triangular factor of `A` and `r`.
        size: The longer side of `A`, `max(m, n)`.
        start: The damping of the trust-region step, a scalar.
        pull: :math:`w \mapsto A^T w`.
        fixed: An additional damping of every step, a diagonal of shape `[k]`; see
            :func:`noise_damping`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import TriangleSystem, triangle
        >>> A, r, zero = 2 * jnp.eye(2), jnp.ones(2), jnp.float32(0)
        >>> system = TriangleSystem(triangle(A, r), 2, zero, lambda w: w @ A)
        >>> print(system.damped(jnp.float32(4)).p.round(4))
        [-0.25 -0.25]

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory, section 3.
    """

    triangle: Triangle
    size: int
    start: jax.Array
    pull: Callable[[jax.Array], jax.Array]
    fixed: jax.Array | float = 0.0

    def trust_region(self, radius: jax.Array) -> DampedStep:
        r"""Return the step with the damping `start`, shortened to at most 1.5 times the radius.

        Hebden's iteration computes the next damping from the step's `solution_length` and `hebden`,

        .. math:: \lambda \leftarrow \lambda + \Big( \frac{\|p\|}{\Delta} - 1 \Big)
            \frac{\|p\|^2}{\|L^{-1} p\|^2}

        This is Newton's method for :math:`1 / \|p\| = 1 / \Delta`, since the derivative of
        :math:`\|p\|` with respect to the damping is :math:`-\|L^{-1} p\|^2 / \|p\|`.

        Args:
            radius: The trust-region radius.
        """
        return cut_to_radius(self.damped(self.start), radius)

    def damped(self, lam: jax.Array) -> DampedStep:
        """Return the damped step."""
        largest = jnp.max(jnp.abs(self.triangle.L))
        min_root = jnp.asarray(_MIN_DAMPING * float(jnp.finfo(lam.dtype).eps), lam.dtype)
        min_root *= jnp.where(largest > 0, largest, jnp.ones_like(largest))
        L, c = damped_triangle(self.triangle, jnp.maximum(jnp.sqrt(lam), min_root) + self.fixed)
        p = -backward(L, c)
        # `norm`, not `length`, because squares may overflow if the scaling is far larger than the
        # column norms.
        p_norm = norm(p)
        hebden = jnp.square(divide(p_norm, length(forward(L, p))))
        model_norm = self.model_norm(p)
        predicted = jnp.asarray(0.5, lam.dtype) * model_norm + lam * p_norm * p_norm
        return DampedStep(p, lam, model_norm, predicted, L, p_norm, hebden)

    def gauss_newton(self) -> DampedStep:
        """Return the minimum-norm full step, in params scaled by the column norms.

        The scaling of the search isn't used, because it includes larger column norms of earlier
        points. Relative to these norms, the effect of a param could be below rounding noise.
        """
        columns = norm(self.triangle.L, axis=1)
        return self.shortest(jnp.where(columns > 0, columns, jnp.ones_like(columns)))

    def shortest(self, unit: jax.Array) -> DampedStep:
        """Return the full step of minimum scaled norm, in directions above rounding noise.

        Args:
            unit: The scale of every param, of shape `[k]`.
        """
        L, c = self.triangle
        factors = singular_triangle(Triangle(L / unit[:, None], c))
        p = -matmul(factors.Vt.T, gauss_newton_solution(factors, self.size)) / unit
        model_norm = self.model_norm(p)
        half = jnp.asarray(0.5, p.dtype)
        return DampedStep(p, jnp.zeros_like(model_norm), model_norm, half * model_norm)

    def pull_back(self, step: DampedStep) -> Callable[[jax.Array], jax.Array]:
        """Return the function from residuals to the solution with the damping of a step."""
        return lambda w: backward(step.factor, forward(step.factor, self.pull(w)))

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""Return :math:`\|A v\|^2`."""
        return jnp.sum(jnp.square(jnp.sum(v[:, None] * self.triangle.L, axis=0)))


@dataclasses.dataclass(frozen=True)
class LiftedSystem:
    r"""A linear model with fewer rows than columns, solved in the row space.

    With :math:`A^T = Q R`, a step in the row space is :math:`p = Q y`, and the model of `y` is
    :math:`R^T y + r`. No `n x n` array is formed.

    Args:
        rows: The model of `y`; its `pull` maps residuals `w` to :math:`Q^T A^T w`.
        Q: Orthonormal columns, of shape `[n, m]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import LiftedSystem, TriangleSystem, triangle
        >>> A, r, zero = jnp.asarray([[3.0, 4.0]]), jnp.ones(1), jnp.float32(0)
        >>> Q, R = jnp.linalg.qr(A.T)
        >>> rows = TriangleSystem(triangle(R.T, r), 2, zero, lambda w: R @ w)
        >>> print(LiftedSystem(rows, Q).gauss_newton().p.round(4))
        [-0.12 -0.16]
    """

    rows: TriangleSystem
    Q: jax.Array

    def trust_region(self, radius: jax.Array) -> DampedStep:
        """Return the step, shortened to at most 1.5 times the radius."""
        return self._lift(self.rows.trust_region(radius))

    def damped(self, lam: jax.Array) -> DampedStep:
        """Return the damped step."""
        return self._lift(self.rows.damped(lam))

    def gauss_newton(self) -> DampedStep:
        """Return the minimum-norm full step."""
        c = self.rows.triangle.c
        return self._lift(self.rows.shortest(jnp.ones_like(c)))

    def pull_back(self, step: DampedStep) -> Callable[[jax.Array], jax.Array]:
        """Return the function from residuals to the solution with the damping of a step."""
        pull_back = self.rows.pull_back(step)
        return lambda w: matmul(self.Q, pull_back(w))

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""Return :math:`\|A v\|^2`."""
        return self.rows.model_norm(matmul(v, self.Q))

    def _lift(self, step: DampedStep) -> DampedStep:
        return step._replace(p=matmul(self.Q, step.p))
