"""A state with its slots in another form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fnopt.core._inspect import _may_be_state, _slot_fields


def map_slots(fn: Callable[[str, Any], Any], state: Any, path: tuple[str, ...] = ()) -> Any:
    """The state with `fn(path, slot)` in place of every slot; the path is such as `'1/trace'`."""
    if not _may_be_state(state):
        return state
    if hasattr(state, "_fields"):
        own, parts = _slot_fields(state), state._asdict()
    else:
        own, parts = set(), state
    items = parts.items() if isinstance(parts, dict) else enumerate(parts)
    new = {}
    for name, part in items:
        here = (*path, str(name))
        new[name] = fn("/".join(here), part) if name in own else map_slots(fn, part, here)
    if hasattr(state, "_fields"):
        return type(state)(**new)
    return new if isinstance(state, dict) else type(state)(new.values())
