"""The params-shaped parts of a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


@jax.tree_util.register_pytree_node_class
class _Params:
    """Stands for the params; a tree without leaves, so that every `init` takes it."""

    def tree_flatten(self) -> tuple[tuple[()], None]:
        return (), None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> _Params:
        del aux, children
        return cls()


def map_params(
    initable: Any,
    f: Callable[..., Any],
    state: Any,
    /,
    *rest: Any,
    transform_non_params: Callable[..., Any] | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Map a function over the parts of a state that have the structure of the parameters.

    Args:
        initable: The optimizer, or its `init`.
        f: Applied to every leaf of every slot (and what `rest` has at its place). Leaves that a
            mask leaves out stay None.
        state: The state (a tree of anything of its structure, shardings for example).
        *rest: Trees like the params.
        transform_non_params: Applied to all other leaves; by default they stay.
        is_leaf: As in `jax.tree.map`, inside the slots.

    Returns:
        A tree of the structure of `state`.

    Raises:
        ValueError: If the state isn't that of the optimizer.

    Example:
        >>> from fnopt import tree
        >>> tx = fnopt.adam(1e-3)
        >>> state = tx.init({"w": jnp.ones(2)})
        >>> names = {"w": "a sharding"}
        >>> tree.map_params(tx, lambda leaf, name: name, state, names)[0].mu
        {'w': 'a sharding'}
    """
    init = initable.init if hasattr(initable, "init") else initable
    stop = is_leaf or (lambda x: False)
    maps_none = stop(None)

    def at_leaf(x: Any, *others: Any) -> Any:
        return f(x, *others) if x is not None or maps_none else None

    def map_part(part: Any, value: Any) -> Any:
        if isinstance(part, _Params):
            return jax.tree.map(at_leaf, value, *rest, is_leaf=lambda x: x is None or stop(x))
        return value if transform_non_params is None else transform_non_params(value)

    return jax.tree.map(map_part, init(_Params()), state, is_leaf=lambda x: isinstance(x, _Params))
