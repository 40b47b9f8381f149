"""Data of a curve fit, and their checks."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.curves._failures import OptimizeWarning
from fnopt.numerics import default_float, is_inexact


def _is_known(x: Any) -> bool:
    return not isinstance(x, Tracer)


_COARSE = 1e-3  # largest rounding error of data, relative to their range


def as_weights(sigma: jax.Array | None) -> dict[str, Any]:
    """Convert `sigma` to an argument of `least_squares`: `weights` if an entry is infinite."""
    if sigma is None or not _is_known(sigma) or not np.any(np.isinf(np.asarray(sigma))):
        return {"sigma": sigma}
    return {"weights": 1 / jnp.square(sigma)}


def read(x: Any, name: str, caller: str = "curve_fit") -> Any:
    """Convert data on the host to NumPy arrays at full precision; return JAX arrays unchanged.

    Integers are allowed, and columns of objects or strings that contain numbers, as in SciPy.
    """
    if x is None:
        raise TypeError(f"{caller}: {name} is None, expected an array of numbers.")
    if isinstance(x, jax.Array) or not all(map(_is_known, jax.tree.leaves(x))):
        return x
    if isinstance(x, np.ma.MaskedArray):  # masked entries become NaN, for `nan_policy`
        x = np.ma.filled(x.astype(float), np.nan)
    return _numbers(np.asarray(x), name, caller)


def as_floating(x: Any) -> jax.Array:
    """Convert a JAX array to floats unless it is floating."""
    if not isinstance(x, jax.Array) and all(map(_is_known, jax.tree.leaves(x))):
        # NumPy converts, because JAX would compile a program for the conversion.
        x = np.asarray(x)
        inexact = jnp.issubdtype(x.dtype, jnp.inexact)
        with np.errstate(over="ignore"):
            x = x.astype(jax.dtypes.canonicalize_dtype(x.dtype) if inexact else default_float())
        return jax.device_put(x)
    x = jnp.asarray(x)
    return x if is_inexact(x) else x.astype(default_float())


def _numbers(x: np.ndarray, name: str, caller: str) -> np.ndarray:
    """Convert data to an array of numbers if possible."""
    if x.dtype.kind in "mM":
        since = "(x - x[0]) / np.timedelta64(1, 's')" if x.dtype.kind == "M" else "x / unit"
        raise TypeError(
            f"{caller}: {name} are {x.dtype}, expected numbers. Convert them to numbers "
            f"from an origin of your choice, such as {since}."
        )
    if x.dtype.kind not in "OUS":
        return x
    try:
        return x.astype(float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{caller}: {name} hold entries that aren't numbers: {error}.") from None


def warn_if_coarse(given: Any, dtype: Any, name: str, caller: str = "curve_fit") -> None:
    """Warn if the compute dtype can't resolve the spacing of the data, such as timestamps."""
    if not isinstance(given, np.ndarray):
        return
    if given.dtype.itemsize <= dtype.itemsize or given.dtype.kind not in "iuf" or not given.size:
        return
    with np.errstate(invalid="ignore"):
        off, span = np.max(np.abs(given - given.astype(dtype))), np.ptp(given)
        # Constant data vary by this rounding error.
        noise = 1e3 * np.finfo(float).eps * np.max(np.abs(given))
        apart: Any = np.diff(np.unique(given)) if name in ("xdata", "x") else np.empty(0)
        # Rounding moves each datum by up to `off`. Spacings stay even only if they exceed four such
        # errors, which are two units in the last place.
        is_close = apart.size and np.median(apart) < 4 * off
    if (off > _COARSE * span or is_close) and span > noise:
        warnings.warn(
            f"{caller}: {name} are rounded to {dtype} by up to {off:.2g}, which is coarse "
            f"for their range of {span:.4g}. Subtract an origin ({name} - {name}[0]), or "
            "enable jax_enable_x64.",
            OptimizeWarning,
            stacklevel=4,
        )


def _check_finite(x: jax.Array, name: str) -> None:
    if _is_known(x) and not np.all(np.isfinite(np.asarray(x))):
        count = int(np.sum(~np.isfinite(np.asarray(x))))
        raise ValueError(
            f"curve_fit: {name} hold {count} NaN or infinite values, expected finite "
            "ones. Remove these points; nan_policy='omit' removes points with a NaN."
        )


def checked_x(xdata: Any, check_finite: bool) -> Any:
    """Convert `xdata` to a floating array if it is an array, list or data frame column."""
    if not isinstance(xdata, (list, tuple)) and not hasattr(xdata, "__array__"):
        return xdata
    if isinstance(xdata, (list, tuple)) and not _is_array(xdata):
        return xdata
    given = read(xdata, "xdata")
    x = as_floating(given)
    warn_if_coarse(given, x.dtype, "xdata")
    if check_finite:
        _check_finite(x, "xdata")
    return x


def _is_array(xdata: Any) -> bool:
    """Whether a list has entries of one shape, or a tuple contains only numbers."""
    if _is_ragged(xdata):
        return False
    return isinstance(xdata, list) or all(
        np.asarray(entry).dtype.kind not in "O" for entry in xdata if _is_known(entry)
    )


def _is_ragged(data: list[Any] | tuple[Any, ...]) -> bool:
    """Whether the entries have different shapes."""
    return len({np.shape(entry) if _is_known(entry) else entry.shape for entry in data}) > 1


def checked_counts(y: jax.Array) -> None:
    """Raise an error for data that aren't counts: negative, NaN or infinite numbers."""
    if not _is_known(y):
        return
    counts = np.asarray(y)
    wrong = np.argwhere(~((counts >= 0) & np.isfinite(counts)))
    if len(wrong):
        i = tuple(map(int, wrong[0]))
        raise ValueError(
            f"curve_fit: ydata[{', '.join(map(str, i))}] = {counts[i]:.6g} with "
            "likelihood='poisson', expected finite counts >= 0. Remove points without a "
            "count. If a background was subtracted, add it to the model instead."
        )


def checked_y(ydata: Any, check_finite: bool) -> jax.Array:
    """Check `ydata` and convert it to a floating array."""
    if isinstance(ydata, (list, tuple)) and _is_ragged(ydata):
        raise ValueError(
            f"curve_fit: ydata are {len(ydata)} arrays of different shapes, expected one array. "
            "Concatenate them: jnp.concatenate(ydata)."
        )
    given = read(ydata, "ydata")
    y = as_floating(given)
    warn_if_coarse(given, y.dtype, "ydata")
    if y.size == 0:
        raise ValueError("curve_fit: ydata are empty, expected at least one point.")
    if check_finite:
        _check_finite(y, "ydata")
    return y


def without_nan(x: Any, y: jax.Array, sigma: Any, policy: str | None) -> tuple[Any, Any, Any]:
    """Remove the points with a NaN in `xdata` or `ydata` if `nan_policy` is `'omit'`."""
    if policy is None:
        return x, y, sigma
    if policy not in {"raise", "omit"}:
        raise ValueError(f"curve_fit: nan_policy = {policy!r}, expected None, 'raise' or 'omit'.")
    if not _is_known(y) or not _is_known(x):
        raise ValueError(
            "curve_fit: nan_policy is given under jax.jit, expected concrete data, whose "
            "NaN can be counted. Remove the NaN before, or use least_squares with "
            "weights of 0 there."
        )
    bad = np.isnan(np.asarray(y))
    if isinstance(x, jax.Array):
        bad_x = np.isnan(np.asarray(x))
        bad = bad | bad_x.any(axis=tuple(range(bad_x.ndim - 1)))
    if not bad.any():
        return x, y, sigma
    if policy == "raise":
        raise ValueError(
            f"curve_fit: the data hold {int(bad.sum())} points that are NaN, expected none. "
            "Remove them, or use nan_policy='omit'."
        )
    x = x[..., ~bad] if isinstance(x, jax.Array) else x
    return x, y[~bad], _kept_sigma(sigma, ~bad)


def _kept_sigma(sigma: Any, kept: np.ndarray) -> Any:
    sigma = None if sigma is None else jnp.asarray(sigma)
    if sigma is None or sigma.ndim == 0:
        return sigma
    return sigma[kept] if sigma.ndim == 1 else sigma[kept][:, kept]


def is_matrix(sigma: jax.Array | None, y: jax.Array) -> bool:
    """Whether `sigma` is a covariance matrix."""
    return sigma is not None and sigma.shape not in {(), y.shape}


def checked_sigma(sigma: Any, y: jax.Array) -> jax.Array | None:
    """Check `sigma` and convert it to a floating array."""
    if sigma is None:
        return None
    sigma, square = as_floating(read(sigma, "sigma")), (y.size, y.size)
    if sigma.shape not in {(), y.shape, square}:
        raise ValueError(
            f"curve_fit: sigma has shape {sigma.shape}, expected (), {y.shape} for standard "
            f"deviations or {square} for a covariance matrix."
        )
    return sigma
