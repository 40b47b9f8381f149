"""Report lines with the values of params."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import count_text, leaves_with_names

_MAX_LINES = 10  # largest number of params that are listed in a report without standard errors


def value_lines(params: Any, at_bound: Any = None) -> list[str]:
    """Return the report lines with the values of params; for many params, only their number.

    Args:
        params: The params.
        at_bound: A tree like the params, with -1 and 1 for params on their lower and upper bound.
    """
    leaves = leaves_with_names(params)[0]
    bounds = [0] * len(leaves) if at_bound is None else jax.tree.leaves(at_bound)
    numeric = [
        (path, leaf, np.broadcast_to(side, np.shape(leaf)))
        for (path, leaf), side in zip(leaves, bounds, strict=True)
        if _is_number(leaf)
    ]
    sides = [side for _, _, leaf_sides in numeric for side in np.ravel(leaf_sides).tolist()]
    if len(sides) > _MAX_LINES:
        count = sum(map(bool, sides))
        note = f", {count} on a bound" if count else ""
        return [f"  {len(sides)} params in {count_text(len(numeric), 'leaf', 'leaves')}{note}"]
    names = [name for path, leaf, _ in numeric for name in entry_names(path, np.shape(leaf))]
    values = [value for _, leaf, _ in numeric for value in np.ravel(_wide(leaf)).tolist()]
    width = max(map(len, names), default=0)
    return [
        f"  {name:<{width}}  {v:.6g}{bound_note(side)}"
        for name, v, side in zip(names, values, sides, strict=True)
    ]


def bound_note(side: int) -> str:
    """Return the report's note that a param is on its lower or upper bound."""
    return f"   (at its {'lower' if side < 0 else 'upper'} bound)" if side else ""


def entry_names(path: str, shape: tuple[int, ...]) -> list[str]:
    """Return the names of the numbers in a leaf, such as `'w[0, 1]'`."""
    if not shape:
        return [path or "x"]
    return [f"{path or 'x'}[{', '.join(map(str, i))}]" for i in np.ndindex(*shape)]


def _is_number(leaf: Any) -> bool:
    """Whether a leaf is a number or a numeric array, since fixed params may be any object."""
    if isinstance(leaf, jax.Array):
        return jnp.issubdtype(leaf.dtype, np.number)
    return np.asarray(leaf).dtype.kind in "iufc"


def _wide(leaf: Any) -> np.ndarray:
    values = np.asarray(leaf)
    return values.astype(complex if np.iscomplexobj(values) else float)
