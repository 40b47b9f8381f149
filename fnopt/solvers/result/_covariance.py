"""Covariances of fitted params, from the Jacobian at the solution."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.errors import count_text
from fnopt.jacobians import SparseJacobian, real_vector
from fnopt.linear import divide, is_determined, least_square_sum, norm, singular_factors
from fnopt.numerics import matmul, real_dtype, safe_sqrt
from fnopt.programs import tiered_call
from fnopt.solvers.linear_model._scaling import initial_scale
from fnopt.solvers.linear_model._sparse_gram import inverse_root

Solution = Any  # fnopt.solvers.Solution, whose report imports this file


class CovarianceFactor(NamedTuple):
    """A factor of the covariance of the params, and the directions that the data determine.

    In float32, variances underflow or overflow before the entries of the factor. Therefore standard
    errors are norms of columns of the factor.
    """

    root: jax.Array  # [k, p], R with C = R^T R, restricted to determined directions, so it's finite
    # [p, n], derivative of the params with respect to the scaled fitted variables.
    tangent: jax.Array
    # [k, n], orthonormal directions of the scaled variables that the data determine; other rows
    # are zero.
    directions: jax.Array
    has_variance: jax.Array  # bool, whether the variance of the data is known

    def covariance(self) -> jax.Array:
        """Return the covariance `[p, p]`, infinite for params that the data don't determine."""
        return _infinite_unless(self.determined(), matmul(self.root.T, self.root))

    def correlation(self) -> jax.Array:
        """Return the correlation `[p, p]`: NaN for undetermined params, 0 for fixed params."""
        determined, normalized = self.determined(), divide(self.root, norm(self.root))
        C = matmul(normalized.T, normalized)
        return jnp.where(determined & determined[:, None], C, jnp.full_like(C, jnp.nan))

    def of_combinations(self, G: jax.Array) -> jax.Array:
        r"""Return the covariance of :math:`G \theta`, `[q, q]`, for the matrix `G`, `[q, p]`.

        It is infinite for combinations that the data don't determine.
        """
        root = matmul(self.root, G.T)
        return _infinite_unless(self.determined(G), matmul(root.T, root))

    def errors(self, G: jax.Array | None = None) -> jax.Array:
        r"""Return the standard errors of :math:`G \theta`, `[q]`, for the matrix `G`, `[q, p]`.

        Without `G`, return the standard errors of the params. Errors are infinite for undetermined
        params or combinations.
        """
        root = self.root if G is None else matmul(self.root, G.T)
        error = norm(root)
        return jnp.where(self.determined(G), error, jnp.full_like(error, jnp.inf))

    def determined(self, G: jax.Array | None = None) -> jax.Array:
        r"""Whether the data determine :math:`G \theta`, `bool[q]`, for the matrix `G`, `[q, p]`.

        A combination with the coefficients `g` is determined if the component of `g` in the null
        space of the Jacobian is negligible. In scaled variables, the squared norm of the component
        is then at most :math:`\sqrt \epsilon` times the squared norm of `g`.
        """
        g = self.tangent if G is None else matmul(G, self.tangent)
        g = g / initial_scale(jnp.max(jnp.abs(g), axis=1))[:, None]  # so that squares are in range
        square = jnp.sum(jnp.square(g), axis=1)
        null_square = square - jnp.sum(jnp.square(matmul(g, self.directions.T)), axis=1)
        tolerance = jnp.asarray(jnp.finfo(g.dtype).eps ** 0.5, g.dtype)
        return self.has_variance & (null_square <= tolerance * square)


class SparseCovarianceFactor(NamedTuple):
    """The covariance of a few linear combinations of params, by a sparse factorization."""

    J: SparseJacobian  # [m, n]
    # [p, n], derivative of the params with respect to the fitted variables; None for the identity.
    tangent: SparseJacobian | None
    deviation: jax.Array  # standard deviation of the data; infinite without degrees of freedom
    fixed: jax.Array | None  # [n], mask of variables without variance

    def of_combinations(self, G: jax.Array) -> jax.Array:
        r"""Return the covariance of :math:`G \theta`, `[q, q]`, for the matrix `G`, `[q, p]`.

        It is infinite for combinations that the data don't determine.
        """
        root = self._root(G)
        determined = jnp.isfinite(jnp.sum(root, axis=1))
        return _infinite_unless(determined, matmul(root, root.T))

    def errors(self, G: jax.Array) -> jax.Array:
        r"""Return the standard errors of :math:`G \theta`, `[q]`; infinite if undetermined."""
        root = self._root(G)
        error = norm(root.T)
        return jnp.where(jnp.isfinite(error), error, jnp.inf)

    def _root(self, G: jax.Array) -> jax.Array:
        r"""Return the factor `R` of the covariance :math:`R R^T` of :math:`G \theta`."""
        rows = G if self.tangent is None else jax.vmap(self.tangent.rmv)(G)
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

    where :math:`s^2 = \|r\|^2 / (m - k)`, with the rank `k`, estimates the variance of the data. If
    the residuals are divided by known standard deviations, :math:`s^2 = 1`. The columns are scaled
    first, so that the rank doesn't depend on the units of the params. Singular values below
    rounding error are omitted.

    Args:
        J: The Jacobian, of shape `[m, n]`.
        cost: Half the sum of squares.
        residuals: The residuals, a tree.
        dof: The degrees of freedom, int32.
        T: The derivative of the params with respect to the variables, `[p, n]`; None for the
            identity.
        absolute_sigma: Whether the residuals are divided by known standard deviations.
        fixed: Mask of the fixed variables, `[n]`, which have no variance.

    Returns:
        The factor, with the directions that the data determine.
    """
    n = J.shape[1]
    free = jnp.ones(n, J.dtype) if fixed is None else (~fixed).astype(J.dtype)
    J = J * free
    # The derivative of an SVD is infinite for equal singular values. Here the SVD only selects
    # directions; `_inverse_root` defines the derivative of the factor.
    constant_J = lax.stop_gradient(J)
    scale = initial_scale(norm(constant_J))
    factors = singular_factors(constant_J / scale, jnp.zeros_like(constant_J[:, 0]))
    in_rank = is_determined(factors.s, max(constant_J.shape))
    directions = jnp.where(in_rank[:, None], factors.Vt, jnp.zeros_like(factors.Vt))
    root = directions / jnp.where(in_rank, factors.s, jnp.ones_like(factors.s))[:, None]
    root = _inverse_root(root, matmul((J / scale).T, J / scale))
    tangent = free * (jnp.eye(n, dtype=J.dtype) if T is None else T) / scale
    deviation = jnp.ones((), J.dtype)
    if not absolute_sigma:
        deviation = residual_deviation(cost, residuals, J.shape[0], dof)
    root = matmul(root, (deviation * tangent).T)
    has_variance = jnp.asarray(absolute_sigma) | (dof > 0)
    return CovarianceFactor(root, lax.stop_gradient(tangent), directions, has_variance)


@jax.custom_jvp
def _inverse_root(root: jax.Array, G: jax.Array) -> jax.Array:
    r"""Return `root`, the factor `R` of :math:`G^+ = R^T R`, as a differentiable function of `G`.

    The derivative of singular vectors is undefined if singular values are equal, so `root` is
    treated as a constant.
    """
    del G
    return root


@_inverse_root.defjvp
def _inverse_root_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    # dR = -R dG R^T R / 2 satisfies d(R^T R) = -G^-1 dG G^-1, the derivative of the inverse.
    root, G_dot = primals[0], tangents[1]
    return root, -matmul(matmul(root, G_dot), matmul(root.T, root)) / 2


def residual_deviation(cost: jax.Array, residuals: Any, m: int, dof: jax.Array) -> jax.Array:
    r"""Estimate the standard deviation of the data, :math:`(2 f / (m - k))^{1/2}`.

    If squares of residuals underflow or overflow, the norm of the residuals replaces the cost.

    Args:
        cost: The cost, half the sum of squares.
        residuals: The residuals, a tree.
        m: The number of rows of the Jacobian.
        dof: The degrees of freedom, :math:`m - k`, int32.
    """
    dof = jnp.maximum(dof.astype(cost.dtype), 1)
    vector = real_vector(residuals, real_dtype(cost.dtype))
    if vector.size != m:
        # Over a named axis, a device has only its own residuals, but the total cost.
        return safe_sqrt(2 * cost / dof)
    chi2 = 2 * cost  # may overflow, even if the cost doesn't
    in_range = (chi2 >= least_square_sum(cost.dtype)) & (chi2 < jnp.inf)
    deviation = safe_sqrt(jnp.where(in_range, chi2, jnp.ones_like(cost)) / dof)
    return jnp.where(in_range, deviation, norm(vector.flatten(residuals)) / jnp.sqrt(dof))


def factor_of(
    solution: Solution, absolute_sigma: bool = False
) -> CovarianceFactor | SparseCovarianceFactor:
    """Return the covariance factor of all params of a solution, including fixed and tied params."""
    J, cost, r, dof = solution.jacobian, solution.cost, solution.residuals, solution.dof
    if J is None:
        raise ValueError(
            "covariance: solution.jacobian is None, expected a Jacobian. Solve with "
            "linear_solver='qr' and without chunk_size."
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
            f"covariance: the Jacobian of {count_text(factor.J.shape[1], 'variable')} is sparse, "
            "expected a dense Jacobian for the covariance of all params. Pass a function of the "
            "params with few outputs: covariance(fit, of=function)."
        )
    return factor


def covariance_of(solution: Solution, absolute_sigma: bool = False) -> jax.Array:
    """Return the covariance, infinite in the rows and columns of undetermined params."""
    return tiered_call(CovarianceFactor.covariance, _full_factor(solution, absolute_sigma))


def covariance_of_combinations(solution: Solution, absolute_sigma: bool, G: jax.Array) -> jax.Array:
    r"""Return the covariance `[q, q]` of linear combinations :math:`G \theta` of the params."""
    factor = factor_of(solution, absolute_sigma)
    return tiered_call(type(factor).of_combinations, factor, G)


def errors_of(solution: Solution, absolute_sigma: bool = False) -> jax.Array:
    """Return the standard error of every param, infinite for undetermined params."""
    return tiered_call(CovarianceFactor.errors, _full_factor(solution, absolute_sigma))


def correlation_of(solution: Solution) -> jax.Array:
    """Return the correlation of the params: NaN for undetermined params, 0 for fixed params."""
    return tiered_call(CovarianceFactor.correlation, _full_factor(solution))


def _infinite_unless(determined: jax.Array, C: jax.Array) -> jax.Array:
    return jnp.where(determined & determined[:, None], C, jnp.full_like(C, jnp.inf))
