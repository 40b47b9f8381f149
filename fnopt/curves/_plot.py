"""A fit as a picture: the data, the curve with its band, and what is left over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import matmul, optional
from fnopt.curves._uncertainty import Band, t_quantile
from fnopt.jacobians import value_and_jacobian

_POINTS = 400  # of the curve: smooth at the width of a page


def plot_fit(
    f: Callable[..., Any],
    xdata: Any,
    ydata: Any,
    popt: Any,
    pcov: Any = None,
    *,
    sigma: Any = None,
    absolute_sigma: bool = False,
    level: float = 0.95,
    axes: Any = None,
) -> Any:
    r"""Draws data, fitted curve, its confidence band and the residuals; needs matplotlib.

    The band is :math:`f(x, \hat\theta) \pm t_p \sqrt{g^T C g}` with
    :math:`g = \nabla_\theta f(x, \hat\theta)`, as of :func:`fnopt.predict_band`. Residuals are
    divided by `sigma` where it is given, so that two thirds of them should lie between -1 and 1.

    Args:
        f: The model `f(x, *params)`, as :func:`fnopt.curve_fit` took it.
        xdata: The positions of the data, `[m]`.
        ydata: The data, `[m]`.
        popt: The params found, `[n]`.
        pcov: Their covariance, `[n, n]`; without one, or with infinite entries, no band is drawn.
        sigma: Standard deviations of the data, `[m]` or one number: error bars.
        absolute_sigma: Whether these are known; then the band has the normal quantile instead of
            Student's with `m - n` degrees of freedom.
        level: The fraction of such bands that hold the truth, at each point.
        axes: Two axes to draw into; by default those of a new figure.

    Returns:
        The two axes: of the curve, and of the residuals below it.

    Raises:
        ValueError: If `xdata` is not one-dimensional, `ydata` has another shape, or `level` is no
            fraction.
        ImportError: If matplotlib isn't installed.

    Example:
        >>> import matplotlib; matplotlib.use("agg")
        >>> import jax.numpy as jnp, fnopt
        >>> line = lambda x, a, b: a + b * x
        >>> x, y = jnp.arange(4.0), jnp.asarray([1.0, 3.1, 4.9, 7.0])
        >>> popt, pcov = fnopt.curve_fit(line, x, y)
        >>> curve, residuals = fnopt.curves.plot_fit(line, x, y, popt, pcov)
        >>> [text.get_text() for text in curve.get_legend().get_texts()]
        ['fit', '95 % band', 'data']
    """
    x, y = np.asarray(xdata), np.asarray(ydata)
    if x.ndim != 1 or y.shape != x.shape:
        raise ValueError(
            f"plot_fit: xdata has shape {x.shape} and ydata {y.shape}, expected both [m]. For "
            "several independent variables draw slices: fnopt.predict_band gives their bands."
        )
    if axes is None:
        plt = optional("matplotlib.pyplot", "plot_fit", "monitor")
        _, axes = plt.subplots(
            2, sharex=True, height_ratios=(3, 1), figsize=(7, 5), layout="constrained"
        )
    above, below = axes
    dof = jnp.inf if absolute_sigma else x.size - np.size(popt)
    grid = np.linspace(x.min(), x.max(), _POINTS)
    band = _band(f, grid, popt, pcov, t_quantile(_fraction(level), dof))
    _draw_curve(above, grid, band, level)
    bars = None if sigma is None else np.asarray(sigma)
    fitted = np.asarray(f(jnp.asarray(x), *jnp.asarray(popt)))
    left = (y - fitted) / (1 if bars is None else bars)
    style = {"fmt": "o", "color": "black", "markersize": 4, "elinewidth": 1}
    above.errorbar(x, y, yerr=bars, label="data", zorder=3, **style)
    below.errorbar(x, left, yerr=None if bars is None else 1, **style)
    below.axhline(0, color="C0", linewidth=1)
    below.set_ylabel("residuals" if bars is None else "residuals / sigma")
    above.legend()
    return above, below


def _fraction(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"plot_fit: level = {level}, expected a fraction between 0 and 1.")
    return level


def _band(f: Any, grid: np.ndarray, popt: Any, pcov: Any, quantile: Any) -> Band:
    """The curve on a grid, and its band; one of width NaN where there is no covariance."""
    theta = jnp.asarray(popt)
    x = jnp.asarray(grid, theta.dtype)

    def curve(theta: jax.Array) -> jax.Array:
        return jnp.broadcast_to(f(x, *theta), x.shape).astype(theta.dtype)

    value, J = value_and_jacobian(curve, theta, x.size)
    C = jnp.full((theta.size, theta.size), jnp.nan) if pcov is None else jnp.asarray(pcov)
    C = jnp.where(jnp.isfinite(C).all(), C, jnp.full_like(C, jnp.nan)).astype(theta.dtype)
    error = jnp.sqrt(jnp.sum(matmul(J, C) * J, axis=1))
    half_width = quantile.astype(theta.dtype) * error
    drawn: Any = map(np.asarray, (value, value - half_width, value + half_width, error))
    return Band(*drawn)


def _draw_curve(ax: Any, grid: np.ndarray, band: Band, level: float) -> None:
    ax.plot(grid, band.value, color="C0", label="fit")
    if np.isfinite(band.error).any():
        label = f"{100 * level:.4g} % band"
        ax.fill_between(grid, band.lower, band.upper, color="C0", alpha=0.2, lw=0, label=label)
