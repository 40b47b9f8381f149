"""Bounds on params, as vectors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import leaves_with_names, shown, where
from fnopt.residuals._prefix import as_leaf, broadcast_prefix


class Box(NamedTuple):
    """The least and the largest value of every parameter; infinite where there is none."""

    lower: jax.Array  # [n]
    upper: jax.Array  # [n]

    def is_feasible(self) -> jax.Array:
        """Whether there is a point in it, which may be the only one: equal bounds hold a param."""
        inf = jnp.inf
        return jnp.all((self.lower <= self.upper) & (self.lower < inf) & (self.upper > -inf))

    def is_boundless(self) -> bool:
        """Whether it is known that all bounds are infinite."""
        if isinstance(self.lower, Tracer) or isinstance(self.upper, Tracer):
            return False
        return bool(np.all(np.isinf(self.lower)) and np.all(np.isinf(self.upper)))

    def nearest(self, x: jax.Array) -> jax.Array:
        """The point of the box nearest to `x`."""
        return jnp.clip(x, self.lower, self.upper)

    def side(self, x: jax.Array) -> jax.Array:
        """-1 for params on their lower bound, 1 on their upper one, else 0; `int32[n]`."""
        return (x >= self.upper).astype(jnp.int32) - (x <= self.lower).astype(jnp.int32)

    def held(self, x: jax.Array, gradient: jax.Array) -> jax.Array:
        """Which params sit on a bound that the cost pushes them against, as a mask of `[n]`."""
        low = (x <= self.lower) & (gradient >= 0)
        high = (x >= self.upper) & (gradient <= 0)
        return low | high


def box_of(bounds: Any, params: Any, dtype: Any, *, may_be_equal: bool = False) -> list[Box] | None:
    """Lays bounds along params, leaf by leaf.

    Args:
        bounds: `(lower, upper)`: each a number for all, or a tree like the params, or like their
            top, of arrays that broadcast to them; None for no bound.
        params: The params, which have to be inside.
        dtype: The dtype to compare in.
        may_be_equal: Whether the two bounds of a param may be the same, which holds it.

    Returns:
        A box of flat vectors for every leaf of the params; None without any bound.

    Raises:
        TypeError: If `bounds` isn't a pair.
        ValueError: If a bound doesn't fit the params, isn't below the upper one, or the params
            are outside.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import box_of
        >>> box_of((0.0, {"a": 1.0, "b": None}), {"a": 0.5, "b": 2.0}, jnp.float32)[1].upper
        Array([inf], dtype=float32)
    """
    if bounds is None:
        return None
    # A SciPy Bounds object has the two as attributes.
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        bounds = (bounds.lb, bounds.ub)
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise TypeError(
            f"{where()}bounds = {bounds!r}, expected a pair (lower, upper). Pairs for each param "
            "are tuple(zip(*bounds))."
        )
    sides = [
        broadcast_prefix(_without_none(side, open_end), params, "bounds")
        for side, open_end in zip(bounds, (-jnp.inf, jnp.inf), strict=True)
    ]
    pairs, _ = leaves_with_names(params)
    return [
        _leaf_box(lower, upper, leaf, path, dtype, may_be_equal)
        for lower, upper, (path, leaf) in zip(*sides, pairs, strict=True)
    ]


def _without_none(side: Any, open_end: float) -> Any:
    """Numbers in a list or tuple, with an infinite one in place of None."""
    if type(side) not in (list, tuple):
        return side
    return type(side)(open_end if x is None else x for x in side)


def _leaf_box(lower: Any, upper: Any, leaf: Any, path: str, dtype: Any, may_be_equal: bool) -> Box:
    lower = -jnp.inf if lower is None else lower
    upper = jnp.inf if upper is None else upper
    box = Box(*(_side(side, leaf, path, dtype) for side in (lower, upper)))
    _check(box, jnp.asarray(leaf, dtype), path, may_be_equal)
    return box


def _side(value: Any, leaf: Any, path: str, dtype: Any) -> jax.Array:
    if isinstance(value, Tracer):
        return as_leaf(value, leaf, path, "bounds", dtype)
    with jax.ensure_compile_time_eval():  # what is known can be looked at under jit as well
        return as_leaf(value, leaf, path, "bounds", dtype)


def _check(box: Box, x: jax.Array, path: str, may_be_equal: bool) -> None:
    if isinstance(box.lower, Tracer) or isinstance(box.upper, Tracer):
        return
    lower, upper = np.asarray(box.lower), np.asarray(box.upper)
    crossed = ~(lower <= upper) if may_be_equal else ~(lower < upper)
    if np.any(crossed):
        i = int(np.argmax(crossed))
        raise ValueError(
            f"{where()}bounds of {_entry(path, x, i)} are crossed: lower {lower[i]} and upper "
            f"{upper[i]} leave no room. To hold a parameter, use fnopt.fixed()."
        )
    if isinstance(x, Tracer):
        return
    start = np.ravel(np.asarray(x))
    outside = (start < lower) | (start > upper)
    if np.any(outside):
        i = int(np.argmax(outside))
        raise ValueError(
            f"{where()}{_entry(path, x, i)} starts at {start[i]}, outside its bounds "
            f"[{lower[i]}, {upper[i]}]. Start inside them."
        )


def _entry(path: str, leaf: Any, i: int) -> str:
    """An entry of the params for a message."""
    place = [int(k) for k in np.unravel_index(i, leaf.shape)]
    return (shown(path) if path else "params") + (f"{place}" if place else "")
