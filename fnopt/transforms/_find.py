"""A state inside another one, by its class."""

from __future__ import annotations

from typing import Any

from fnopt.core import EmptyState


def states_of(state: Any, kind: type) -> list[Any]:
    """All states of a class inside a state."""
    if isinstance(state, kind):
        return [state]
    if isinstance(state, EmptyState) or not isinstance(state, (tuple, list, dict)):
        return []
    parts = state.values() if isinstance(state, dict) else state
    return [found for part in parts for found in states_of(part, kind)]


def found_state(state: Any, kind: type, who: str, maker: str) -> Any:
    """The one state of a class inside a state.

    Raises:
        ValueError: If there is none, or more than one.
    """
    found = states_of(state, kind)
    if len(found) != 1:
        raise ValueError(
            f"{who}: {len(found)} states of {maker} are in this state, expected one. Give the "
            "optimizer's state, as its update returned it; take one of several out of it with "
            "fnopt.named(tx, state)."
        )
    return found[0]
