"""Conversion and checks of the bounds of a curve fit, in SciPy's or lmfit's form."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.numerics import default_float
from fnopt.residuals import bounds_pair, check_bounds

Bounds = tuple[Any, Any]


def bounds_by_name(bounds: Any, params: Any) -> Any:
    """Convert bounds keyed by name, `{"a": (0, 1)}`, to a pair of dicts if they are a dict."""
    if _is_pair(bounds) and isinstance(params, OrderedDict):
        return tuple(_ordered_like(side, params) for side in bounds)
    if not isinstance(bounds, dict):
        return bounds
    unknown = sorted(set(bounds) - set(params if isinstance(params, dict) else ()))
    if unknown:
        raise ValueError(
            f"curve_fit: bounds has the unknown keys {unknown}, expected names of params: "
            f"{sorted(params)}."
        )
    pairs = {name: bounds.get(name, (None, None)) for name in params}
    for name, pair in pairs.items():
        if not _is_pair(pair):
            raise ValueError(f"curve_fit: bounds[{name!r}] = {pair!r}, expected (lower, upper).")
    open_ends = (-jnp.inf, jnp.inf)
    return tuple(
        _ordered_like(
            {name: end if pair[i] is None else pair[i] for name, pair in pairs.items()}, params
        )
        for i, end in enumerate(open_ends)
    )


def _ordered_like(side: Any, params: Any) -> Any:
    """Order one side of the bounds like the params."""
    # JAX sorts the keys of a dict but not of an OrderedDict, so the trees would not match.
    if isinstance(params, OrderedDict) and isinstance(side, dict) and set(side) == set(params):
        return OrderedDict((name, side[name]) for name in params)
    return side


def bounds_as_lists(bounds: Any, names: tuple[str, ...]) -> Any:
    """Convert bounds keyed by name to a pair of arrays in the order of the names."""
    if _is_pair(bounds) and all(isinstance(s, dict) and set(s) == set(names) for s in bounds):
        bounds = {name: (bounds[0][name], bounds[1][name]) for name in names}
    if not isinstance(bounds, dict):
        return bounds
    return tuple(
        _as_array([side[name] for name in names])
        for side in bounds_by_name(bounds, dict.fromkeys(names))
    )


def checked_bounds(bounds: Any) -> Bounds | None:
    """Check the bounds and return them as a pair, or None if all are infinite."""
    if bounds is None:
        return None
    bounds = bounds_pair(bounds, "curve_fit: ")
    if all(map(_is_pair, bounds)) and _are_pairs_of_ends(*bounds):
        raise ValueError(
            f"curve_fit: bounds = {bounds!r} has a lower bound above its upper bound, or only "
            "equal bounds, expected a pair (lower, upper). To convert one pair per param, use "
            "tuple(zip(*bounds))."
        )
    lower, upper = (_as_array(side) for side in bounds)
    leaves = jax.tree.leaves((lower, upper))
    is_concrete = not any(isinstance(leaf, Tracer) for leaf in leaves)
    is_infinite = is_concrete and all(np.all(np.isinf(np.asarray(leaf, float))) for leaf in leaves)
    return None if is_infinite else (lower, upper)


def broadcast_bounds(bounds: Bounds, start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Broadcast lower and upper bounds to the shape of the initial guess."""
    try:
        sides = (jnp.broadcast_to(jnp.asarray(s, start.dtype), start.shape) for s in bounds)
        lower, upper = sides
    except ValueError:
        raise ValueError(
            f"curve_fit: bounds have shapes {[jnp.shape(side) for side in bounds]}, expected "
            f"{start.shape}, one number for each param of f."
        ) from None
    return lower, upper


def bounds_of_numbers(bounds: Any, start: jax.Array, names: tuple[str, ...]) -> Bounds | None:
    """Check the bounds and the initial guess of a vector, and return finite bounds or None."""
    box = checked_bounds(bounds_as_lists(bounds, names))
    if box is not None:
        check_bounds(*broadcast_bounds(box, start), start, lambda i: names[i[0]], "curve_fit: ")
    return box


def _is_pair(side: Any) -> bool:
    return isinstance(side, (tuple, list)) and len(side) == 2


def _are_pairs_of_ends(lower: Any, upper: Any) -> bool:
    """Whether a bound is crossed, or all bounds are equal, so that no param is free."""
    known = [
        pair
        for pair in zip(lower, upper, strict=True)
        if not any(end is None or isinstance(end, Tracer) for end in pair)
    ]
    crossed = any(np.any(low > high) for low, high in known)
    all_equal = len(known) == len(lower) and all(np.all(low == high) for low, high in known)
    return crossed or all_equal


def _as_array(side: Any) -> Any:
    """Convert a list or tuple of numbers to an array, and return others unchanged."""
    return jnp.asarray(side, default_float()) if is_numbers(side) and not is_scalar(side) else side


def is_numbers(p0: Any) -> bool:
    """Whether `p0` is a number, or a list, tuple or vector of numbers, as in SciPy."""
    if isinstance(p0, (list, tuple)) and not hasattr(p0, "_fields"):
        return all(map(is_scalar, p0))
    return is_scalar(p0) or getattr(p0, "ndim", None) == 1


def is_scalar(v: Any) -> bool:
    """Whether a value is a Python number or an array without axes."""
    return isinstance(v, (int, float)) or getattr(v, "ndim", None) == 0
