"""Search and replacement in a state, by name or by parameter."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import tree_util

from fnopt.core import Value
from fnopt.errors import path_name
from fnopt.tree._matching import is_named_tuple


@dataclasses.dataclass(frozen=True)
class NamedTupleKey:
    """A path entry for a field of a NamedTuple.

    Attributes:
        tuple_name: The name of the NamedTuple's class, `'ScaleByAdamState'`.
        name: The name of the field, `'mu'`.
    """

    tuple_name: str
    name: str

    def __str__(self) -> str:
        return f"{self.tuple_name}.{self.name}"


_Path = tuple[Any, ...]
_Filter = Callable[[_Path, Any], bool]


def _children(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Children of a node with their keys, and the structure of the node."""
    if node is None or tree_util.all_leaves([node]):  # None is a node without children
        return [], None
    # Children are treated as leaves, so that only this level is flattened.
    pairs, treedef = tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if is_named_tuple(node):
        owner = type(node).__name__
        keys = [NamedTupleKey(owner, name) for name in node._fields]
        return list(zip(keys, (child for _, child in pairs), strict=True)), treedef
    return [(path[0], child) for path, child in pairs], treedef


def _is_absent(key: Any, child: Any) -> bool:
    """Whether a state doesn't use the field, such as the count with a constant learning rate."""
    return child is None and isinstance(key, NamedTupleKey)


def _name(key: Any) -> Any:
    """Name of a key; None for indices of lists and tuples."""
    if isinstance(key, (NamedTupleKey, tree_util.GetAttrKey)):
        return key.name
    return key.key if isinstance(key, tree_util.DictKey) else None


def _class_name(node: Any) -> str | None:
    """Class name of a state or transform; None for other nodes."""
    return type(node).__name__ if is_named_tuple(node) or isinstance(node, Value) else None


def _walk(node: Any, path: _Path = ()) -> Iterator[tuple[Any, _Path, Any]]:
    """Yield `(name, path, node)` for a node and all nodes below it that have a name."""
    if (name := _class_name(node)) is not None:
        yield name, path, node
    for key, child in _children(node)[0]:
        child_path = (*path, key)
        if (name := _name(key)) is not None and not _is_absent(key, child):
            yield name, child_path, child
        yield from _walk(child, child_path)


def get_all_with_path(
    tree: Any, key: Any, filtering: _Filter | None = None
) -> list[tuple[_Path, Any]]:
    """List all subtrees with a given name, with their paths.

    Args:
        tree: A tree: the state of an optimizer (fnopt's or optax's), an optimizer, a dict.
        key: The name of a field, the key of a dict, or the name of a state's class.
        filtering: `filtering(path, value) -> bool`: whether to include a match. A path consists of
            JAX's keys, and of `NamedTupleKey`s for the fields of NamedTuples.

    Returns:
        A list of `(path, value)` pairs.

    Example:
        >>> from fnopt import tree
        >>> state = fnopt.adam(1e-3).init({"w": jnp.ones(2)})
        >>> [(str(path[-1]), value) for path, value in tree.get_all_with_path(state, "mu")]
        [('ScaleByAdamState.mu', {'w': Array([0., 0.], dtype=float32)})]
    """
    matches = [(path, value) for name, path, value in _walk(tree) if name == key]
    return [(path, value) for path, value in matches if filtering is None or filtering(path, value)]


def get(tree: Any, key: Any, default: Any = None, filtering: _Filter | None = None) -> Any:
    """Return the only subtree with a given name.

    Args:
        tree: A tree: the state of an optimizer (fnopt's or optax's), an optimizer, a dict.
        key: The name of a field, the key of a dict, or the name of a state's class.
        default: The result if there is no match.
        filtering: `filtering(path, value) -> bool`: whether to include a match.

    Returns:
        The subtree, or `default` if there is no match.

    Raises:
        KeyError: If there are several matches; the message lists their paths.

    Example:
        >>> from fnopt import tree
        >>> tx = fnopt.adam(1e-3)
        >>> tree.get(tx.init({"w": jnp.ones(2)}), "mu"), tree.get(tx, "b1")
        ({'w': Array([0., 0.], dtype=float32)}, 0.9)
    """
    matches = get_all_with_path(tree, key, filtering)
    if len(matches) > 1:
        places = ", ".join(repr(path_name(path)) for path, _ in matches)
        steps = " fnopt.step_count(tx, state) is the number of steps." if key == "count" else ""
        raise KeyError(
            f"tree.get: got {len(matches)} values for {key!r}, at {places}; expected at most one. "
            "Choose one with filtering=lambda path, value: ..., or list all with "
            f"get_all_with_path.{steps}"
        )
    return matches[0][1] if matches else default


def set(tree: Any, filtering: _Filter | None = None, /, **kwargs: Any) -> Any:
    """Replace the subtrees with given names.

    Args:
        tree: A tree: the state of an optimizer (fnopt's or optax's), an optimizer, a dict.
        filtering: `filtering(path, value) -> bool`: whether to replace a match; by default all
            matches are replaced.
        **kwargs: New values, keyed by name. A number that replaces an array is cast to the dtype of
            the array, so the step isn't recompiled. Values of optimizers are checked as in their
            constructors.

    Returns:
        A tree of the same structure; all other subtrees are the same objects as before.

    Raises:
        KeyError: If a name has no match.

    Example:
        >>> from fnopt import tree
        >>> tree.set(fnopt.sgd(0.1), learning_rate=0.5)
        chain(scale_by_learning_rate(learning_rate=0.5))
    """
    names = {name for name, path, value in _walk(tree) if _passes_filter(filtering, path, value)}
    for name in kwargs:
        if name not in names:
            similar = difflib.get_close_matches(name, [n for n in names if isinstance(n, str)])
            hint = f" Did you mean {similar[0]!r}?" if similar else ""
            raise KeyError(
                f"tree.set: got the name {name!r}, expected the name of a field, dict key or class "
                f"in the tree.{hint}"
            )
    return _replace(tree, (), filtering, kwargs)


def _passes_filter(filtering: _Filter | None, path: _Path, value: Any) -> bool:
    return filtering is None or filtering(path, value)


def _replace(node: Any, path: _Path, filtering: _Filter | None, new: dict[str, Any]) -> Any:
    name = _class_name(node)
    if name in new and _passes_filter(filtering, path, node):
        return new[name]
    children, treedef = _children(node)
    values = []
    for key, child in children:
        location, name = (*path, key), _name(key)
        is_named = isinstance(name, str) and name in new and not _is_absent(key, child)
        is_match = is_named and _passes_filter(filtering, location, child)
        values.append(
            _strongly_typed_like(child, new[name])
            if is_match
            else _replace(child, location, filtering, new)
        )
    # An unchanged node isn't rebuilt, because the constructor of its class may reject the children.
    if all(a is b for a, (_, b) in zip(values, children, strict=True)):
        return node
    if isinstance(node, Value):
        fields = {_name(k): v for (k, _), v in zip(children, values, strict=True)}
        return dataclasses.replace(node, **fields)  # pyright: ignore[reportArgumentType]
    return treedef.unflatten(values)


def _strongly_typed_like(old: Any, new: Any) -> Any:
    # A Python number would make the state weakly typed, so the next step would compile again.
    if isinstance(old, jax.Array) and isinstance(new, (bool, int, float, complex)):
        return jnp.asarray(new, old.dtype)
    return new


@jax.tree_util.register_pytree_node_class
class _Params:
    """Placeholder of the params: a tree without leaves."""

    def tree_flatten(self) -> tuple[tuple[()], None]:
        return (), None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> _Params:
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
        f: The function, applied to every leaf of every slot (and the corresponding leaves of
            `rest`). Leaves of masked params remain None.
        state: The state, or another tree of its structure, such as a tree of shardings.
        *rest: Trees with the structure of the params.
        transform_non_params: A function applied to all other leaves; by default they are unchanged.
        is_leaf: As in `jax.tree.map`; applies inside slots only.

    Returns:
        A tree of the structure of `state`.

    Raises:
        ValueError: If the state doesn't belong to the optimizer.

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
    maps_none = stop(None)  # `is_leaf` may declare None a leaf, which is then mapped

    def apply_to_leaf(x: Any, *others: Any) -> Any:
        return f(x, *others) if x is not None or maps_none else None

    def map_part(part: Any, value: Any) -> Any:
        if isinstance(part, _Params):
            return jax.tree.map(apply_to_leaf, value, *rest, is_leaf=lambda x: x is None or stop(x))
        return value if transform_non_params is None else transform_non_params(value)

    # `init` of a placeholder returns a state with a placeholder in place of each slot.
    return jax.tree.map(map_part, init(_Params()), state, is_leaf=lambda x: isinstance(x, _Params))
