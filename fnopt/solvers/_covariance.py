"""The covariance of fitted params, from the Jacobian at the solution."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import matmul
from fnopt.linear import column_norms, numerical_rank, singular_factors
from fnopt.solvers._scaling import initial_scale


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


def covariance_from(
    J: jax.Array, cost: jax.Array, absolute_sigma: bool = False, dof: int | jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    r"""The covariance of the params of a fit, by the singular values of the scaled Jacobian.

    .. math:: C = s^2 (J^T J)^{-1} = s^2 D^{-1} V \,\mathrm{diag}(1 / \sigma^2)\, V^T D^{-1},
        \qquad J D^{-1} = U \,\mathrm{diag}(\sigma)\, V^T

    where :math:`s^2 = \|r\|^2 / (m - n)` estimates the variance of the data, or is 1 if the
    residuals are in units of known standard deviations. The columns are scaled first, so that
    the rank doesn't depend on the units of the params.

    Args:
        J: The Jacobian, of shape `[m, n]`.
        cost: Half the sum of squares.
        absolute_sigma: Whether the residuals are in units of known standard deviations.
        dof: The degrees of freedom, if they aren't :math:`m - n`.

    Returns:
        The covariance, of shape `[n, n]`, infinite where the data don't determine all params; and
        the rank, an int32 scalar.
    """
    m, n = J.shape
    dtype = J.dtype
    still = lax.stop_gradient(J)
    scale = initial_scale(column_norms(still))
    factors = singular_factors(still / scale, jnp.zeros(m, dtype))
    rank = numerical_rank(factors.s, max(still.shape))
    dof = jnp.asarray(m - n if dof is None else dof, dtype)
    known = (rank == n) if absolute_sigma else (rank == n) & (dof > 0)
    safe = jnp.where(factors.s > 0, factors.s, jnp.ones_like(factors.s))
    root = factors.Vt / safe[:, None] / scale
    inverse = matmul(root.T, root)
    # Zero, but for its derivative: that of an inverse, without those of singular vectors.
    G = matmul(J.T, J)
    inverse = inverse - matmul(matmul(inverse, G - lax.stop_gradient(G)), inverse)
    one = jnp.ones((), dtype)
    variance = one if absolute_sigma else 2 * cost / jnp.maximum(dof, one)
    C = inverse * variance
    return jnp.where(known, C, jnp.full_like(C, jnp.inf)), rank


def covariance_of(solution: Linearised, absolute_sigma: bool = False) -> jax.Array:
    """The covariance of the params of a solution, those that are held or tied included."""
    if solution.jacobian is None:
        raise ValueError(
            "covariance: the solver did not form the Jacobian, without which there is none. Use "
            "linear_solver='qr' or 'cholesky' and no chunk_size."
        )
    return _of_params(
        solution.jacobian, solution.cost, solution.dof, solution.tangent, bool(absolute_sigma)
    )


@functools.partial(jax.jit, static_argnums=4)
def _of_params(
    J: jax.Array, cost: jax.Array, dof: Any, T: jax.Array | None, absolute_sigma: bool
) -> jax.Array:
    C, _ = covariance_from(J, cost, absolute_sigma, dof)
    if T is None:
        return C
    known = jnp.all(jnp.isfinite(C))
    through = matmul(matmul(T, jnp.where(known, C, jnp.zeros_like(C))), T.T)
    return jnp.where(known, through, jnp.full_like(through, jnp.inf))
