"""Steps from a triangular (QR) factor: the most accurate steps, for small and medium problems."""

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

# Steps longer than this times the radius are cut. Moré (1978) iterates until the length is
# within 1.1; the damping for the next step follows from this solution anyway, and a program without
# an inner loop compiles in two thirds of the time.
_LONGEST = 1.5
# Least damping, in machine epsilons of the largest entry, so that no pivot is zero. It is a few
# times the rounding error of a Householder QR (Higham 2002, theorem 19.4).
_LEAST = 8.0


def cut_to_radius(step: DampedStep, radius: jax.Array) -> DampedStep:
    """Shorten the step to at most 1.5 times the radius.

    Args:
        step: A solution of the damped system, with its length.
        radius: The trust-region radius.
    """
    full, most = step.solution_length, jnp.asarray(_LONGEST, radius.dtype) * radius
    assert full is not None
    t = jnp.where(full > most, divide(most, full), jnp.ones_like(most))
    # For (A^T A + lam I) p = -A^T r, the step t p reduces the model by t (||A p||^2 + lam ||p||^2)
    # - t^2 ||A p||^2 / 2.
    half = jnp.asarray(0.5, t.dtype)
    gained = t * ((1 - half * t) * step.model_norm + step.lam * full * full)
    return step._replace(p=t * step.p, model_norm=t * t * step.model_norm, predicted=gained)


@dataclasses.dataclass(frozen=True)
class TriangleSystem:
    r"""A linear model given by the triangular factor of its QR decomposition.

    Every step costs one QR decomposition of two triangular factors. The condition number isn't
    squared, so directions with small singular values still contribute to the step. Problems that
    are singular at their solution converge along these directions. The radius bounds the effect of
    rounding errors.

    Args:
        triangle: The triangular factor of `A` and `r`.
        size: The longer side of `A`, `max(m, n)`.
        start: The damping of the next step, a scalar.
        pull: :math:`w \mapsto A^T w`.
        fixed: A diagonal that always damps the triangular factor, of shape `[k]`; see
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
        """The damped step."""
        top = jnp.max(jnp.abs(self.triangle.L))
        least = jnp.asarray(_LEAST * float(jnp.finfo(lam.dtype).eps), lam.dtype)
        least *= jnp.where(top > 0, top, jnp.ones_like(top))
        L, c = damped_triangle(self.triangle, jnp.maximum(jnp.sqrt(lam), least) + self.fixed)
        p = -backward(L, c)
        # `norm`, not `length`: the squares may overflow if the scaling is far larger than the
        # column norms.
        full = norm(p)
        rise = jnp.square(divide(full, length(forward(L, p))))
        model_norm = self.model_norm(p)
        predicted = jnp.asarray(0.5, lam.dtype) * model_norm + lam * full * full
        return DampedStep(p, lam, model_norm, predicted, L, full, rise)

    def gauss_newton(self) -> DampedStep:
        """Return the minimum-norm full step in units of the columns, without noise directions.

        The units are the column norms at this point. The scaling of the search also includes larger
        norms from earlier points, relative to which the effect of a param could appear to be
        rounding noise.
        """
        columns = norm(self.triangle.L, axis=1)
        return self.shortest(jnp.where(columns > 0, columns, jnp.ones_like(columns)))

    def shortest(self, unit: jax.Array) -> DampedStep:
        """Return the minimum-norm full step in given units, in directions above rounding noise.

        Args:
            unit: The units, of shape `[k]`.
        """
        L, c = self.triangle
        factors = singular_triangle(Triangle(L / unit[:, None], c))
        p = -matmul(factors.Vt.T, gauss_newton_solution(factors, self.size)) / unit
        model_norm = self.model_norm(p)
        half = jnp.asarray(0.5, p.dtype)
        return DampedStep(p, jnp.zeros_like(model_norm), model_norm, half * model_norm)

    def pull_back(self, step: DampedStep) -> Callable[[jax.Array], jax.Array]:
        """Return the damped solution for other right-hand sides."""
        return lambda w: backward(step.factor, forward(step.factor, self.pull(w)))

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        return jnp.sum(jnp.square(jnp.sum(v[:, None] * self.triangle.L, axis=0)))


@dataclasses.dataclass(frozen=True)
class LiftedSystem:
    r"""A linear model with fewer rows than columns, solved in the row space.

    With :math:`A^T = Q R` every step is a linear combination :math:`p = Q y` of the columns of
    :math:`Q`, and the model is :math:`R^T y + r`. No `n x n` array is formed.

    Args:
        rows: The model of `y`; its `pull` maps a residual to the coefficients of :math:`A^T w`
            in `Q`.
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
        """The step within the radius."""
        return self._lifted(self.rows.trust_region(radius))

    def damped(self, lam: jax.Array) -> DampedStep:
        """The damped step."""
        return self._lifted(self.rows.damped(lam))

    def gauss_newton(self) -> DampedStep:
        """The minimum-norm full step."""
        c = self.rows.triangle.c
        return self._lifted(self.rows.shortest(jnp.ones_like(c)))

    def pull_back(self, step: DampedStep) -> Callable[[jax.Array], jax.Array]:
        """The damped solution for other residuals."""
        pull_back = self.rows.pull_back(step)
        return lambda w: matmul(self.Q, pull_back(w))

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        return self.rows.model_norm(matmul(v, self.Q))

    def _lifted(self, step: DampedStep) -> DampedStep:
        return step._replace(p=matmul(self.Q, step.p))
