"""Covariance, standard errors, confidence intervals and bands, and chi-square of a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.curves._prediction import Caller, as_params, linearized_prediction, predicted_shape
from fnopt.curves._t_quantile import t_quantile
from fnopt.errors import check_function, type_text
from fnopt.jacobians import (
    held_as_zeros,
    ravel,
    ravel_with_held,
)
from fnopt.manifolds import in_tangents
from fnopt.solvers import (
    Solution,
    correlation_of,
    covariance_of,
    covariance_of_combinations,
    errors_of,
    factor_of,
    residual_deviation,
)

AnyFit = Any  # a Solution or a Fit; importing Fit would be circular


class Band(NamedTuple):
    """Prediction with a confidence band, in arrays of the same shape.

    Attributes:
        value: The prediction.
        lower: The lower end of the band.
        upper: The upper end of the band.
        error: The standard error of the prediction.
    """

    value: jax.Array
    lower: jax.Array
    upper: jax.Array
    error: jax.Array


def solution_of(fit: Any, name: str) -> Solution:
    """Return the `Solution` of a fit, or raise an error unless there is exactly one fit.

    Args:
        fit: The result of `curve_fit` or `least_squares`.
        name: The function that the user called, for messages.
    """
    solution = getattr(fit, "solution", fit)
    if hasattr(fit, "undetermined"):
        raise TypeError(
            f"{name}: the fit is a {type(fit).__name__} of many fits, expected one fit. Use "
            "fit.errors and fit.covariance, or fit one data set with curve_fit."
        )
    if not isinstance(solution, Solution):
        kind = type_text(fit) if hasattr(fit, "dtype") else f"a {type(fit).__name__}"
        raise TypeError(
            f"{name}: the fit is {kind}, expected a result of curve_fit or least_squares. Pass "
            "fit = curve_fit(...), because popt and pcov don't contain the Jacobian."
        )
    if getattr(solution.status, "ndim", 0):
        raise ValueError(
            f"{name}: the fit is a batch of shape {solution.status.shape}, expected one fit. Use "
            "jax.vmap(lambda fit: ...)(fit)."
        )
    return solution


def curve_of(fit: Any, name: str) -> Any:
    """Check that a fit is a result of `curve_fit`, and return the fit.

    Args:
        fit: The fit.
        name: The function that the user called, for messages.
    """
    if solution_of(fit, name) is fit:
        raise TypeError(
            f"{name}: the fit is a Solution of least_squares without data and curve, expected a "
            "result of curve_fit. Pass fit = curve_fit(f, x, y, p0)."
        )
    return fit


def knows_sigma(fit: Any, absolute_sigma: bool) -> bool:
    """Whether the variance of the data is known, by the option or by the fit."""
    return absolute_sigma or getattr(fit, "absolute_sigma", False)


def _data_deviation(solution: Solution) -> jax.Array:
    """Standard deviation of the data, which is infinite without degrees of freedom."""
    assert solution.jacobian is not None, "the caller needed the Jacobian before"
    dof, m = solution.dof, solution.jacobian.shape[-2]
    deviation = residual_deviation(solution.cost, solution.residuals, m, dof)
    return jnp.where(dof > 0, deviation, jnp.inf)


def quantile_of(solution: Solution, level: float, absolute_sigma: bool) -> jax.Array:
    """Quantile of Student's t distribution, or of the normal distribution for a known variance."""
    if not hasattr(level, "__float__") or not 0 < level < 1:
        raise ValueError(f"level = {level!r}, expected a fraction between 0 and 1, such as 0.95.")
    dof = jnp.inf if absolute_sigma else solution.dof
    return t_quantile(level, dof).astype(solution.cost.dtype)


def reduced_chi_square(fit: AnyFit) -> jax.Array:
    r"""Compute the reduced chi-square, the sum of squares per degree of freedom.

    .. math:: \chi^2_\nu = \frac{\|r\|^2}{m - k}

    Here `k` is the rank of the Jacobian.

    If the residuals are divided by known standard deviations (`sigma`), the value is near 1 for a
    correct model and correct standard deviations. A much larger value indicates that the model or a
    standard deviation is wrong.

    Args:
        fit: The result of :func:`fnopt.curve_fit` or :func:`fnopt.least_squares`.

    Returns:
        The reduced chi-square, a scalar; infinite without degrees of freedom. If the sum of squares
        is out of the range of the dtype, the reduced chi-square is 0 or infinite.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> y = jnp.asarray([1.0, 2.0, 3.0])
        >>> fit = fnopt.least_squares(lambda p: p["mean"] - y, {"mean": 0.0}, sigma=0.5)
        >>> print(f"{fnopt.curves.reduced_chi_square(fit):.2f}")
        4.00
    """
    solution = solution_of(fit, "reduced_chi_square")
    dof = solution.dof.astype(solution.cost.dtype)
    # Division by `dof / 2`, because twice the cost may overflow.
    chi2 = solution.cost / jnp.where(dof > 0, dof / 2, jnp.ones_like(dof))
    return jnp.where(dof > 0, chi2, jnp.inf)


def correlation(fit: AnyFit) -> jax.Array:
    r"""Compute the correlation matrix of fitted params, :math:`C_{ij} / \sqrt{C_{ii} C_{jj}}`.

    Args:
        fit: The result of :func:`fnopt.curve_fit` or :func:`fnopt.least_squares`.

    Returns:
        An array of shape `[n, n]` for the concatenated params. Rows and columns are NaN for params
        that the data don't determine, and 0 for fixed params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> x = jnp.asarray([1.0, 2.0, 3.0])
        >>> fit = fnopt.least_squares(lambda p: p["a"] + p["b"] * x - x**2, {"a": 0.0, "b": 0.0})
        >>> print(fnopt.curves.correlation(fit).round(2))
        [[ 1.   -0.93]
         [-0.93  1.  ]]
    """
    return correlation_of(solution_of(fit, "correlation"))


def covariance(
    fit: AnyFit,
    absolute_sigma: bool = False,
    *,
    of: Callable[[Any], jax.Array] | None = None,
) -> jax.Array:
    r"""Compute the covariance matrix of fitted params, or of a function of the params.

    .. math:: C = s^2 (J^T J)^+, \qquad s^2 = \frac{\|r\|^2}{m - k}

    Here `k` is the rank of the Jacobian. The covariance of a function with Jacobian `G` is
    :math:`G C G^T`. After a fit with a sparse Jacobian, `C` isn't formed. The covariance of the
    function is computed from a sparse Cholesky factor, with one solve for each output. For example,
    pass `of` to compute the marginal covariances of a few poses of a pose graph.

    Args:
        fit: The result of :func:`fnopt.curve_fit` or :func:`fnopt.least_squares`.
        absolute_sigma: Whether the residuals are divided by known standard deviations, so that
            :math:`s^2 = 1`.
        of: A function `of(params)` that returns an array of `q` numbers, such as
            `lambda p: SE3.local(T, p["T"].value[7])` for the tangent of a pose with value `T`;
            None for all params.

    Returns:
        An array of shape `[q, q]`, or `[n, n]` without `of`, for the concatenated leaves. Rows and
        columns are infinite for outputs or params that the data don't determine, and zero for fixed
        params. All entries are infinite without degrees of freedom. For a param on a manifold, the
        covariance is the covariance of coordinates of the tangent space at the solution.

    Raises:
        ValueError: If the solver didn't form the Jacobian.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> x = jnp.asarray([0.0, 1.0, 2.0, 3.0])
        >>> y = jnp.asarray([1.0, 3.1, 4.9, 7.0])
        >>> fit = fnopt.least_squares(lambda p: p["a"] + p["b"] * x - y, {"a": 0.0, "b": 0.0})
        >>> print(fnopt.covariance(fit).round(4))
        [[ 0.0063 -0.0027]
         [-0.0027  0.0018]]
        >>> print(fnopt.covariance(fit, of=lambda p: p["a"] + 2 * p["b"]).round(4))
        [[0.0027]]
    """
    solution, is_absolute = solution_of(fit, "covariance"), knows_sigma(fit, absolute_sigma)
    if of is None:
        return covariance_of(solution, is_absolute)
    _, G = linearized_prediction(of, fit, solution, Caller("covariance", "of"))
    return covariance_of_combinations(solution, is_absolute, G)


def standard_errors(fit: AnyFit, absolute_sigma: bool = False) -> Any:
    r"""Compute the standard error of every fitted param, :math:`\sqrt{C_{jj}}`.

    Args:
        fit: The result of :func:`fnopt.curve_fit` or :func:`fnopt.least_squares`.
        absolute_sigma: Whether the residuals are in units of known standard deviations.

    Returns:
        A tree like the params. A param on a manifold has one standard error for each tangent
        coordinate, `[..., dimension]`; see :mod:`fnopt.manifolds`.

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


def confidence_intervals(
    fit: AnyFit, level: float = 0.95, absolute_sigma: bool = False
) -> tuple[Any, Any]:
    r"""Compute confidence intervals :math:`\theta_j \pm t_p \sqrt{C_{jj}}` of fitted params.

    Args:
        fit: The result of :func:`fnopt.curve_fit` or :func:`fnopt.least_squares`.
        level: The probability that an interval contains the true value, if the model is correct and
            nearly linear within the interval.
        absolute_sigma: Whether the residuals are in units of known standard deviations.

    Returns:
        The lower ends and the upper ends, two trees like the params. The ends are infinite for
        params that the data don't determine. For a param on a manifold, the ends are tangent
        coordinates around 0.

    Raises:
        ValueError: If `level` isn't between 0 and 1.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> y = jnp.asarray([1.0, 2.0, 3.0])
        >>> fit = fnopt.least_squares(lambda p: p["mean"] - y, {"mean": 0.0})
        >>> lower, upper = fnopt.confidence_intervals(fit)
        >>> print(f"{lower['mean']:.3f} {upper['mean']:.3f}")
        -0.484 4.484
    """
    solution = solution_of(fit, "confidence_intervals")
    is_absolute = knows_sigma(fit, absolute_sigma)
    x, unravel = ravel_with_held(in_tangents(solution.params))
    half_width = quantile_of(solution, level, is_absolute) * errors_of(solution, is_absolute)
    lower, upper = (as_params(fit, unravel(end)) for end in (x - half_width, x + half_width))
    return lower, upper


def predict_band(
    predict: Callable[[Any], jax.Array],
    fit: AnyFit,
    level: float = 0.95,
    *,
    noise: float | jax.Array | bool = False,
    absolute_sigma: bool = False,
) -> Band:
    r"""Compute a prediction from fitted params, with a confidence band.

    .. math:: f(\hat\theta) \pm t_p \sqrt{g^T C g + s^2}, \qquad
        g = \nabla_\theta f(\hat\theta)

    Args:
        predict: A function `predict(params)` that returns an array. For a `Fit`, the argument is
            `fit.params`.
        fit: The result of :func:`fnopt.curve_fit` or :func:`fnopt.least_squares`.
        level: The probability that the band contains the true value, at each point.
        noise: The standard deviation :math:`s` of new data, in the units of the prediction. The
            band then contains a new datum with probability `level`. True estimates
            :math:`s^2 = \|r\|^2 / (m - n)` from the residuals, which is valid only without `sigma`,
            `weights` and `likelihood`. With False, the band is for the curve without noise.
        absolute_sigma: Whether the residuals are in units of known standard deviations.

    Returns:
        The prediction, the ends of the band, and the standard error. The ends and the error are
        infinite if the data don't determine the prediction. The data may determine a function of
        the params, such as a sum, without determining each param.

    Raises:
        TypeError: If `predict` isn't a function of the params that returns an array.
        ValueError: If `level` isn't between 0 and 1, or `noise` is True for a `Fit` with `sigma` or
            `likelihood`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> x = jnp.asarray([0.0, 1.0, 2.0, 3.0])
        >>> y = jnp.asarray([1.0, 3.1, 4.9, 7.0])
        >>> fit = fnopt.least_squares(lambda p: p["a"] + p["b"] * x - y, {"a": 0.0, "b": 0.0})
        >>> band = fnopt.predict_band(lambda p: p["a"] + p["b"] * jnp.asarray([1.5, 9.0]), fit)
        >>> print(band.lower.round(2), band.upper.round(2))
        [ 3.8  17.47] [ 4.2  20.23]

    Reference:
        Seber and Wild (1989), Nonlinear regression, section 5.1.
    """
    check_function(predict, "predict", "predict_band", "Pass the fit as the second argument.")
    solution = solution_of(fit, "predict_band")
    is_unequal = getattr(fit, "sigma", None) is not None or getattr(fit, "likelihood", None)
    if noise is True and is_unequal:
        raise ValueError(
            "predict_band: noise = True for a fit with sigma or likelihood, expected the standard "
            "deviation of the new data. Pass noise=sigma at the new points; without "
            "absolute_sigma, multiply it by jnp.sqrt(fit.reduced_chi_square)."
        )
    is_absolute = knows_sigma(fit, absolute_sigma)
    advice = "For a fit of curve_fit, use fit.predict_band(x)."
    caller = Caller("predict_band", "predict", advice)
    shape = predicted_shape(predict, as_params(fit, solution.params), caller)
    value, J = linearized_prediction(predict, fit, solution, caller)
    error = factor_of(solution, is_absolute).errors(J)
    if noise is not False:
        deviation = _data_deviation(solution) if noise is True else jnp.asarray(noise, value.dtype)
        # Prediction and new data have independent errors, so their variances add.
        error = jnp.hypot(error, jnp.ravel(jnp.broadcast_to(deviation, shape.shape)))
    half_width = quantile_of(solution, level, is_absolute) * error
    return Band(
        *(v.reshape(shape.shape) for v in (value, value - half_width, value + half_width, error))
    )
