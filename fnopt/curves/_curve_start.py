"""The start of a curve fit, and its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import default_float, is_inexact
from fnopt.curves._signature import check_count_of_params, check_takes_tree, positional
from fnopt.jacobians import ravel
from fnopt.residuals import floating_start

Bounds = tuple[Any, Any]


def start_of(f: Callable[..., Any], p0: Any, bounds: Bounds | None = None) -> tuple[Any, bool]:
    """The start, and whether it is unpacked into arguments of `f`."""
    if p0 is None:
        return _inside(bounds, _count_parameters(f)), True
    if not _is_plain(p0):
        p0 = floating_start(p0)
        ravel(p0, "p0")  # refuses what isn't a tree of floating arrays
        check_takes_tree(f, None, p0)
        return p0, False
    p = jnp.atleast_1d(jnp.asarray(p0))
    if not is_inexact(p):
        p = p.astype(default_float())
    check_count_of_params(f, p.size)
    return p, True


def checked_bounds(bounds: Any) -> Bounds | None:
    """The bounds as a pair; None where they bound nothing."""
    if bounds is None:
        return None
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        bounds = (bounds.lb, bounds.ub)
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        pairs = isinstance(bounds, (tuple, list)) and all(map(_is_pair, bounds))
        hint = " Pairs for each param are tuple(zip(*bounds))." if pairs and bounds else ""
        raise TypeError(f"curve_fit: bounds = {bounds!r}, expected a pair (lower, upper).{hint}")
    lower, upper = (_side(side) for side in bounds)
    leaves = jax.tree.leaves((lower, upper))
    if all(map(_is_infinite, leaves)):
        return None
    return lower, upper


def _is_pair(side: Any) -> bool:
    return isinstance(side, (tuple, list)) and len(side) == 2


def _is_infinite(bound: Any) -> bool:
    return not isinstance(bound, Tracer) and bool(np.all(np.isinf(np.asarray(bound, float))))


def _side(side: Any) -> Any:
    """One side of the bounds; numbers in a row as an array."""
    return jnp.asarray(side, default_float()) if _is_plain(side) and not _is_scalar(side) else side


def _inside(bounds: Bounds | None, n: int) -> jax.Array:
    r"""SciPy's start: 1, in the middle of two bounds, or 1 from the only one."""
    dtype = default_float()
    one = jnp.ones(n, dtype)
    if bounds is None:
        return one
    try:
        lower, upper = (jnp.broadcast_to(jnp.asarray(side, dtype), (n,)) for side in bounds)
    except ValueError:
        raise ValueError(
            f"curve_fit: bounds have shapes {[jnp.shape(side) for side in bounds]}, expected one "
            f"number for each of the {n} params of f."
        ) from None
    start = jnp.where(jnp.isfinite(lower), lower + 1, one)
    start = jnp.where(jnp.isfinite(upper), upper - 1, start)
    both = jnp.isfinite(lower) & jnp.isfinite(upper)
    return jnp.where(both, lower / 2 + upper / 2, start)


def _is_plain(p0: Any) -> bool:
    """Whether `p0` is numbers in a row, as SciPy takes them."""
    if isinstance(p0, (list, tuple)) and not hasattr(p0, "_fields"):
        return all(map(_is_scalar, p0))
    return _is_scalar(p0) or getattr(p0, "ndim", None) == 1


def _is_scalar(v: Any) -> bool:
    return isinstance(v, (int, float)) or getattr(v, "ndim", None) == 0


def _count_parameters(f: Callable[..., Any]) -> int:
    try:
        _, most, any_number = positional(f)
    except ValueError:
        most, any_number = 0, True
    if any_number or most < 2:
        raise ValueError(
            "curve_fit: the number of params can't be read from the signature of f; expected "
            "f(x, a, b, ...), or give p0."
        )
    return most - 1
