"""Confidence intervals by the profile likelihood."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.curves._curve_data import is_matrix
from fnopt.curves._residuals import curve_residuals
from fnopt.curves._uncertainty import curve_of, quantile_of
from fnopt.jacobians import ravel
from fnopt.residuals import box_of
from fnopt.solvers import errors_of, least_squares

# Tolerance relative to the quantile. The estimated standard deviation of the data has a relative
# standard error of (2 dof)^(-1/2), which is larger for less than 500,000 degrees of freedom.
_TOLERANCE = 1e-3
_MOST_REFITS = 30  # 30 doublings of the step reach 1e9 standard errors


def profile_intervals(fit: Any, level: float = 0.95) -> dict[str, tuple[float, float]]:
    r"""Compute profile-likelihood confidence intervals, with the other params refitted.

    .. math:: \{ c : \chi^2(c) - \chi^2_{\min} \le t_p^2 s^2 \}, \qquad
        \chi^2(c) = \min_{\theta : \theta_j = c} \chi^2(\theta)

    :math:`t_p` is the quantile of Student's t distribution and :math:`s^2` the variance of the
    data. For a nonlinear model, the intervals aren't symmetric. In contrast to
    :func:`fnopt.confidence_intervals`, the intervals don't depend on the parametrization. The
    function corresponds to lmfit's `conf_interval`.

    Args:
        fit: The result of :func:`fnopt.curve_fit` without `constraints`.
        level: The probability that an interval contains the true value.

    Returns:
        A dict from the name of a param to the lower and upper end of its interval. An end is
        infinite if no value reaches the threshold. An end is the bound of the param if the
        threshold is beyond the bound. The distance of an end from the best value has a relative
        error of 1e-3.

    Raises:
        ValueError: If the fit was made under `jax.jit` or `jax.vmap`, has constraints, or `level`
            isn't between 0 and 1.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> x = jnp.asarray([0.0, 1.0, 2.0, 3.0])
        >>> y = jnp.asarray([1.0, 0.38, 0.11, 0.06])
        >>> fit = fnopt.curve_fit(lambda x, a, k: a * jnp.exp(-k * x), x, y)
        >>> lower, upper = fnopt.curves.profile_intervals(fit)["k"]
        >>> print(f"{fit.params['k']:.2f} [{lower:.2f}, {upper:.2f}]")
        1.01 [0.83, 1.23]

    Reference:
        Bates and Watts (1988), Nonlinear regression analysis, section 6.1.
    """
    solution = curve_of(fit, "profile_intervals").solution
    bounds, constraints, loss = fit.options.opened()
    if isinstance(solution.status, Tracer) or np.ndim(solution.status) or constraints:
        raise ValueError(
            "profile_intervals: the fit is traced, is a batch or has constraints, expected one "
            "concrete fit without constraints. Use fnopt.confidence_intervals."
        )
    quantile = float(quantile_of(solution, level, fit.absolute_sigma))
    best, unravel = ravel(solution.params)
    box = box_of(bounds, solution.params, best.dtype)
    ends = [jnp.full_like(best, end) for end in (-jnp.inf, jnp.inf)]
    if box is not None:
        ends = [jnp.concatenate([b[side] for b in box]) for side in (0, 1)]
    residuals = curve_residuals(
        fit.model.opened(), fit.passing, fit.likelihood, is_matrix(fit.sigma, fit.y)
    )
    dof = max(int(solution.dof), 1)
    variance = 1.0 if fit.absolute_sigma else 2 * float(solution.cost) / dof
    errors = np.asarray(errors_of(solution, fit.absolute_sigma), float)

    def distance(j: int, value: float, start: jax.Array) -> tuple[float, jax.Array]:
        """Refit the other params for a fixed value of param `j`.

        Returns the square root of the chi-square increase, divided by the standard deviation of the
        data, and the params.
        """
        # Equal bounds fix the param.
        lower, upper = (unravel(end.at[j].set(value)) for end in ends)
        refit = least_squares(
            residuals,
            unravel(jnp.clip(start.at[j].set(value), *ends)),
            bounds=(lower, upper),
            args=(fit.positions, fit.y),
            loss=loss,
            sigma=fit.sigma,
        )
        increase = 2 * (float(refit.cost) - float(solution.cost)) / variance
        return float(np.sqrt(max(increase, 0.0))), ravel(refit.params)[0]

    return {
        name: (
            _end(distance, j, best, -errors[j], quantile, float(ends[0][j])),
            _end(distance, j, best, errors[j], quantile, float(ends[1][j])),
        )
        for j, name in enumerate(fit.names)
    }


def _end(
    distance: Any, j: int, best: jax.Array, error: float, quantile: float, bound: float
) -> float:
    """Find one end of an interval by the method of false position.

    The search is for the step from the best value at which `distance` equals the quantile.
    `distance` is nearly linear in the step, because chi-square is nearly quadratic.
    """
    if not 0 < abs(error) < np.inf:
        return float(np.sign(error) * np.inf) if error else float(best[j])
    center = float(best[j])
    inside, outside = (0.0, 0.0), None  # bracket, as pairs (step, distance at this step)
    step, point = quantile * error, best
    for _ in range(_MOST_REFITS):
        step = np.sign(error) * min(abs(step), abs(bound - center))
        root, point = distance(j, center + step, point)
        if abs(root - quantile) <= _TOLERANCE * quantile:
            return float(center + step)
        if root < quantile:
            if abs(step) >= abs(bound - center):
                return bound  # `center + step` may differ by rounding
            inside = step, root
        else:
            outside = step, root
        if outside is None:
            step = min(2.0, quantile / max(root, _TOLERANCE * quantile)) * step
            continue
        slope = (outside[1] - inside[1]) / (outside[0] - inside[0])
        step = inside[0] + (quantile - inside[1]) / slope
    return float(center + step if outside else np.sign(error) * np.inf)
