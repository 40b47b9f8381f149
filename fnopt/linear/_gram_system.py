"""Steps from a Gram matrix: the fastest ones for large problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import matmul
from fnopt.linear._norms import norm
from fnopt.linear._secular import (
    Damped,
    Solvers,
    backward,
    cholesky,
    forward,
    least_damping,
    secular_root,
)
from fnopt.linear._system import DampedStep


@dataclasses.dataclass(frozen=True)
class TallGramSystem:
    r"""A linear model with `m >= n`, known by its normal equations.

    .. math:: (A^T A + \lambda I)\, p = -A^T r

    Squaring `A` squares its condition number: directions with singular values below
    :math:`\sqrt{\epsilon}` of the largest are not told from noise, and get a damped step.

    Args:
        G: :math:`A^T A`, of shape `[n, n]`.
        g: :math:`A^T r`, of shape `[n]`.
        start: A guess of the damping, a scalar; it saves factorisations.
        pull: :math:`w \mapsto A^T w`; None if there is none.
        own: A diagonal that is part of `G`, but not of :math:`A^T A`: norms are those of `A` alone.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import TallGramSystem
        >>> system = TallGramSystem(3 * jnp.eye(2), jnp.ones(2), jnp.float32(0))
        >>> print(system.damped(jnp.float32(1)).p.round(4))
        [-0.25 -0.25]
    """

    G: jax.Array
    g: jax.Array
    start: jax.Array
    pull: Callable[[jax.Array], jax.Array] | None = None
    own: jax.Array | None = dataclasses.field(default=None, kw_only=True)

    def trust_region(self, radius: jax.Array) -> DampedStep:
        """The step within the radius; see :func:`secular_root`."""
        least, most = self._least, norm(self.g) / radius
        return self._step(secular_root(self._solve, radius, least, most, self.start), least)

    def damped(self, lam: jax.Array) -> DampedStep:
        """The damped step."""
        least = self._least
        return self._step(self._solve(jnp.maximum(lam, least)), least)

    def gauss_newton(self) -> DampedStep:
        """The step with the least damping that rounding allows."""
        return self.damped(jnp.zeros((), self.G.dtype))

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        return jnp.maximum(matmul(v, matmul(self.G, v)) - self._own_norm(v), 0)

    def _own_norm(self, v: jax.Array) -> jax.Array:
        zero = jnp.zeros((), v.dtype)
        return zero if self.own is None else jnp.sum(self.own * jnp.square(v))

    def pull_back(self, w: jax.Array, step: DampedStep) -> jax.Array | None:
        """The damped solution for another right-hand side; None without `pull`."""
        if self.pull is None:
            return None
        solve = self._solvers(step.factor)
        return solve.backward(solve.forward(self.pull(w)))

    @property
    def _least(self) -> jax.Array:
        return least_damping(self.G)

    def _factor(self, lam: jax.Array) -> Any:
        return cholesky(self.G, lam)

    def _solvers(self, factor: Any) -> Solvers:
        return Solvers(lambda b: forward(factor, b), lambda y: backward(factor, y))

    def _solve(self, lam: jax.Array) -> Damped:
        factor = self._factor(lam)
        solve = self._solvers(factor)
        p = solve.backward(solve.forward(-self.g))
        return Damped(p, lam, norm(p), jnp.sum(jnp.square(solve.forward(p))), factor)

    def _step(self, solved: Damped, least: jax.Array) -> DampedStep:
        p = solved.y
        return _damped_step(solved, p, self.model_norm(p), least, self._own_norm(p))


@dataclasses.dataclass(frozen=True)
class WideGramSystem:
    r"""A linear model with `m < n`, whose steps are found among its `m` rows.

    .. math:: (A A^T + \lambda I)\, y = r, \qquad p = -A^T y

    which is the same step as that of the normal equations, at a cost of
    :math:`m^2 n + m^3`; no `n x n` array exists.

    Args:
        K: :math:`A A^T`, of shape `[m, m]`.
        r: The residual, of shape `[m]`.
        start: A guess of the damping, a scalar; it saves factorisations.
        push: :math:`v \mapsto A v`.
        pull: :math:`w \mapsto A^T w`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import WideGramSystem
        >>> A, r = jnp.asarray([[3.0, 4.0]]), jnp.ones(1)
        >>> system = WideGramSystem(A @ A.T, r, jnp.float32(0), lambda v: A @ v, lambda w: w @ A)
        >>> print(system.gauss_newton().p.round(4))
        [-0.12 -0.16]
    """

    K: jax.Array
    r: jax.Array
    start: jax.Array
    push: Callable[[jax.Array], jax.Array]
    pull: Callable[[jax.Array], jax.Array]

    def trust_region(self, radius: jax.Array) -> DampedStep:
        """The step within the radius; see :func:`secular_root`."""
        least = least_damping(self.K)
        most = jnp.sqrt(jnp.maximum(matmul(self.r, matmul(self.K, self.r)), 0)) / radius
        return self._step(secular_root(self._solve, radius, least, most, self.start), least)

    def damped(self, lam: jax.Array) -> DampedStep:
        """The damped step."""
        least = least_damping(self.K)
        return self._step(self._solve(jnp.maximum(lam, least)), least)

    def gauss_newton(self) -> DampedStep:
        """The step with the least damping that rounding allows."""
        return self.damped(jnp.zeros((), self.K.dtype))

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        return jnp.sum(jnp.square(self.push(v)))

    def pull_back(self, w: jax.Array, step: DampedStep) -> jax.Array:
        r"""The damped solution for another residual, :math:`A^T (A A^T + \lambda I)^{-1} w`."""
        return self.pull(backward(step.factor, forward(step.factor, w)))

    def _solve(self, lam: jax.Array) -> Damped:
        L = cholesky(self.K, lam)
        y = backward(L, forward(L, self.r))
        Ky = matmul(self.K, y)
        square = jnp.maximum(matmul(y, Ky), jnp.zeros_like(lam))
        # p^T (A^T A + lam I)^-1 p = (K y)^T (K + lam I)^-1 y
        slope = matmul(forward(L, Ky), forward(L, y))
        return Damped(y, lam, jnp.sqrt(square), slope, L)

    def _step(self, solved: Damped, least: jax.Array) -> DampedStep:
        model_norm = jnp.sum(jnp.square(matmul(self.K, solved.y)))
        return _damped_step(solved, -self.pull(solved.y), model_norm, least)


def _damped_step(
    solved: Damped,
    p: jax.Array,
    model_norm: jax.Array,
    least: jax.Array,
    below: jax.Array | float = 0.0,
) -> DampedStep:
    half = jnp.asarray(0.5, p.dtype)
    predicted = half * (model_norm + below) + solved.lam * jnp.sum(jnp.square(p))
    # The least damping is there for rounding only: such a step is a full one.
    lam = jnp.where(solved.lam <= least, jnp.zeros_like(solved.lam), solved.lam)
    return DampedStep(p, lam, model_norm, predicted, solved.factor)
