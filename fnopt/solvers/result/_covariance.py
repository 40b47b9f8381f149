"""The covariance of fitted params, from the Jacobian at the solution."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import matmul
from fnopt.linear import column_norms, numerical_rank, singular_factors
from fnopt.solvers.model._scaling import initial_scale


class Linearised(Protocol):
    """A fit with the Jacobian at its end, as :class:`fnopt.solvers.Solution` is."""

    @property
    def jacobian(self) -> jax.Array | None: ...
    @property
    def cost(self) -> jax.Array: ...
    @property
    def dof(self) -> Any: ...
    @property
    def tangent(self) -> jax.Array | None: ...


class Knowledge(NamedTuple):
    """The covariance of the params, its rank, and the directions that the data leave open."""

    covariance: jax.Array  # [p, p], of the part that the data determine; finite
    scaled: jax.Array  # [p, n], d params / d the fitted variables in their own scales
    seen: jax.Array  # [k, n], orthonormal: directions of these that move the residuals, else 0
    spread: jax.Array  # bool, whether the variance of the data is known

    def determined(self, change: jax.Array) -> jax.Array:
        r"""Whether the data determine :math:`g^T \theta`, for the rows `g` of `change`, `[q, p]`.

        They do where hardly anything of `g` is in the null space of the Jacobian: a share of less
        than :math:`\sqrt \epsilon` of its square, in variables of like effect.
        """
        g = matmul(change, self.scaled)
        whole = jnp.sum(jnp.square(g), axis=1)
        rest = whole - jnp.sum(jnp.square(matmul(g, self.seen.T)), axis=1)
        share = jnp.asarray(jnp.finfo(g.dtype).eps ** 0.5, g.dtype)
        return self.spread & (rest <= share * whole)


def knowledge(
    J: jax.Array, cost: jax.Array, dof: Any, T: jax.Array | None, absolute_sigma: bool
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
        dof: The degrees of freedom, if they aren't :math:`m - k`.
        T: How the params move with the variables, of shape `[p, n]`; None if they are these.
        absolute_sigma: Whether the residuals are in units of known standard deviations.

    Returns:
        The covariance, and which combinations of params it holds for.
    """
    m, n = J.shape
    dtype = J.dtype
    still = lax.stop_gradient(J)
    scale = initial_scale(column_norms(still))
    factors = singular_factors(still / scale, jnp.zeros_like(still[:, 0]))
    rank = numerical_rank(factors.s, max(still.shape))
    kept = jnp.arange(factors.s.size, dtype=rank.dtype) < rank
    seen = jnp.where(kept[:, None], factors.Vt, jnp.zeros_like(factors.Vt))
    root = seen / jnp.where(kept, factors.s, jnp.ones_like(factors.s))[:, None] / scale
    inverse = matmul(root.T, root)
    # Zero, but for its derivative: that of an inverse, without those of singular vectors.
    G = matmul(J.T, J)
    inverse = inverse - matmul(matmul(inverse, G - lax.stop_gradient(G)), inverse)
    dof = (m - rank if dof is None else jnp.asarray(dof)).astype(dtype)
    one = jnp.ones((), dtype)
    variance = one if absolute_sigma else 2 * cost / jnp.maximum(dof, one)
    C = inverse * variance
    T = jnp.eye(n, dtype=dtype) if T is None else T
    spread = jnp.asarray(absolute_sigma) | (dof > 0)
    return Knowledge(matmul(matmul(T, C), T.T), lax.stop_gradient(T / scale), seen, spread)


def knowledge_of(solution: Linearised, absolute_sigma: bool = False) -> Knowledge:
    """The covariance of the params of a solution, those that are held or tied included."""
    if solution.jacobian is None:
        raise ValueError(
            "covariance: the solver did not form the Jacobian, without which there is none. Use "
            "linear_solver='qr' and no chunk_size."
        )
    return _compiled(
        solution.jacobian, solution.cost, solution.dof, solution.tangent, bool(absolute_sigma)
    )


def covariance_of(solution: Linearised, absolute_sigma: bool = False) -> jax.Array:
    """The covariance, infinite in the rows and columns of params that aren't determined."""
    return full_covariance(knowledge_of(solution, absolute_sigma))


@jax.jit
def full_covariance(known: Knowledge) -> jax.Array:
    """The covariance, infinite in the rows and columns of params that aren't determined."""
    C = known.covariance
    each = known.determined(jnp.eye(C.shape[0], dtype=C.dtype))
    return jnp.where(each & each[:, None], C, jnp.full_like(C, jnp.inf))


_compiled = functools.partial(jax.jit, static_argnums=4)(knowledge)
