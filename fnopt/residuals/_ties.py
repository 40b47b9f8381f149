"""Tied params, in the order in which they depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from fnopt.core import shown, where, written_for_jax


class _NotYetError(Exception):
    """The error for the use of a param that isn't computed yet."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class _Pending:
    """Stands in a tree for a param that isn't computed yet; any use of it raises `_NotYetError`."""

    def __init__(self, index: int) -> None:
        self.__dict__["_index"] = index

    def __getattr__(self, name: str) -> NoReturn:
        raise _NotYetError(self.__dict__["_index"])


def _used(self: _Pending, *_: Any) -> NoReturn:
    raise _NotYetError(self.__dict__["_index"])


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul")
_OTHERS = ("neg", "pos", "abs", "float", "int", "bool", "index", "len", "iter", "getitem")
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne", "array", "round", "complex")
for _name in (*_BINARY, *(f"r{name}" for name in _BINARY), *_OTHERS, *_COMPARED):
    setattr(_Pending, f"__{_name}__", _used)  # Python looks for these at the class


def with_ties(
    leaves: list[Any],
    ties: dict[int, Callable[[Any], Any]],
    pairs: list[tuple[str, Any]],
    treedef: Any,
) -> Any:
    """The tree with its tied leaves, each after those that it uses.

    Args:
        leaves: The leaves; what stands at the places of the tied ones isn't read.
        ties: The functions of the tree, by the places of the leaves that they give.
        pairs: Path and start of every leaf.
        treedef: The structure of the tree.

    Returns:
        The tree.

    Raises:
        ValueError: If ties lead back to where they started, or a leaf gets another shape.
    """
    leaves = [_Pending(i) if i in ties else leaf for i, leaf in enumerate(leaves)]

    def compute(i: int, above: tuple[int, ...]) -> None:
        if i in above:
            circle = [repr(pairs[k][0]) for k in (*above[above.index(i) :], i)]
            raise ValueError(
                f"{where()}tied params go round in a circle: {' needs '.join(circle)}. Leave one "
                "of them free."
            )
        while True:
            try:
                with written_for_jax("tied", "the function", is_another=True):
                    value = jnp.asarray(ties[i](jax.tree.unflatten(treedef, leaves)))
                break
            except _NotYetError as missing:
                needed = missing.index
            except (TypeError, ValueError):
                # A function that is compiled already refuses what is no array without using it.
                others = (k for k in ties if k != i and k not in above)
                needed = next((k for k in others if isinstance(leaves[k], _Pending)), None)
                if needed is None:
                    raise
            compute(needed, (*above, i))
        path, start = pairs[i]
        leaves[i] = _like(value, start, path)

    for i in ties:
        if isinstance(leaves[i], _Pending):
            compute(i, ())
    return jax.tree.unflatten(treedef, leaves)


def _like(value: jax.Array, start: Any, path: str) -> jax.Array:
    if value.shape != jnp.shape(start):
        raise ValueError(
            f"{where()}{shown(path)} is tied to an expression of shape {value.shape}, "
            f"expected {jnp.shape(start)}."
        )
    return value.astype(jnp.result_type(start))
