"""Pytrees of objects of any kind: arrays are leaves, everything else is static."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.core import Value, is_array_like


@jax.tree_util.register_static
class _Static:
    """A leaf that isn't an array, compared by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Boxed(Value):
    """A tree whose leaves may be functions, strings or other objects."""

    tree: Any

    def opened(self) -> Any:
        """The original tree."""
        is_static = lambda node: isinstance(node, _Static)  # noqa: E731
        return jax.tree.map(
            lambda node: node.value if is_static(node) else node, self.tree, is_leaf=is_static
        )


def boxed(tree: Any) -> Boxed:
    """Make leaves that JAX can't take as arguments static."""
    return Boxed(jax.tree.map(lambda leaf: leaf if is_array_like(leaf) else _Static(leaf), tree))


def call_model(f: Any, passing: str, params: Any, x: Any) -> Any:
    """The model's values: `f(x, *params)`, `f(x, **params)` or `f(x, params)`."""
    if passing == "numbers":
        return f(x, *params)
    return f(x, **params) if passing == "names" else f(x, params)
