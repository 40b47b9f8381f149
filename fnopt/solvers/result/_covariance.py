"""The covariance of fitted params, from the Jacobian at the solution."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import matmul, real_dtype
from fnopt.jacobians import real_vector
from fnopt.linear import divide, norm, numerical_rank, singular_factors
from fnopt.solvers.linear_model._scaling import initial_scale

Solution = Any  # fnopt.solvers.Solution, whose report imports this file


class Knowledge(NamedTuple):
    """The covariance of the params as its root, and the directions that the data leave open.

    Squares of small and of large numbers leave the range of float32 before these do: what can
    be had without the covariance itself comes from its root.
    """

    root: jax.Array  # [k, p], R with C = factor R^T R, of the part that the data determine; finite
    factor: jax.Array  # 1, but for its derivative
    scaled: jax.Array  # [p, n], d params / d the fitted variables in their own scales
    seen: jax.Array  # [k, n], orthonormal: directions of these that move the residuals, else 0
    spread: jax.Array  # bool, whether the variance of the data is known

    @property
    def covariance(self) -> jax.Array:
        """The covariance `[p, p]` of the part that the data determine."""
        return self.factor * matmul(self.root.T, self.root)

    def errors(self, change: jax.Array | None = None) -> jax.Array:
        r"""The standard errors of :math:`g^T \theta`, for the rows `g` of `change`, `[q, p]`.

        Of the params themselves without it; infinite where the data don't determine them.
        """
        root = self.root if change is None else matmul(self.root, change.T)
        error = jnp.sqrt(self.factor) * norm(root)
        return jnp.where(self.determined(change), error, jnp.full_like(error, jnp.inf))

    def determined(self, change: jax.Array | None = None) -> jax.Array:
        r"""Whether the data determine :math:`g^T \theta`, for the rows `g` of `change`, `[q, p]`.

        They do where hardly anything of `g` is in the null space of the Jacobian: a share of less
        than :math:`\sqrt \epsilon` of its square, in variables of like effect.
        """
        g = self.scaled if change is None else matmul(change, self.scaled)
        g = g / initial_scale(norm(g, axis=1))[:, None]
        whole = jnp.sum(jnp.square(g), axis=1)
        rest = whole - jnp.sum(jnp.square(matmul(g, self.seen.T)), axis=1)
        share = jnp.asarray(jnp.finfo(g.dtype).eps ** 0.5, g.dtype)
        return self.spread & (rest <= share * whole)


def knowledge(
    J: jax.Array,
    cost: jax.Array,
    residuals: Any,
    dof: Any,
    T: jax.Array | None,
    absolute_sigma: bool,
    fixed: jax.Array | None = None,
) -> Knowledge:
    r"""The covariance of the params of a fit, by the singular values of the scaled Jacobian.

    .. math:: C = s^2 (J^T J)^+ = s^2 D^{-1} V \,\mathrm{diag}(1 / \sigma^2)\, V^T D^{-1},
        \qquad J D^{-1} = U \,\mathrm{diag}(\sigma)\, V^T

    where :math:`s^2 = \|r\|^2 / (m - k)`, with `k` the rank, estimates the variance of the data,
    or is 1 if the residuals are in units of known standard deviations. The columns are scaled
    first, so that the rank doesn't depend on the units of the params. Singular values below
    rounding are left out, with their directions.

    Args:
        J: The Jacobian, of shape `[m, n]`.
        cost: Half the sum of squares.
        residuals: The residuals, a tree.
        dof: The degrees of freedom, if they aren't :math:`m - k`.
        T: How the params move with the variables, of shape `[p, n]`; None if they are these.
        absolute_sigma: Whether the residuals are in units of known standard deviations.
        fixed: Which variables are fixed, `[n]`: they have no variance.

    Returns:
        The covariance, and which combinations of params it holds for.
    """
    n = J.shape[1]
    free = jnp.ones(n, J.dtype) if fixed is None else (~fixed).astype(J.dtype)
    J = J * free
    still = lax.stop_gradient(J)
    scale = initial_scale(norm(still))
    factors = singular_factors(still / scale, jnp.zeros_like(still[:, 0]))
    rank = numerical_rank(factors.s, max(still.shape))
    kept = jnp.arange(factors.s.size, dtype=rank.dtype) < rank
    seen = jnp.where(kept[:, None], factors.Vt, jnp.zeros_like(factors.Vt))
    root = seen / jnp.where(kept, factors.s, jnp.ones_like(factors.s))[:, None]
    # Zero, but for its derivative: that of an inverse, without those of singular vectors.
    G = matmul((J / scale).T, J / scale)
    change = matmul(matmul(root, G - lax.stop_gradient(G)), matmul(root.T, root))
    root = root - change / 2
    scaled = free * (jnp.eye(n, dtype=J.dtype) if T is None else T) / scale
    dof = jnp.asarray(J.shape[0] - rank if dof is None else dof)
    size, factor = jnp.ones((), J.dtype), jnp.ones((), J.dtype)
    if not absolute_sigma:
        size, factor = scatter(cost, residuals, J.shape[0], dof)
    spread = jnp.asarray(absolute_sigma) | (dof > 0)
    root = matmul(root, (size * scaled).T)
    return Knowledge(root, factor, lax.stop_gradient(scaled), seen, spread)


def scatter(cost: jax.Array, residuals: Any, m: int, dof: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""The standard deviation of the data :math:`s`, and a 1 with the derivative of its square.

    From the residuals where their squares are out of range, if these are all: over a named axis
    they are only some of them.
    """
    dof = jnp.maximum(dof.astype(cost.dtype), 1)
    variance = 2 * cost / dof
    still = lax.stop_gradient(variance)
    small = jnp.asarray(1e3 * jnp.finfo(cost.dtype).tiny, cost.dtype)
    usable = (still >= small) & (still < jnp.inf)
    one = jnp.ones_like(still)
    size = jnp.sqrt(jnp.where(usable, still, one))
    laid = real_vector(residuals, real_dtype(cost.dtype))
    if laid.size == m:
        r = laid.flatten(residuals)
        size = jnp.where(usable, size, lax.stop_gradient(norm(r)) / jnp.sqrt(dof))
        unit = jnp.where(size > 0, size, one)
        relative = jnp.sum(jnp.square(r / unit)) / dof
        return size, jnp.where(usable, variance / jnp.where(usable, still, one), relative)
    return size, variance / jnp.where(usable, still, one)


def knowledge_of(solution: Solution, absolute_sigma: bool = False) -> Knowledge:
    """The covariance of the params of a solution, those that are held or tied included."""
    if solution.jacobian is None:
        raise ValueError(
            "covariance: the solver did not form the Jacobian, without which there is none. Use "
            "linear_solver='qr' and no chunk_size."
        )
    return _compiled(
        solution.jacobian,
        solution.cost,
        solution.residuals,
        solution.dof,
        solution.tangent,
        bool(absolute_sigma),
        solution.fixed,
    )


def covariance_of(solution: Solution, absolute_sigma: bool = False) -> jax.Array:
    """The covariance, infinite in the rows and columns of params that aren't determined."""
    return full_covariance(knowledge_of(solution, absolute_sigma))


@jax.jit
def full_covariance(known: Knowledge) -> jax.Array:
    """The covariance, infinite in the rows and columns of params that aren't determined."""
    C, each = known.covariance, known.determined()
    return jnp.where(each & each[:, None], C, jnp.full_like(C, jnp.inf))


def errors_of(solution: Solution, absolute_sigma: bool = False) -> jax.Array:
    """The standard error of every parameter, infinite where it isn't determined."""
    return _errors(knowledge_of(solution, absolute_sigma))


def correlation_of(solution: Solution) -> jax.Array:
    """The correlation of the params: NaN for those that aren't determined, 0 for held ones."""
    return _correlation(knowledge_of(solution))


@jax.jit
def _errors(known: Knowledge) -> jax.Array:
    return known.errors()


@jax.jit
def _correlation(known: Knowledge) -> jax.Array:
    each = known.determined()
    unit = divide(known.root, norm(known.root))
    C = matmul(unit.T, unit)
    return jnp.where(each & each[:, None], C, jnp.full_like(C, jnp.nan))


_compiled = functools.partial(jax.jit, static_argnums=5)(knowledge)
