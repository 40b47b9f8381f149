"""Steps from a triangle: the most accurate ones, for problems that aren't large."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import cond, matmul, while_loop
from fnopt.linear._divide import divide
from fnopt.linear._norms import norm
from fnopt.linear._singular import gauss_newton_solution, singular_triangle
from fnopt.linear._system import DampedStep
from fnopt.linear._triangle import Guarded, Triangle, damped_triangle, inverse_triangle

# A step that is longer by 10 % is near enough (Moré 1978). Shorter ones are not: the radius grows
# by the length of a step, and where the problem is singular the progress does with it.
_SLACK = 0.1
_TRIES = 12  # one or two are usual


class _Solved(NamedTuple):
    r"""The solution of :math:`(A^T A + \lambda I)\, p = -A^T r`, and of what it was made."""

    p: jax.Array  # [k]
    length: jax.Array
    lam: jax.Array
    inverse: jax.Array  # [k, k], of the lower factor


_State = tuple[_Solved, jax.Array, jax.Array]
"""The last try, the damping to try next, and how many there were."""


@dataclasses.dataclass(frozen=True)
class TriangleSystem:
    r"""A linear model known by the triangle of its QR decomposition.

    Every damping costs the QR decomposition of two triangles. The condition number isn't squared,
    so directions count that are near to what rounding leaves of them: where problems that are
    singular at their solution make their progress. The radius bounds what rounding can do there.

    Rows `W` below `A` are part of the model, :math:`\tfrac12 \|A p + r\|^2 + \tfrac12 \|W p\|^2`,
    and are factorised together with the damping; norms are those of `A` alone.

    Args:
        factors: The triangle of `A` and `r`, with its guard and any rows below it.
        size: The longer side of `A`, `max(m, n)`.
        start: A guess of the damping, a scalar; it saves decompositions.
        pull: :math:`w \mapsto A^T w`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import TriangleSystem, guarded, triangle
        >>> A, r, zero = 2 * jnp.eye(2), jnp.ones(2), jnp.float32(0)
        >>> system = TriangleSystem(guarded(triangle(A, r)), 2, zero, lambda w: w @ A)
        >>> print(system.damped(jnp.float32(4)).p.round(4))
        [-0.25 -0.25]

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory, section 3.
    """

    factors: Guarded
    size: int
    start: jax.Array
    pull: Callable[[jax.Array], jax.Array]

    def trust_region(self, radius: jax.Array) -> DampedStep:
        r"""The step within the radius.

        The damping is the root of the secular equation, found by Hebden's iteration as in
        :func:`secular_root`. Here no decomposition fails and no damping is too small, so it needs
        no bracket: :math:`1/\|p\|` rises with the damping and is concave, so that from too
        little damping the iteration rises to the root, and from too much it falls below it once.
        """

        def again(state: _State) -> _State:
            _, lam, tries = state
            now = self._solve(lam)
            # ||p|| falls with lam by ||L^-1 p||^2 / ||p||.
            ratio = divide(now.length, norm(_product(now.inverse, now.p)))
            rise = (now.length / radius - 1) * jnp.square(ratio)
            return now, jnp.maximum(lam + rise, jnp.zeros_like(lam)), tries + 1

        def unfinished(state: _State) -> jax.Array:
            now, _, tries = state
            most = jnp.asarray(1 + _SLACK, radius.dtype) * radius
            fits = (now.length <= most) & ((now.length >= radius) | (now.lam <= 0))
            return ~fits & (tries < _TRIES)

        L, c = self.factors.triangle
        nowhere = _Solved(c, jnp.full_like(radius, jnp.inf), jnp.full_like(radius, jnp.inf), L)
        none = jnp.zeros((), jnp.int32)
        return self._step(while_loop(unfinished, again, (nowhere, self.start, none))[0])

    def damped(self, lam: jax.Array) -> DampedStep:
        """The damped step."""
        return self._step(self._solve(lam))

    def gauss_newton(self) -> DampedStep:
        """The full step of least norm in units of the columns, without directions of noise.

        By the columns' own lengths: in a scaling that remembers how steep a parameter was, far from
        here, what it does now would pass for noise.
        """
        columns = norm(self.factors.triangle.L, axis=1)
        return self.shortest(jnp.where(columns > 0, columns, jnp.ones_like(columns)))

    def shortest(self, unit: jax.Array) -> DampedStep:
        """The full step of least norm in given units, in the directions above rounding noise.

        Args:
            unit: The units, of shape `[k]`.
        """
        assert not self.factors.rows.size
        L, c = self.factors.triangle
        factors = singular_triangle(Triangle(L / unit[:, None], c))
        p = -matmul(factors.Vt.T, gauss_newton_solution(factors, self.size)) / unit
        # Its inverse goes unused, and uncomputed, where nothing is pulled back with this step.
        return self._step(self._solve(jnp.zeros((), p.dtype))._replace(p=p, length=norm(p)))

    def pull_back(self, w: jax.Array, step: DampedStep) -> jax.Array:
        """The damped solution for another right-hand side."""
        return matmul(matmul(step.factor, self.pull(w)), step.factor)

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        return jnp.sum(jnp.square(_times(v, self.factors.triangle.L)))

    def _solve(self, lam: jax.Array) -> _Solved:
        plain, rows, own, diagonal, needed = self.factors
        damping = lam + jnp.square(own) if own.size else lam
        L, c = cond(
            (lam > 0) | needed,
            lambda: damped_triangle(plain, jnp.sqrt(damping) + diagonal, rows),
            lambda: plain,
        )
        # Of a small triangle the inverse is had for the price of one solution.
        inverse = inverse_triangle(L)
        p = _times(-c, inverse)
        return _Solved(p, norm(p), lam, inverse)

    def _step(self, solved: _Solved) -> DampedStep:
        model_norm, rows = self.model_norm(solved.p), self.factors.rows
        below = (
            jnp.sum(jnp.square(_product(rows, solved.p)))
            if rows.size
            else jnp.zeros_like(model_norm)
        )
        if self.factors.own.size:
            below = below + jnp.sum(jnp.square(self.factors.own * solved.p))
        half = jnp.asarray(0.5, model_norm.dtype)
        predicted = half * (model_norm + below) + solved.lam * jnp.square(solved.length)
        return DampedStep(solved.p, solved.lam, model_norm, predicted, solved.inverse)


def _product(A: jax.Array, v: jax.Array) -> jax.Array:
    """`A @ v` of few numbers, which the compiler makes one kernel of with what comes before."""
    return jnp.sum(A * v, axis=1)


def _times(v: jax.Array, A: jax.Array) -> jax.Array:
    """`v @ A`, likewise."""
    return jnp.sum(v[:, None] * A, axis=0)


@dataclasses.dataclass(frozen=True)
class LiftedSystem:
    r"""A linear model with fewer rows than columns, by the one among its rows.

    With :math:`A^T = Q R` the steps lie in the space of :math:`Q`, :math:`p = Q y`, where the
    model is :math:`R^T y + r`; no `n x n` array exists.

    Args:
        rows: The model of `y`, whose `pull` takes the residual to :math:`A^T w`'s part in `Q`.
        Q: Orthonormal columns, of shape `[n, m]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import LiftedSystem, TriangleSystem, guarded, triangle
        >>> A, r, zero = jnp.asarray([[3.0, 4.0]]), jnp.ones(1), jnp.float32(0)
        >>> Q, R = jnp.linalg.qr(A.T)
        >>> rows = TriangleSystem(guarded(triangle(R.T, r)), 2, zero, lambda w: R @ w)
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
        """The full step of least norm."""
        c = self.rows.factors.triangle.c
        return self._lifted(self.rows.shortest(jnp.ones_like(c)))

    def pull_back(self, w: jax.Array, step: DampedStep) -> jax.Array:
        """The damped solution for another residual."""
        return matmul(self.Q, self.rows.pull_back(w, step))

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        return self.rows.model_norm(matmul(v, self.Q))

    def _lifted(self, step: DampedStep) -> DampedStep:
        return step._replace(p=matmul(self.Q, step.p))
