"""The values of params, a line each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import leaves_with_names

_MOST = 10  # numbers with a line of their own, where no error says which of them matter


def value_lines(params: Any) -> list[str]:
    """The lines of a report with the values of params; of many only how many they are."""
    pairs = [(path, leaf) for path, leaf in leaves_with_names(params)[0] if _is_number(leaf)]
    size = sum(np.size(leaf) for _, leaf in pairs)
    if size > _MOST:
        return [f"  {size} params in {len(pairs)} leaves"]
    names = [name for path, leaf in pairs for name in entry_names(path, np.shape(leaf))]
    values = [value for _, leaf in pairs for value in np.ravel(_wide(leaf)).tolist()]
    width = max(map(len, names), default=0)
    return [f"  {name:<{width}}  {v:.6g}" for name, v in zip(names, values, strict=True)]


def entry_names(path: str, shape: tuple[int, ...]) -> list[str]:
    """The names of the numbers of a leaf: `'w[0, 1]'`."""
    if not shape:
        return [path or "x"]
    return [f"{path or 'x'}[{', '.join(map(str, i))}]" for i in np.ndindex(*shape)]


def _is_number(leaf: Any) -> bool:
    """Whether a leaf is a number or an array of them; what is held may be anything."""
    if isinstance(leaf, jax.Array):
        return jnp.issubdtype(leaf.dtype, np.number)
    return np.asarray(leaf).dtype.kind in "iufc"


def _wide(leaf: Any) -> np.ndarray:
    values = np.asarray(leaf)
    return values.astype(complex if np.iscomplexobj(values) else float)
