"""Which leaf of the params a leaf of a state belongs to."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnopt.core._paths import leaves_with_names


def owners(state: Any, params: Any) -> list[tuple[str, Any, Any]]:
    """For every leaf of a state: its name, itself, and the leaf of the params that it goes with.

    A slot repeats the structure of the params, so that the names of its leaves end with names of
    params: `'0/mu/dense/kernel'` belongs to `'dense/kernel'`. What has no such name (a count, the
    factors of a matrix) belongs to none: `None`. Whether it has the shape too says `fits`.

    Args:
        state: The state of any optimizer; arrays or shapes.
        params: The params that it was made for; arrays or shapes.
    """
    known = dict(leaves_with_names(params)[0])
    return [(name, leaf, _owner(name, leaf, known)) for name, leaf in leaves_with_names(state)[0]]


def _owner(name: str, leaf: Any, known: dict[str, Any]) -> Any:
    parts = name.split("/")
    ends = ["/".join(parts[i:]) for i in range(len(parts) + 1)]
    found = [end for end in ends if end in known]  # the longest name first
    fitting = [end for end in found if fits(leaf, known[end])]
    # A param that is the whole tree has no name: all names would end with it.
    return next((known[end] for end in fitting + found if end or fits(leaf, known[end])), None)


def fits(leaf: Any, owner: Any) -> bool:
    """Whether a leaf of a state has the shape of its param, or one leading axis more (a memory)."""
    shape = jnp.shape(leaf)
    return jnp.shape(owner) in (shape, shape[1:])
