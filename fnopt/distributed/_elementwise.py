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

# Artificial lengths of shards, `_PROBE` to `_PROBE + _MAX_LEAVES`: an array with such a length is a
# leaf. The first length is prime, so that it isn't a product of the sizes of other arrays.
_PROBE, _MAX_LEAVES = 1_000_003, 100_000

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
_RESHAPING = frozenset(["broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy"])

_ADVICE = (
    "Use a jitted step without named axes and with "
    "fnopt.distributed.state_sharding(tx, params, axis=...), which supports every optimizer."
)


class ElementwiseProgram(NamedTuple):
    """Operations of an optimizer's update, and the shapes of the state.

    Attributes:
        state: The shapes and dtypes of the state.
        steps: The primitives in program order, with the constants of the program.
        mixing: The first operation that mixes elements, as name of the transform and name of the
            primitive; None if there is no such operation.
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
    jaxprs for a shard and for the whole leaf. These jaxprs differ if a method depends on the leaf's
    shape (factors of a matrix, a mean over elements).
    """
    functions = [name for name, x in extra_args.items() if callable(x)]
    if functions:
        raise ValueError(
            f"{where()}the extra argument {functions[0]!r} is a function of whole params, expected "
            f"an array, because each device updates a shard. {_ADVICE}"
        )
    reason = _why_not_elementwise(
        _Shapes(tx),
        _Shapes(updates),
        None if params is None else _Shapes(params),
        _Shapes(extra_args),
        axes,
    )
    if reason:
        raise ValueError(
            f"{where()}{reason}, expected an elementwise update, because each device has a shard "
            f"of every leaf. {_ADVICE}"
        )


@functools.lru_cache(maxsize=64)
def _why_not_elementwise(
    tx: _Shapes, updates: _Shapes, params: _Shapes | None, extras: _Shapes, axes: tuple[str, ...]
) -> str | None:
    leaf_shapes = _with_axes(updates.tree), None if params is None else _with_axes(params.tree)
    shard_shapes = (
        _shard_shapes(leaf_shapes[0]),
        None if params is None else _shard_shapes(leaf_shapes[1]),
    )
    # An elementwise update has the same program for shards and for whole leaves.
    shapes = {name: x.shape for name, x in leaves_with_names(updates.tree)[0]}
    leaves = local_unsharded_leaves(shapes, axes)._replace(is_probe=True)
    shard_program = _program(tx.tree, shard_shapes[0], shard_shapes[1], extras.tree, axes, leaves)
    if shard_program.mixing:
        return f"{shard_program.mixing[0]} needs whole leaves ({shard_program.mixing[1]})"
    leaf_program = _program(tx.tree, leaf_shapes[0], leaf_shapes[1], extras.tree, axes, leaves)
    states = (leaves_with_names(program.state)[0] for program in (leaf_program, shard_program))
    for (name, x), (other, y) in zip(*states, strict=False):
        is_like_leaf = x.shape == y.shape or not x.size or _is_leaf(y.shape)
        if name != other or not is_like_leaf:
            return f"{leaf_text(name)} of the state, of shape {x.shape}, needs whole leaves"
    if jax.tree.structure(leaf_program.state) != jax.tree.structure(shard_program.state):
        return "the structure of the state depends on the shapes of leaves"
    if leaf_program.steps != shard_program.steps:
        return "the update depends on the shapes of leaves"
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
    # The constants belong to the comparison, because a mean divides by the size of the leaf.
    steps = [
        (eqn.primitive.name, *(str(x.val) for x in eqn.invars if _is_scalar(x)))
        for _, eqn in operations
        if eqn.primitive.name not in _RESHAPING
    ]
    return ElementwiseProgram(state, steps, next(mixing, None))


def _operations(jaxpr: jex.Jaxpr, name: str) -> Iterator[tuple[str, jex.JaxprEqn]]:
    """Yield all equations outside of sums over shards, with the name of the jitted function."""
    for eqn in jaxpr.eqns:
        # Operations in this scope include the shards of all devices, so they may mix elements.
        if any(SHARD_SUM in part for part in jaxprs.name_scopes(eqn)):
            continue
        yield name, eqn
        callee = eqn.params.get("name", name)
        for sub in jaxprs.sub_jaxprs(eqn):
            yield from _operations(sub.jaxpr, name if callee.startswith("_") else callee)


def _mixes_elements(eqn: jex.JaxprEqn) -> bool:
    shapes = [getattr(x.aval, "shape", ()) for x in (*eqn.invars, *eqn.outvars)]
    return eqn.primitive.name in _MIXING and any(map(_is_leaf, shapes))


def _is_leaf(shape: tuple[int, ...]) -> bool:
    return any(_PROBE <= length < _PROBE + _MAX_LEAVES for length in shape)


def _is_scalar(x: Any) -> TypeGuard[jex.Literal]:
    return isinstance(x, jex.Literal) and jnp.ndim(x.val) == 0


def _with_axes(tree: Any) -> Any:
    """Shapes of leaves; a scalar gets one axis, because its shard has one axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape or (1,), x.dtype), tree)


def _shard_shapes(tree: Any) -> Any:
    """Shapes of shards with artificial lengths; leaves of equal shape have equal lengths."""
    leaves, treedef = jax.tree.flatten(tree)
    first: dict[Any, int] = {}
    groups = [first.setdefault((x.shape, x.dtype), i) for i, x in enumerate(leaves)]
    lengths = [_PROBE + i if x.size else 0 for i, x in zip(groups, leaves, strict=True)]
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
