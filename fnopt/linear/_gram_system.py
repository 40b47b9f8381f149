"""Gram matrices and the steps they give, the fastest method for large problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.linear._norms import norm
from fnopt.linear._secular import (
    Damped,
    Solvers,
    backward,
    cholesky,
    forward,
    rounding_damping,
    secular_root,
)
from fnopt.linear._system import DampedStep
from fnopt.numerics import materialized_transpose, matmul
from fnopt.sharding import psum_rows

# Smallest number of columns that are split. With 128, 256 and 512 columns, the split product takes
# 1.4, 0.9 and 0.9 times as long as the whole product (CPU time, in float32 and in float64).
_WIDE = 256


def gram(A: jax.Array) -> jax.Array:
    r"""Compute the symmetric product :math:`A^T A`, at a lower cost than a general product.

    .. math:: \begin{pmatrix} A_1^T A_1 & \cdot \\ A_2^T A_1 & A_2^T A_2 \end{pmatrix}

    A general product computes each entry above the diagonal a second time. Splitting the columns
    into two halves saves a quarter of the work; finer splits were not faster in measurements.

    Args:
        A: A matrix of shape `[m, n]`.

    Returns:
        A symmetric matrix of shape `[n, n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import gram
        >>> print(gram(jnp.asarray([[1.0, 2.0]])))
        [[1. 2.]
         [2. 4.]]
    """
    n = A.shape[1]
    if n < _WIDE:
        return matmul(A.T, A)
    left, right = A[:, : n // 2], A[:, n // 2 :]
    above, right_turned = matmul(materialized_transpose(left), left), materialized_transpose(right)
    below = matmul(right_turned, left)
    return jnp.block([[above, below.T], [below, matmul(right_turned, right)]])


class _GramSystem:
    """Base class for steps computed from a factor of a damped Gram matrix."""

    def trust_region(self: Any, radius: jax.Array) -> DampedStep:
        """Return the trust-region step; see :func:`secular_root`."""
        least, most = self._least, self._gradient_norm / radius
        return self._step(secular_root(self._solve, radius, least, most, self.start), least)

    def damped(self: Any, lam: jax.Array) -> DampedStep:
        """Return the damped step."""
        least = self._least
        return self._step(self._solve(jnp.maximum(lam, least)), least)

    def gauss_newton(self: Any) -> DampedStep:
        """Return the step with the smallest damping at which the factorization always succeeds."""
        return self.damped(jnp.zeros((), self._least.dtype))


@dataclasses.dataclass(frozen=True)
class TallGramSystem(_GramSystem):
    r"""A linear model with `m >= n`, given by its normal equations.

    .. math:: (A^T A + \lambda I)\, p = -A^T r

    Squaring `A` squares its condition number. Directions with singular values below
    :math:`\sqrt{\epsilon}` times the largest are lost in rounding errors, and steps along them are
    damped.

    Args:
        G: :math:`A^T A`, of shape `[n, n]`.
        g: :math:`A^T r`, of shape `[n]`.
        start: An initial guess of the damping, a scalar; a good guess saves factorizations.
        pull: :math:`w \mapsto A^T w`, or None.

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

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        return jnp.maximum(matmul(v, matmul(self.G, v)), 0)

    def pull_back(self, step: DampedStep) -> Callable[[jax.Array], jax.Array] | None:
        """The damped solution for other right-hand sides; None without `pull`."""
        pull, solve = self.pull, self._solvers(step.factor)
        return None if pull is None else lambda w: solve.backward(solve.forward(pull(w)))

    @property
    def _least(self) -> jax.Array:
        return _least_damping(self.G)

    @property
    def _gradient_norm(self) -> jax.Array:
        return norm(self.g)

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
        return _damped_step(solved, solved.y, self.model_norm(solved.y), least)


@dataclasses.dataclass(frozen=True)
class SparseGramSystem(TallGramSystem):
    """Normal equations in dense blocks, which subclasses factorize according to their layout."""

    G: Any
    push: Callable[[jax.Array], jax.Array] = lambda v: v
    layout: Any = None

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        return psum_rows(jnp.sum(jnp.square(self.push(v))))

    def rounding_solutions(self, rows: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        r"""Return the damping that rounding errors require, and solutions with this damping.

        Args:
            rows: Right-hand sides `b`, `[q, n]`.

        Returns:
            The damping :math:`\delta`, and for each `b` the vectors :math:`y = L^{-1} b` and
            :math:`x = L^{-T} y`, with :math:`L L^T = A^T A + \delta I`.
        """
        least, solve = self._rounding_solvers()

        def solved(b: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = solve.forward(b)
            return y.ravel(), solve.backward(y)

        return least, *lax.map(solved, rows)

    def filtered_twice(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        r"""Return the damping that rounding errors require, and filtered vectors, `[q, n]`.

        .. math:: \delta, \qquad \delta^2 (A^T A + \delta I)^{-2}\, b
        """
        least, solve = self._rounding_solvers()

        def filtered(b: jax.Array) -> jax.Array:
            return least * solve.backward(solve.forward(b))

        return least, lax.map(lambda b: filtered(filtered(b)), rows)

    def _rounding_solvers(self) -> tuple[jax.Array, Solvers]:
        least = self._least
        return least, self._solvers(self._factor(least))

    @property
    def _least(self) -> jax.Array:
        # Rounding errors accumulate over the entries of a row of the factor.
        return rounding_damping(jnp.max(self.layout.diagonal(self.G)), self.layout.widest)


@dataclasses.dataclass(frozen=True)
class WideGramSystem(_GramSystem):
    r"""A linear model with `m < n`, solved for the `m` rows.

    .. math:: (A A^T + \lambda I)\, y = r, \qquad p = -A^T y

    This step equals the step of the normal equations. It costs :math:`m^2 n + m^3`, and no `n x n`
    array is formed.

    Args:
        K: :math:`A A^T`, of shape `[m, m]`.
        r: The residual, of shape `[m]`.
        start: An initial guess of the damping, a scalar; a good guess saves factorizations.
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

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        return jnp.sum(jnp.square(self.push(v)))

    def pull_back(self, step: DampedStep) -> Callable[[jax.Array], jax.Array]:
        r"""The damped solution for other residuals, :math:`A^T (A A^T + \lambda I)^{-1} w`."""
        return lambda w: self.pull(backward(step.factor, forward(step.factor, w)))

    @property
    def _least(self) -> jax.Array:
        return _least_damping(self.K)

    @property
    def _gradient_norm(self) -> jax.Array:
        return jnp.sqrt(jnp.maximum(matmul(self.r, matmul(self.K, self.r)), 0))

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


def _least_damping(K: jax.Array) -> jax.Array:
    """Return the damping that rounding errors require for a dense matrix."""
    return rounding_damping(jnp.max(jnp.diagonal(K), initial=0), K.shape[0])


def _damped_step(
    solved: Damped, p: jax.Array, model_norm: jax.Array, least: jax.Array
) -> DampedStep:
    predicted = jnp.asarray(0.5, p.dtype) * model_norm + solved.lam * jnp.sum(jnp.square(p))
    # The smallest damping only compensates rounding errors, so the step counts as undamped.
    lam = jnp.where(solved.lam <= least, jnp.zeros_like(solved.lam), solved.lam)
    return DampedStep(p, lam, model_norm, predicted, solved.factor)
