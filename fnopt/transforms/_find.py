"""Search for a state inside another one by its class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnopt.core import EmptyState


def states_of(state: Any, kind: type) -> list[Any]:
    """All states of a class inside a state."""
    if isinstance(state, kind):
        return [state]
    if isinstance(state, EmptyState) or not isinstance(state, (tuple, list, dict)):
        return []
    parts = state.values() if isinstance(state, dict) else state
    return [found for part in parts for found in states_of(part, kind)]


def find_state(state: Any, kind: type, who: str, maker: str) -> Any:
    """The one state of a class inside a state.

    Raises:
        ValueError: If there is none, or more than one.
    """
    found = states_of(state, kind)
    _check_number(len(found), who, maker)
    return found[0]


def _check_number(found: int, who: str, maker: str, what: str = "in this state") -> None:
    if found != 1:
        raise ValueError(
            f"{who}: {found} states of {maker} are {what}, expected one. Give the "
            "optimizer's state, as its update returned it; take one of several out of it with "
            "fnopt.named(tx, state)."
        )


def read_slot(
    params: Any,
    state: Any,
    kind: type,
    slot: str,
    read: Callable[[Any, Any, Any], Any],
    who: str,
    maker: str,
) -> Any:
    """The params with `read(kept, p, part)` for the leaves that a state of a class keeps a part of.

    Several states may keep parts of different leaves, as the parts of a partition do. Leaves that
    no state keeps anything of (frozen ones, others of a mask) are the params themselves.

    Raises:
        ValueError: If there is no such state, or more than one keeps a part of the same leaf.
    """
    found = states_of(state, kind)
    _check_number(min(len(found), 1), who, maker)
    leaves, treedef = jax.tree.flatten(params)
    try:
        columns = [treedef.flatten_up_to(getattr(kept, slot)) for kept in found]
    except ValueError:
        raise ValueError(
            f"{who}: the state and the params have different structures, expected the params that "
            f"the state was made for. Inside of flatten slots are vectors: put {maker} around it."
        ) from None

    def read_leaf(p: Any, *parts: Any) -> Any:
        own = [(kept, x) for kept, x in zip(found, parts, strict=True) if x is not None]
        _check_number(max(len(own), 1), who, maker, "of one leaf")
        return read(own[0][0], p, own[0][1]) if own else p

    return treedef.unflatten(map(read_leaf, leaves, *columns))
