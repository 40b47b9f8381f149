"""Which leaf of the params a leaf of a state belongs to."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnopt.core._paths import leaves_with_names


def owners(state: Any, params: Any) -> list[tuple[str, Any, Any]]:
    """For every leaf of a state: its name, itself, and the leaf of the params that it goes with.

    A slot repeats the structure of the params, so that the names of its leaves end with names of
    params: `'0/mu/dense/kernel'` belongs to `'dense/kernel'`. It has the same shape too, or one
    leading axis more (the memory of L-BFGS); what has another shape (factors of a matrix, a count)
    belongs to none: `None`.

    Args:
        state: The state of any optimizer; arrays or shapes.
        params: The params that it was made for; arrays or shapes.
    """
    known = dict(leaves_with_names(params)[0])
    return [(name, leaf, _owner(name, leaf, known)) for name, leaf in leaves_with_names(state)[0]]


def _owner(name: str, leaf: Any, known: dict[str, Any]) -> Any:
    parts, shape = name.split("/"), jnp.shape(leaf)
    for i in range(len(parts) + 1):  # the longest name first
        found = known.get("/".join(parts[i:]))
        if found is not None and jnp.shape(found) in (shape, shape[1:]):
            return found
    return None
