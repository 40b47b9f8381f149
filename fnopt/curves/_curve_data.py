"""Checks of the data of a curve fit, and their conversion to arrays."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.curves._failures import OptimizeWarning
from fnopt.errors import count_text
from fnopt.numerics import default_float, is_inexact


def _is_concrete(x: Any) -> bool:
    return not isinstance(x, Tracer)


def read(x: Any, name: str, caller: str = "curve_fit") -> Any:
    """Convert data on the host to a NumPy array at full precision.

    JAX arrays are returned unchanged. As in SciPy, the data may be integers, or objects or strings
    that represent numbers.
    """
    if x is None:
        raise TypeError(f"{caller}: {name} is None, expected an array of numbers.")
    if isinstance(x, (list, tuple)) and _is_ragged(x):
        advice = "Concatenate them with jnp.concatenate"
        if caller != "curve_fit":
            advice = "Pad them to one shape, and pass mask= for the valid points"
        raise ValueError(
            f"{caller}: {name} are {len(x)} arrays of different shapes, expected one array. "
            f"{advice}."
        )
    if isinstance(x, jax.Array) or not all(map(_is_concrete, jax.tree.leaves(x))):
        return x
    if isinstance(x, np.ma.MaskedArray):  # masked entries become NaN, see `nan_policy`
        x = np.ma.filled(x.astype(float), np.nan)
    return _numbers(np.asarray(x), name, caller)


def as_floating(x: Any) -> jax.Array:
    """Convert numbers to a floating JAX array, with the same dtype if it is floating in JAX."""
    if not isinstance(x, jax.Array) and all(map(_is_concrete, jax.tree.leaves(x))):
        # NumPy converts the dtype, because JAX would compile a program for the conversion.
        x = np.asarray(x)
        inexact = jnp.issubdtype(x.dtype, jnp.inexact)
        with np.errstate(over="ignore"):
            x = x.astype(jax.dtypes.canonicalize_dtype(x.dtype) if inexact else default_float())
        return jax.device_put(x)
    x = jnp.asarray(x)
    return x if is_inexact(x) else x.astype(default_float())


def _numbers(x: np.ndarray, name: str, caller: str) -> np.ndarray:
    """Convert an array of objects or strings to floats, or raise an error if it isn't numeric."""
    if x.dtype.kind in "mM":
        conversion = "(x - x[0]) / np.timedelta64(1, 's')" if x.dtype.kind == "M" else "x / unit"
        raise TypeError(
            f"{caller}: {name} are {x.dtype}, expected numbers. Convert them to numbers "
            f"from an origin of your choice, such as {conversion}."
        )
    if x.dtype.kind not in "OUS":
        return x
    try:
        return x.astype(float)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{caller}: {name} contain entries that aren't numbers ({error}), expected numbers."
        ) from None


def warn_if_coarse(data: Any, dtype: Any, name: str, caller: str = "curve_fit") -> None:
    """Warn if the compute dtype can't resolve the differences of the data, as with timestamps."""
    if not isinstance(data, np.ndarray):
        return
    if data.dtype.itemsize <= dtype.itemsize or data.dtype.kind not in "iuf" or not data.size:
        return
    with np.errstate(invalid="ignore"):
        error, span = np.max(np.abs(data - data.astype(dtype))), np.ptp(data)
        # Higham (2002), section 4.2: the rounding error of a sum of as many terms, relative to the
        # sum of their magnitudes. Constant data may vary by this number.
        noise = data.size * np.finfo(float).eps * np.max(np.abs(data))
        spacings: Any = np.diff(np.unique(data)) if name in ("xdata", "x") else np.empty(0)
        # Rounding changes a spacing by up to 2 `error`, half of a spacing of 4 `error`.
        is_close = spacings.size and np.median(spacings) < 4 * error
    # With an error above eps^(1/2) of the range, differences of the data lose half of the digits.
    is_coarse = error > float(jnp.finfo(dtype).eps) ** 0.5 * span
    if (is_coarse or is_close) and span > noise:
        warnings.warn(
            f"{caller}: conversion to {dtype} changes {name} by up to {error:.2g}, expected "
            f"smaller changes for a range of {span:.4g}. Subtract an origin ({name} - {name}[0]), "
            "or enable jax_enable_x64.",
            OptimizeWarning,
            stacklevel=4,
        )


def _check_finite(x: jax.Array, name: str) -> None:
    if _is_concrete(x) and not np.all(np.isfinite(np.asarray(x))):
        count = int(np.sum(~np.isfinite(np.asarray(x))))
        raise ValueError(
            f"curve_fit: {name} contain {count} NaN or infinite values, expected finite values. "
            "Remove these points, or pass nan_policy='omit' to remove points with NaN."
        )


def checked_x(xdata: Any, check_finite: bool) -> Any:
    """Convert `xdata` to a floating array if it is an array, list, tuple or data frame column."""
    if not isinstance(xdata, (list, tuple)) and not hasattr(xdata, "__array__"):
        return xdata
    if isinstance(xdata, (list, tuple)) and not _is_array(xdata):
        return xdata
    data = read(xdata, "xdata")
    x = as_floating(data)
    warn_if_coarse(data, x.dtype, "xdata")
    if check_finite:
        _check_finite(x, "xdata")
    return x


def _is_array(xdata: Any) -> bool:
    """Whether a list, or a tuple of numbers and numeric arrays, has entries of one shape."""
    if _is_ragged(xdata):
        return False
    return isinstance(xdata, list) or all(
        np.asarray(entry).dtype.kind not in "O" for entry in xdata if _is_concrete(entry)
    )


def _is_ragged(data: list[Any] | tuple[Any, ...]) -> bool:
    """Whether the entries have different shapes."""
    try:
        return len({np.shape(entry) if _is_concrete(entry) else entry.shape for entry in data}) > 1
    except jax.errors.TracerArrayConversionError:  # a list of traced numbers isn't checked
        return False
    except ValueError:  # NumPy's error if the entries of an entry have different shapes
        return True


def checked_counts(y: jax.Array) -> None:
    """Raise an error if a datum isn't a count, because it is negative, NaN or infinite."""
    if not _is_concrete(y):
        return
    counts = np.asarray(y)
    bad = np.argwhere(~((counts >= 0) & np.isfinite(counts)))
    if len(bad):
        i = tuple(map(int, bad[0]))
        raise ValueError(
            f"curve_fit: ydata[{', '.join(map(str, i))}] = {counts[i]:.6g} with "
            "likelihood='poisson', expected finite counts >= 0. Remove points without a "
            "count. If a background was subtracted, add it to the model instead."
        )


def checked_y(ydata: Any, check_finite: bool) -> jax.Array:
    """Check `ydata` and convert it to a floating array."""
    data = read(ydata, "ydata")
    y = as_floating(data)
    warn_if_coarse(data, y.dtype, "ydata")
    if y.size == 0:
        raise ValueError("curve_fit: ydata are empty, expected at least one point.")
    if check_finite:
        _check_finite(y, "ydata")
    return y


def without_nan(x: Any, y: jax.Array, sigma: Any, policy: str | None) -> tuple[Any, Any, Any]:
    """Apply `nan_policy`: `'omit'` removes points with NaN, `'raise'` raises an error."""
    if policy is None:
        return x, y, sigma
    if policy not in {"raise", "omit"}:
        raise ValueError(f"curve_fit: nan_policy = {policy!r}, expected None, 'raise' or 'omit'.")
    if not _is_concrete(y) or not _is_concrete(x):
        raise ValueError(
            "curve_fit: nan_policy is passed with traced data, expected concrete data. Remove the "
            "NaN outside of jax.jit, or use least_squares with weights of 0 for these points."
        )
    bad = np.isnan(np.asarray(y))
    if isinstance(x, jax.Array):
        bad_x = np.isnan(np.asarray(x))
        bad = bad | bad_x.any(axis=tuple(range(bad_x.ndim - 1)))
    if not bad.any():
        return x, y, sigma
    if policy == "raise":
        raise ValueError(
            f"curve_fit: the data contain NaN at {count_text(int(bad.sum()), 'point')}, expected "
            "no NaN. Remove these points, or pass nan_policy='omit'."
        )
    x = x[..., ~bad] if isinstance(x, jax.Array) else x
    return x, y[~bad], _select_sigma(sigma, ~bad)


def _select_sigma(sigma: Any, mask: np.ndarray) -> Any:
    """Select the standard deviations, or the rows and columns of the covariance matrix."""
    sigma = None if sigma is None else jnp.asarray(sigma)
    if sigma is None or sigma.ndim == 0:
        return sigma
    return sigma[mask] if sigma.ndim == 1 else sigma[mask][:, mask]


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
            f"curve_fit: sigma has shape {sigma.shape}, expected shape () or {y.shape} for "
            f"standard deviations, or {square} for a covariance matrix."
        )
    return sigma
