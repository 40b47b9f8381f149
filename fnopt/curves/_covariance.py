"""The covariance of the params of a fit."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.curves._uncertainty import AnyFit, as_params, knows_sigma, solution_of
from fnopt.jacobians import held_as_zeros, ravel
from fnopt.residuals import in_tangents
from fnopt.solvers import covariance_of, errors_of


def covariance(fit: AnyFit, absolute_sigma: bool = False) -> jax.Array:
    r"""The covariance matrix of fitted params.

    .. math:: C = s^2 (J^T J)^+, \qquad s^2 = \frac{\|r\|^2}{m - k}

    with `k` the rank: how many directions of the params the data determine.

    Args:
        fit: What :func:`fnopt.curve_fit` or :func:`fnopt.least_squares` returned.
        absolute_sigma: Whether the residuals are in units of known standard deviations; then
            :math:`s^2 = 1`.

    Returns:
        An array of shape `[n, n]`, for the params laid end to end in the order of their leaves;
        infinite in the rows and columns of those that the data don't determine, and everywhere
        without a degree of freedom. Params that are held have zeros. A parameter on a manifold
        counts by the coordinates of its tangent space at the solution.

    Raises:
        ValueError: If the solver formed no Jacobian.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> x = jnp.asarray([0.0, 1.0, 2.0, 3.0])
        >>> y = jnp.asarray([1.0, 3.1, 4.9, 7.0])
        >>> fit = fnopt.least_squares(lambda p: p["a"] + p["b"] * x - y, {"a": 0.0, "b": 0.0})
        >>> print(fnopt.covariance(fit).round(4))
        [[ 0.0063 -0.0027]
         [-0.0027  0.0018]]
    """
    return covariance_of(solution_of(fit, "covariance"), knows_sigma(fit, absolute_sigma))


def standard_errors(fit: AnyFit, absolute_sigma: bool = False) -> Any:
    r"""The standard error of every fitted parameter: :math:`\sqrt{C_{jj}}`.

    Args:
        fit: What :func:`fnopt.curve_fit` or :func:`fnopt.least_squares` returned.
        absolute_sigma: Whether the residuals are in units of known standard deviations.

    Returns:
        A tree like the params. The errors of a parameter on a manifold are those of its tangent
        coordinates, `[..., dimension]`: see :mod:`fnopt.manifolds`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> y = jnp.asarray([1.0, 2.0, 3.0])
        >>> fit = fnopt.least_squares(lambda p: p["mean"] - y, {"mean": 0.0})
        >>> print(f"{fnopt.standard_errors(fit)['mean']:.4f}")  # 1 / sqrt(3)
        0.5774
    """
    solution = solution_of(fit, "standard_errors")
    unravel = ravel(held_as_zeros(in_tangents(solution.params)))[1]
    return as_params(fit, unravel(errors_of(solution, knows_sigma(fit, absolute_sigma))))
