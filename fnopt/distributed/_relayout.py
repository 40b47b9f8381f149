"""Conversion of states between sharded and unsharded optimizers, including 8-bit codes."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fnopt.core import Transformation
from fnopt.distributed._meshes import put
from fnopt.distributed._sharded import mesh_of, shapes_by_name, sharded, undivided
from fnopt.distributed._state_sharding import init_sharded, state_sharding
from fnopt.errors import leaf_text, leaves_with_names
from fnopt.sharding import UnshardedLeaves, replicate, shards_over
from fnopt.transforms import is_coded, quantized_state
from fnopt.transforms.states import QuantizedStateState

Context = contextlib.AbstractContextManager[None]


def decode_slots(tx: Any, state: Any, params: Any) -> Any:
    """Decode the slots of a state."""

    def decode_state(over: sharded | None, tx: quantized_state, state: QuantizedStateState) -> Any:
        with contextlib.nullcontext() if over is None else _shards_of(over, state, params):
            inner = tx._map_slots(tx._decode, state.inner_state)
        return QuantizedStateState(state.count, inner)

    return _map_quantized(tx, state, decode_state)


def encode_slots(tx: Any, numbers: Any, params: Any) -> Any:
    """Encode the slots of a state, in this optimizer's blocks."""

    def encode_state(over: sharded | None, tx: quantized_state, state: QuantizedStateState) -> Any:
        known = None if over is None else over._unsharded_leaves(params)
        with shards_over((), known):
            return tx._encode(state.count, state.inner_state)

    return _map_quantized(tx, numbers, encode_state)


def _shards_of(over: sharded, state: Any, params: Any) -> Context:
    """Declare slots as shards, one per device of their mesh."""
    named = leaves_with_names(state, is_coded)[0]
    name, codes = next((name, x[0]) for name, x in named if is_coded(x))
    mesh = mesh_of(codes)
    if mesh is None or not {*over.axis} <= {*mesh.axis_names}:
        raise ValueError(
            f"{leaf_text(name)} of the state is in 8-bit codes and not on a mesh with the axis "
            f"{over.axis!r}, which gives the number of parts. Pass the state outside of jax.jit, "
            "on as many devices as it was made for (simulated devices will do)."
        )
    n = math.prod(mesh.shape[axis] for axis in over.axis)
    return shards_over((), UnshardedLeaves(shapes_by_name(params), n, lambda parts: parts))


def _map_quantized(tx: Any, state: Any, fn: Callable[..., Any]) -> Any:
    new = {id(part): fn(over, own, part) for over, own, part in _quantized_members(tx, state)}
    return jax.tree.map(lambda x: new.get(id(x), x), state, is_leaf=lambda x: id(x) in new)


def _quantized_members(
    tx: Transformation, state: Any, over: sharded | None = None
) -> Iterator[tuple[sharded | None, quantized_state, Any]]:
    """All quantized transforms, with the `sharded` around them and their states."""
    over = tx if isinstance(tx, sharded) else over
    if isinstance(tx, quantized_state):
        if any(isinstance(member.tx, sharded) for member in tx.members()):
            raise ValueError(
                "quantized_state is around sharded, so every device quantizes its own blocks and "
                "the layout is unknown. Put it inside: sharded(quantized_state(...), axis)."
            )
        yield over, tx, state
    for member in tx.members(state):
        yield from _quantized_members(member.tx, member.state, over)


def gather_state(tx: Any, state: Any, params: Any, *, requantize: bool = False) -> Any:
    """Convert the state of a `sharded` optimizer to the state of the optimizer inside.

    Use the result to evaluate an average of the params, or to save a checkpoint that can be
    restored on any number of devices.

    Args:
        tx: An optimizer that contains `sharded`.
        state: Its state, from outside of `jax.shard_map`, for any number of devices.
        params: The params; arrays or shapes.
        requantize: Whether to round codes (`quantized_state`) again in the blocks of the whole
            leaf, if their blocks cross shard boundaries; other codes are copied. The state must
            then be on its mesh, outside of `jax.jit`.

    Returns:
        The state of `tx.inner` (or of the chain around it without `sharded`).

    Raises:
        ValueError: If a leaf has too few elements for its param, or if blocks of codes cross shard
            boundaries and `requantize` is False.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> from fnopt import distributed
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> params = jax.device_put({"w": jnp.ones((2, 3))}, NamedSharding(mesh, P()))
        >>> tx = distributed.sharded(fnopt.adam(1e-3), axis="data")
        >>> state = tx.init(params)
        >>> whole = distributed.gather_state(tx, state, params)
        >>> fnopt.slots(state)["mu"]["w"].shape, fnopt.slots(whole)["mu"]["w"].shape
        ((1, 6), (2, 3))
    """
    # Only shapes are computed, so the state of the plain optimizer is never created.
    plain, target = undivided(tx), _undivided_state(tx, params)

    def gather_recoded() -> Any:
        numbers = decode_slots(tx, state, params)
        like = jax.eval_shape(lambda s: decode_slots(plain, s, params), target)
        return encode_slots(plain, _map_states(_unsharded_leaf, numbers, like), params)

    anew = _where_blocks_differ(state, target, gather_recoded if requantize else None)
    return _map_states(_unsharded_leaf, state, target, anew)


def _unsharded_leaf(name: str, x: Any, like: Any) -> Any:
    if x.shape == like.shape:
        return x
    memory = x.size // max(x.shape[-1], 1) if x.size else 1  # number of rows of parts
    size = math.prod(like.shape) // memory
    if size * memory != math.prod(like.shape) or x.shape[-1] < size:
        raise ValueError(
            f"gather_state: {leaf_text(name)} of the state has shape {x.shape}, expected parts of "
            f"one of shape {like.shape}. Is the state of this optimizer and these params?"
        )
    return replicate(x).reshape(memory, x.shape[-1])[:, :size].reshape(like.shape)


def scatter_state(
    tx: Any, state: Any, params: Any, *, mesh: Mesh | None = None, requantize: bool = False
) -> Any:
    """Convert a gathered state to the state of a `sharded` optimizer on this mesh.

    Args:
        tx: An optimizer that contains `sharded`.
        state: The state of the optimizer without `sharded`.
        params: The params, on the mesh.
        mesh: The mesh; by default the mesh of the params.
        requantize: Whether to round codes again in the blocks of the shards, if their blocks cross
            shard boundaries.

    Returns:
        The state, with slots sharded over the devices of `tx`'s axis.

    Raises:
        ValueError: In the cases listed for `state_sharding` and `gather_state`, and if a leaf of
            the state has a different shape from its param.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> from fnopt import distributed
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> params = jax.device_put({"w": jnp.ones((2, 3))}, NamedSharding(mesh, P()))
        >>> tx = distributed.sharded(fnopt.adam(1e-3), axis="data")
        >>> state = distributed.scatter_state(tx, fnopt.adam(1e-3).init(params), params)
        >>> fnopt.slots(state)["mu"]["w"].shape
        (1, 6)
    """
    _map_states(_check_shape, state, _undivided_state(tx, params))
    places = state_sharding(tx, params, mesh=mesh)
    fresh = init_sharded(tx, params, mesh=mesh)
    mesh = next((s.mesh for s in jax.tree.leaves(places)), None)
    shard_leaf = functools.partial(_sharded_leaf, mesh)

    def scatter_recoded() -> Any:
        numbers = decode_slots(undivided(tx), state, params)
        rows = _map_states(shard_leaf, numbers, decode_slots(tx, fresh, params))
        return encode_slots(tx, rows, params)

    anew = _where_blocks_differ(fresh, state, scatter_recoded if requantize else None)
    return jax.tree.map(put, _map_states(shard_leaf, state, fresh, anew), places)


def _undivided_state(tx: Any, params: Any) -> Any:
    """The shapes of the state without `sharded`."""
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p)), params)
    return jax.eval_shape(undivided(tx).init, shapes)


def _check_shape(name: str, x: Any, like: Any) -> Any:
    if jnp.shape(x) != like.shape:
        raise ValueError(
            f"scatter_state: {leaf_text(name)} of the state has shape {jnp.shape(x)}, expected "
            f"{like.shape}. Is it what gather_state gave, of this optimizer and these params?"
        )
    return x


def _sharded_leaf(mesh: Any, _: str, x: Any, new: Any) -> Any:
    if jnp.shape(x) == new.shape:
        return x
    memory = new.size // max(new.shape[-1], 1) if new.size else 1
    size = jnp.size(x) // memory
    row = jnp.reshape(replicate(x), (*new.shape[:-1], size))
    x = put(row, NamedSharding(mesh, P()))
    if size == new.shape[-1]:
        return x
    # The padding comes from a fresh state, because a method may divide by a slot.
    return jnp.concatenate([x, replicate(new)[..., size:]], axis=-1)


def _where_blocks_differ(
    parts: Any, whole: Any, recoded: Callable[[], Any] | None
) -> dict[str, Any]:
    """Re-encode slots whose blocks differ between shards and whole leaves, in a dict by name.

    Raises a ValueError that names the first such slot if re-encoding isn't allowed.
    """
    found = leaves_with_names(parts, is_coded)[0]
    others = jax.tree.leaves(whole, is_leaf=is_coded)
    differ = set()
    for (name, mine), theirs in zip(found, others, strict=False):
        if not (is_coded(mine) and is_coded(theirs)):
            continue
        (codes, scales), (all_codes, all_scales) = mine, theirs
        # If both have the same integer number of elements per scale, no shard ends within a block.
        same = codes.size * all_scales.size == scales.size * all_codes.size
        if same and all_codes.size % all_scales.size == 0:
            continue
        differ.add(name)
        if recoded is None:
            raise ValueError(
                f"{leaf_text(name)} of the state is in codes whose blocks end elsewhere in parts "
                f"than in the whole leaf: {scales.size} scales for {codes.size} numbers, "
                f"{all_scales.size} for {all_codes.size}. Pass requantize=True to round such "
                "numbers anew; or give quantized_state a block_size that divides the parts."
            )
    if not differ or recoded is None:
        return {}
    return {name: x for name, x in leaves_with_names(recoded(), is_coded)[0] if name in differ}


def _map_states(fn: Any, state: Any, target: Any, instead: dict[str, Any] | None = None) -> Any:
    """Map `fn(name, x, y)` over the leaves of two states; `instead` replaces some by name."""
    wanted = jax.tree.structure(target)
    if jax.tree.structure(state) != wanted:
        found = jax.tree.structure(state)
        raise ValueError(
            f"the state is {found}, expected {wanted}. Is it the state of another optimizer?"
        )
    instead = instead or {}

    def map_leaf(name: str, x: Any, y: Any) -> Any:
        if name in instead:
            return instead[name]
        return tuple(map(functools.partial(fn, name), x, y)) if is_coded(x) else fn(name, x, y)

    leaves, treedef = leaves_with_names(state, is_coded)
    others = jax.tree.leaves(target, is_leaf=is_coded)
    found = [map_leaf(name, x, y) for (name, x), y in zip(leaves, others, strict=True)]
    return jax.tree.unflatten(treedef, found)
