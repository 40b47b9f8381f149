"""Search of states by fnopt's or optax's class names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt import tree as own
from fnopt.interop.optax_api._types import find_state


def get(
    tree: Any, key: Any, default: Any = None, filtering: Callable[[Any, Any], bool] | None = None
) -> Any:
    """Get the only entry with a name; optax's name of a state class is also accepted."""
    return own.get(tree, _own_name(key), default, filtering)


def get_all_with_path(
    tree: Any, key: Any, filtering: Callable[[Any, Any], bool] | None = None
) -> list[tuple[Any, Any]]:
    """List all entries with a name; optax's name of a state class is also accepted."""
    return own.get_all_with_path(tree, _own_name(key), filtering)


def sum(tree: Any, associative_reduction: bool = False) -> Any:
    """Sum of all elements; with `associative_reduction`, leaves are summed pairwise."""
    if not associative_reduction:
        return own.sum(tree)
    return jax.tree.reduce_associative(jnp.add, jax.tree.map(jnp.sum, tree), identity=0)


def _own_name(key: Any) -> Any:
    state = find_state(key) if isinstance(key, str) else None
    return key if state is None else state.__name__
