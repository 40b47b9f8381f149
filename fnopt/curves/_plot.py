"""Plot of a curve fit with its confidence band and residuals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.curves._uncertainty import curve_of
from fnopt.errors import import_optional, type_text

_POINTS = 400  # enough for a curve that looks smooth at the width of a page


def plot_fit(fit: Any, *, level: float = 0.95, axes: Any = None) -> Any:
    r"""Draw the data, the fitted curve, its confidence band and the residuals with matplotlib.

    :func:`fnopt.predict_band` computes the band. If the fit has a `sigma`, the residuals are
    divided by `sigma`, and about two thirds of them should be between -1 and 1. `fit.plot()` calls
    this function.

    Args:
        fit: The result of :func:`fnopt.curve_fit` with one independent variable.
        level: The probability that the band contains the true curve, at each point.
        axes: Two axes to draw into; by default two axes of a new figure.

    Returns:
        The axes of the curve and the axes of the residuals.

    Raises:
        TypeError: If `fit` isn't the result of `curve_fit`.
        ValueError: If the positions of the data aren't one-dimensional, the data are complex, or
            `level` isn't between 0 and 1.
        ImportError: If matplotlib isn't installed.

    Example:
        >>> import matplotlib; matplotlib.use("agg")
        >>> import jax.numpy as jnp, fnopt
        >>> x, y = jnp.arange(4.0), jnp.asarray([1.0, 3.1, 4.9, 7.0])
        >>> fit = fnopt.curve_fit(lambda x, a, b: a + b * x, x, y)
        >>> curve, residuals = fnopt.curves.plot_fit(fit)
        >>> [text.get_text() for text in curve.get_legend().get_texts()]
        ['fit', '95 % band', 'data']
    """
    fit = curve_of(fit, "plot_fit")
    x, y = fit.x, np.asarray(fit.y)
    if getattr(x, "ndim", None) != 1 or y.shape != x.shape or np.iscomplexobj(y):
        raise ValueError(
            f"plot_fit: xdata is {type_text(x)} and ydata is {type_text(y)}, expected real arrays "
            "of shape [m]. For several independent variables or data sets, draw slices with "
            "fit.predict_band. For complex data, draw parts of fit.predict(x)."
        )
    grid = jnp.linspace(jnp.min(x), jnp.max(x), _POINTS)
    band = jax.tree.map(np.asarray, fit.predict_band(grid, level))
    if axes is None:
        plt = import_optional("matplotlib.pyplot", "plot_fit", "monitor")
        _, axes = plt.subplots(
            2, sharex=True, height_ratios=(3, 1), figsize=(7, 5), layout="constrained"
        )
    if np.size(axes) != 2:
        raise ValueError(
            f"plot_fit: axes = {axes!r}, expected two axes, for the curve and the residuals. Pass "
            "plt.subplots(2)[1]."
        )
    curve_ax, residual_ax = axes
    curve_ax.plot(grid, np.broadcast_to(band.value, grid.shape), color="C0", label="fit")
    if np.isfinite(band.error).all():
        label = f"{100 * level:.4g} % band"
        curve_ax.fill_between(
            grid, band.lower, band.upper, color="C0", alpha=0.2, lw=0, label=label
        )
    # Data minus model, the usual sign in plots; `fit.residuals` are model minus data.
    bars, residuals = _error_bars(fit.sigma), -np.asarray(fit.residuals)
    style = {"fmt": "o", "color": "black", "markersize": 4, "elinewidth": 1}
    curve_ax.errorbar(x, y, yerr=bars, label="data", zorder=3, **style)
    residual_ax.errorbar(
        x, residuals if bars is None else residuals / bars, None if bars is None else 1, **style
    )
    residual_ax.axhline(0, color="C0", linewidth=1)
    residual_ax.set_ylabel("residuals" if bars is None else "residuals / sigma")
    curve_ax.legend()
    return curve_ax, residual_ax


def _error_bars(sigma: Any) -> Any:
    """Standard deviations of the data, from the diagonal if `sigma` is a covariance matrix."""
    if sigma is None:
        return None
    sigma = np.asarray(sigma)
    return np.sqrt(np.diag(sigma)) if sigma.ndim == 2 else sigma
