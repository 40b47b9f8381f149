"""Covariances of fitted params, from the Jacobian at the solution."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.jacobians import SparseJacobian, real_vector
from fnopt.linear import divide, least_square_sum, norm, numerical_rank, singular_factors
from fnopt.numerics import matmul, real_dtype, safe_sqrt
from fnopt.programs import tiered_call
from fnopt.solvers.linear_model._scaling import initial_scale
from fnopt.solvers.linear_model._sparse_gram import inverse_root

Solution = Any  # fnopt.solvers.Solution, whose report imports this file


class CovarianceFactor(NamedTuple):
    """A factor of the covariance of the params, and the directions that the data determine.

    In float32, variances underflow or overflow before the entries of the factor, so standard errors
    are computed from the factor.
    """

    root: jax.Array  # [k, p], R with C = R^T R, for the directions that the data determine; finite
    # [p, n], derivative of the params with respect to the scaled fitted variables.
    scaled: jax.Array
    # [k, n], orthonormal directions of these variables above rounding noise, else 0.
    seen: jax.Array
    has_variance: jax.Array  # bool, whether the variance of the data is known

    def covariance(self) -> jax.Array:
        """Return the covariance `[p, p]`, infinite for params that the data don't determine."""
        return _finite_where(self.determined(), matmul(self.root.T, self.root))

    def correlation(self) -> jax.Array:
        """Return the correlation `[p, p]`: NaN for undetermined params, 0 for fixed params."""
        each, unit = self.determined(), divide(self.root, norm(self.root))
        C = matmul(unit.T, unit)
        return jnp.where(each & each[:, None], C, jnp.full_like(C, jnp.nan))

    def along(self, change: jax.Array) -> jax.Array:
        r"""Return the covariance `[q, q]` of :math:`G \theta`; infinite where undetermined."""
        root = matmul(self.root, change.T)
        return _finite_where(self.determined(change), matmul(root.T, root))

    def errors(self, change: jax.Array | None = None) -> jax.Array:
        r"""Return the standard errors of :math:`g^T \theta`, for rows `g` of `change`, `[q, p]`.

        Without `change`, return the standard errors of the params. Errors are infinite for
        undetermined params or combinations.
        """
        root = self.root if change is None else matmul(self.root, change.T)
        error = norm(root)
        return jnp.where(self.determined(change), error, jnp.full_like(error, jnp.inf))

    def determined(self, change: jax.Array | None = None) -> jax.Array:
        r"""Whether the data determine :math:`g^T \theta`, for the rows `g` of `change`, `[q, p]`.

        A combination is determined if the component of `g` in the null space of the Jacobian is
        negligible: less than :math:`\sqrt \epsilon` of the squared norm, in scaled variables.
        """
        g = self.scaled if change is None else matmul(change, self.scaled)
        g = g / initial_scale(jnp.max(jnp.abs(g), axis=1))[:, None]  # so that squares are in range
        whole = jnp.sum(jnp.square(g), axis=1)
        rest = whole - jnp.sum(jnp.square(matmul(g, self.seen.T)), axis=1)
        share = jnp.asarray(jnp.finfo(g.dtype).eps ** 0.5, g.dtype)
        return self.has_variance & (rest <= share * whole)


class SparseCovarianceFactor(NamedTuple):
    """The covariance of a few linear combinations of params, by a sparse factor."""

    J: SparseJacobian  # [m, n]
    tangent: SparseJacobian | None  # [p, n]
    deviation: jax.Array  # standard deviation of the data; infinite without degrees of freedom
    fixed: jax.Array | None  # [n], variables without variance

    def along(self, change: jax.Array) -> jax.Array:
        r"""Return the covariance `[q, q]` of :math:`G \theta`; infinite where undetermined."""
        root = self._root(change)
        each = jnp.isfinite(jnp.sum(root, axis=1))
        return _finite_where(each, matmul(root, root.T))

    def errors(self, change: jax.Array) -> jax.Array:
        """Return the standard errors of the rows of `change`; infinite if undetermined."""
        root = self._root(change)
        error = norm(root.T)
        return jnp.where(jnp.isfinite(error), error, jnp.inf)

    def _root(self, change: jax.Array) -> jax.Array:
        rows = change if self.tangent is None else jax.vmap(self.tangent.rmv)(change)
        return self.deviation * inverse_root(self.J, rows, self.fixed)


def covariance_factor(
    J: jax.Array,
    cost: jax.Array,
    residuals: Any,
    dof: jax.Array,
    T: jax.Array | None,
    fixed: jax.Array | None = None,
    *,
    absolute_sigma: bool,
) -> CovarianceFactor:
    r"""Factor the covariance of fitted params by the SVD of the scaled Jacobian.

    .. math:: C = s^2 (J^T J)^+ = s^2 D^{-1} V \,\mathrm{diag}(1 / \sigma^2)\, V^T D^{-1},
        \qquad J D^{-1} = U \,\mathrm{diag}(\sigma)\, V^T

    where :math:`s^2 = \|r\|^2 / (m - k)`, with `k` the rank, estimates the variance of the data,
    or is 1 if the residuals are in units of known standard deviations. The columns are scaled
    first, so that the rank doesn't depend on the units of the params. Singular values below
    rounding level are omitted.

    Args:
        J: The Jacobian, of shape `[m, n]`.
        cost: Half the sum of squares.
        residuals: The residuals, a tree.
        dof: The degrees of freedom, int32.
        T: The derivative of the params with respect to the variables, `[p, n]`; None for the
            identity.
        absolute_sigma: Whether the residuals are in units of known standard deviations.
        fixed: Mask of the fixed variables, `[n]`, which have no variance.

    Returns:
        The factor, with the directions that the data determine.
    """
    n = J.shape[1]
    free = jnp.ones(n, J.dtype) if fixed is None else (~fixed).astype(J.dtype)
    J = J * free
    # The derivative of an SVD is infinite for equal singular values; it only selects directions
    # here.
    still = lax.stop_gradient(J)
    scale = initial_scale(norm(still))
    factors = singular_factors(still / scale, jnp.zeros_like(still[:, 0]))
    rank = numerical_rank(factors.s, max(still.shape))
    kept = jnp.arange(factors.s.size, dtype=rank.dtype) < rank
    seen = jnp.where(kept[:, None], factors.Vt, jnp.zeros_like(factors.Vt))
    root = seen / jnp.where(kept, factors.s, jnp.ones_like(factors.s))[:, None]
    root = _inverse_root(root, matmul((J / scale).T, J / scale))
    scaled = free * (jnp.eye(n, dtype=J.dtype) if T is None else T) / scale
    deviation = jnp.ones((), J.dtype)
    if not absolute_sigma:
        deviation = residual_deviation(cost, residuals, J.shape[0], dof)
    root = matmul(root, (deviation * scaled).T)
    has_variance = jnp.asarray(absolute_sigma) | (dof > 0)
    return CovarianceFactor(root, lax.stop_gradient(scaled), seen, has_variance)


@jax.custom_jvp
def _inverse_root(root: jax.Array, G: jax.Array) -> jax.Array:
    """Return the factor `R` of :math:`G^+ = R^T R`, with the derivative of an inverse.

    The derivative of singular vectors is undefined if singular values are equal.
    """
    del G
    return root


@_inverse_root.defjvp
def _inverse_root_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    root, change = primals[0], tangents[1]
    return root, -matmul(matmul(root, change), matmul(root.T, root)) / 2


def residual_deviation(cost: jax.Array, residuals: Any, m: int, dof: jax.Array) -> jax.Array:
    r"""Estimate the standard deviation of the data, :math:`(2 f / (m - k))^{1/2}`.

    If the squares underflow or overflow, the deviation is computed from the residuals instead of
    the cost. Over a named axis, a device has only some of the residuals, so the cost is used.
    """
    dof = jnp.maximum(dof.astype(cost.dtype), 1)
    flat = real_vector(residuals, real_dtype(cost.dtype))
    if flat.size != m:
        return safe_sqrt(2 * cost / dof)
    usable = (cost >= least_square_sum(cost.dtype)) & (cost < jnp.inf)
    deviation = safe_sqrt(2 * jnp.where(usable, cost, jnp.ones_like(cost)) / dof)
    return jnp.where(usable, deviation, norm(flat.flatten(residuals)) / jnp.sqrt(dof))


def factor_of(
    solution: Solution, absolute_sigma: bool = False
) -> CovarianceFactor | SparseCovarianceFactor:
    """Return the covariance factor of the params of a solution, with fixed and tied params."""
    J, cost, r, dof = solution.jacobian, solution.cost, solution.residuals, solution.dof
    if J is None:
        raise ValueError(
            "covariance: the solver did not form the Jacobian, which the covariance "
            "needs. Use linear_solver='qr' and no chunk_size."
        )
    if not isinstance(J, SparseJacobian):
        parts = J, cost, r, dof, solution.tangent, solution.fixed
        return tiered_call(covariance_factor, *parts, absolute_sigma=bool(absolute_sigma))
    deviation = jnp.ones((), cost.dtype)
    if not absolute_sigma:
        deviation = jnp.where(dof > 0, residual_deviation(cost, r, J.shape[0], dof), jnp.inf)
    return SparseCovarianceFactor(J, solution.tangent, deviation, solution.fixed)


def _full_factor(solution: Solution, absolute_sigma: bool = False) -> CovarianceFactor:
    factor = factor_of(solution, absolute_sigma)
    if isinstance(factor, SparseCovarianceFactor):
        raise ValueError(
            f"covariance: the Jacobian of {factor.J.shape[1]} variables is sparse, but "
            "the covariance of all is full. Compute that of a few functions: "
            "covariance(fit, of=function)."
        )
    return factor


def covariance_of(solution: Solution, absolute_sigma: bool = False) -> jax.Array:
    """Return the covariance, infinite in the rows and columns of undetermined params."""
    return tiered_call(CovarianceFactor.covariance, _full_factor(solution, absolute_sigma))


def covariance_along(solution: Solution, absolute_sigma: bool, change: jax.Array) -> jax.Array:
    r"""Return the covariance `[q, q]` of linear combinations :math:`G \theta` of the params."""
    factor = factor_of(solution, absolute_sigma)
    return tiered_call(type(factor).along, factor, change)


def errors_of(solution: Solution, absolute_sigma: bool = False) -> jax.Array:
    """Return the standard error of every param, infinite for undetermined params."""
    return tiered_call(CovarianceFactor.errors, _full_factor(solution, absolute_sigma))


def correlation_of(solution: Solution) -> jax.Array:
    """Return the correlation of the params: NaN for undetermined params, 0 for fixed params."""
    return tiered_call(CovarianceFactor.correlation, _full_factor(solution))


def _finite_where(each: jax.Array, C: jax.Array) -> jax.Array:
    return jnp.where(each & each[:, None], C, jnp.full_like(C, jnp.inf))
