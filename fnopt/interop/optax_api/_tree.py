"""Finding things in states, where ours count more often than optax's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fnopt import tree as own
from fnopt.interop.optax_api._states import find_state


def get(
    tree: Any, key: Any, default: Any = None, filtering: Callable[[Any, Any], bool] | None = None
) -> Any:
    """The one thing of a name in a tree, as `fnopt.tree.get` finds it.

    The count for a learning rate, which optax has for schedules only, is passed over where there
    is another one.
    """
    key = _own_name(key)
    found = own.get_all_with_path(tree, key, filtering)
    others = [value for path, value in found if "ScaleByLearningRateState" not in str(path[-1:])]
    if len(found) > 1 and len(others) == 1:
        return others[0]
    return own.get(tree, key, default, filtering)


def get_all_with_path(
    tree: Any, key: Any, filtering: Callable[[Any, Any], bool] | None = None
) -> list[tuple[Any, Any]]:
    """Everything of a name in a tree; states by optax's names of their classes too."""
    return own.get_all_with_path(tree, _own_name(key), filtering)


def _own_name(key: Any) -> Any:
    state = find_state(key) if isinstance(key, str) else None
    return key if state is None else state.__name__
