"""Check whether an optimizer can run on shards of leaves, based on its jaxpr."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from fnopt.distributed._packing import local_unsharded_leaves, row_shape
from fnopt.errors import leaf_text, leaves_with_names, where
from fnopt.programs import jaxprs
from fnopt.sharding import SHARD_SUM, UnshardedLeaves, shards_over

# Lengths that no other array of a program has, so an array with such a length is a leaf. The first
# length is prime, so that it isn't a product or quotient of sizes.
_PROBE, _MOST_LEAVES = 1_000_003, 100_000

# Primitives that combine elements of an array, or depend on their positions in the whole array.
_MIXING = frozenset(
    [
        *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"),
        *("reduce_xor", "argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin"),
        *("cumlogsumexp", "dot_general", "conv_general_dilated", "sort", "top_k", "fft"),
        *("concatenate", "split", "pad", "slice", "dynamic_slice", "dynamic_update_slice"),
        *("gather", "scatter", "scatter-add", "rev", "random_bits", "threefry2x32", "iota"),
    ]
)

# Primitives that only change shapes.
_FORM = frozenset(["broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy"])

_INSTEAD = (
    "Use a jitted step without named axes and with "
    "fnopt.distributed.state_sharding(tx, params, axis=...). The compiler divides any optimizer."
)


class ElementwiseProgram(NamedTuple):
    """Program of an optimizer's update: the shapes of its state, and its operations.

    Attributes:
        state: The shapes and dtypes of the state.
        steps: The primitives in program order, with the constants of the program.
        mixing: The first operation that mixes elements: the name of the transform and the
            primitive.
    """

    state: Any
    steps: list[Any]
    mixing: tuple[str, str] | None


def check_elementwise(
    tx: Any, updates: Any, params: Any, extra_args: Any, axes: tuple[str, ...]
) -> None:
    """Raise a ValueError if the update of `tx` needs whole leaves.

    Sums with support for shards (norms, inner products) are allowed, because they include all
    devices. Matrix methods are allowed, because they gather their matrices. The check compares the
    jaxprs for a shard and for the whole leaf, which differ if a method depends on the leaf's shape
    (factors of a matrix, a mean over elements).
    """
    functions = [name for name, x in extra_args.items() if callable(x)]
    if functions:
        raise ValueError(
            f"{where()}the extra argument {functions[0]!r} is a function of the whole "
            f"params, but each device updates a part. {_INSTEAD}"
        )
    reason = _reason(
        _Shapes(tx),
        _Shapes(updates),
        None if params is None else _Shapes(params),
        _Shapes(extra_args),
        axes,
    )
    if reason:
        raise ValueError(f"{where()}{reason}, but each device has a part. {_INSTEAD}")


@functools.lru_cache(maxsize=64)
def _reason(
    tx: _Shapes, updates: _Shapes, params: _Shapes | None, extras: _Shapes, axes: tuple[str, ...]
) -> str | None:
    given = _with_axes(updates.tree), None if params is None else _with_axes(params.tree)
    divided = _shard_shapes(given[0]), None if params is None else _shard_shapes(given[1])
    # Compare the programs for shards and for whole leaves: they are equal for an elementwise
    # update.
    shapes = {name: x.shape for name, x in leaves_with_names(updates.tree)[0]}
    leaves = local_unsharded_leaves(shapes, axes)._replace(is_probe=True)
    parts = _program(tx.tree, divided[0], divided[1], extras.tree, axes, leaves)
    if parts.mixing:
        return f"{parts.mixing[0]} needs the whole of a leaf ({parts.mixing[1]})"
    entire = _program(tx.tree, given[0], given[1], extras.tree, axes, leaves)
    named = (leaves_with_names(program.state)[0] for program in (entire, parts))
    for (name, x), (other, y) in zip(*named, strict=False):
        kept = x.shape == y.shape or not x.size or _is_leaf(y.shape)
        if name != other or not kept:
            return f"{leaf_text(name)} of the state, {list(x.shape)}, needs the whole of a leaf"
    if jax.tree.structure(entire.state) != jax.tree.structure(parts.state):
        return "the structure of the state needs the whole of a leaf"
    if entire.steps != parts.steps:
        return "the update depends on the shape of a leaf: it needs the whole"
    return None


def _program(
    tx: Any, updates: Any, params: Any, extras: Any, axes: tuple[str, ...], leaves: UnshardedLeaves
) -> ElementwiseProgram:

    with shards_over(axes, leaves):
        state = jax.eval_shape(lambda tx, p: tx.init(p), tx, updates if params is None else params)
        jaxpr = jax.make_jaxpr(lambda tx, u, s, p, extra_args: tx.update(u, s, p, **extra_args))(
            tx, updates, state, params, extras
        ).jaxpr
    operations = list(_operations(jaxpr, tx._place))
    mixing = ((name, eqn.primitive.name) for name, eqn in operations if _mixes_elements(eqn))
    # The constants of the programs are compared too, because a mean divides by the size of the
    # leaf.
    steps = [
        (eqn.primitive.name, *(str(x.val) for x in eqn.invars if _is_scalar(x)))
        for _, eqn in operations
        if eqn.primitive.name not in _FORM
    ]
    return ElementwiseProgram(state, steps, next(mixing, None))


def _operations(jaxpr: jex.Jaxpr, name: str) -> Iterator[tuple[str, jex.JaxprEqn]]:
    """All equations outside of sums over shards, each with its enclosing jitted function."""
    for eqn in jaxpr.eqns:
        if any(SHARD_SUM in part for part in jaxprs.name_scopes(eqn)):
            continue
        yield name, eqn
        inside = eqn.params.get("name", name)
        for sub in jaxprs.sub_jaxprs(eqn):
            yield from _operations(sub.jaxpr, name if inside.startswith("_") else inside)


def _mixes_elements(eqn: jex.JaxprEqn) -> bool:
    shapes = [getattr(x.aval, "shape", ()) for x in (*eqn.invars, *eqn.outvars)]
    return eqn.primitive.name in _MIXING and any(map(_is_leaf, shapes))


def _is_leaf(shape: tuple[int, ...]) -> bool:
    return any(_PROBE <= length < _PROBE + _MOST_LEAVES for length in shape)


def _is_scalar(x: Any) -> TypeGuard[jex.Literal]:
    return isinstance(x, jex.Literal) and jnp.ndim(x.val) == 0


def _with_axes(tree: Any) -> Any:
    """Shapes of leaves; scalars are given one axis, like their shards."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape or (1,), x.dtype), tree)


def _shard_shapes(tree: Any) -> Any:
    """Shapes of shards; leaves of equal shape have shards of equal shape."""
    leaves, treedef = jax.tree.flatten(tree)
    first: dict[Any, int] = {}
    alike = [first.setdefault((x.shape, x.dtype), i) for i, x in enumerate(leaves)]
    lengths = [_PROBE + i if x.size else 0 for i, x in zip(alike, leaves, strict=True)]
    shapes = [row_shape(x, length) for x, length in zip(leaves, lengths, strict=True)]
    pairs = zip(shapes, leaves, strict=True)
    return treedef.unflatten([jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in pairs])


class _Shapes:
    """Shapes and dtypes of a tree as a hashable key."""

    def __init__(self, tree: Any) -> None:
        leaves, treedef = jax.tree.flatten(tree)
        shapes = [jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)) for x in leaves]
        self.tree = treedef.unflatten(shapes)
        self._key = treedef, tuple((x.shape, x.dtype) for x in shapes)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self._key == other._key
