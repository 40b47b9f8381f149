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
from fnopt.distributed._sharded import mesh_of, shapes_by_name, sharded, without_sharded
from fnopt.distributed._state_sharding import init_sharded, state_sharding
from fnopt.errors import count_text, leaf_text, leaves_with_names
from fnopt.sharding import UnshardedLeaves, replicate, shards_over
from fnopt.transforms import is_coded, quantized_state
from fnopt.transforms.states import QuantizedStateState

Context = contextlib.AbstractContextManager[None]


def decode_slots(tx: Any, state: Any, params: Any) -> Any:
    """Decode the quantized slots of a state."""

    def decode_state(
        wrapper: sharded | None, tx: quantized_state, state: QuantizedStateState
    ) -> Any:
        with contextlib.nullcontext() if wrapper is None else _shards_of(wrapper, state, params):
            inner = tx._map_slots(tx._decode, state.inner_state)
        return QuantizedStateState(state.count, inner)

    return _map_quantized(tx, state, decode_state)


def encode_slots(tx: Any, numbers: Any, params: Any) -> Any:
    """Quantize the slots of a state again, in the blocks of the optimizer `tx`."""

    def encode_state(
        wrapper: sharded | None, tx: quantized_state, state: QuantizedStateState
    ) -> Any:
        leaves = None if wrapper is None else wrapper._unsharded_leaves(params)
        with shards_over((), leaves):
            return tx._encode(state.count, state.inner_state)

    return _map_quantized(tx, numbers, encode_state)


def _shards_of(wrapper: sharded, state: Any, params: Any) -> Context:
    """Context that declares slots as concatenated shards, one per device of their mesh."""
    named_slots = leaves_with_names(state, is_coded)[0]
    name, codes = next((name, x[0]) for name, x in named_slots if is_coded(x))
    mesh = mesh_of(codes)
    if mesh is None or not {*wrapper.axis} <= {*mesh.axis_names}:
        raise ValueError(
            f"{leaf_text(name)} of the state: got 8-bit codes without a mesh, expected codes on a "
            f"mesh with the axis {wrapper.axis!r}, whose size is the number of shards. Pass the "
            "state outside of jax.jit, on as many devices as the state was made for (simulated "
            "devices suffice)."
        )
    n = math.prod(mesh.shape[axis] for axis in wrapper.axis)
    return shards_over((), UnshardedLeaves(shapes_by_name(params), n, lambda parts: parts))


def _map_quantized(tx: Any, state: Any, fn: Callable[..., Any]) -> Any:
    # Each part of the state has its own transform, so a part is found by its `id`.
    replacements = {
        id(part): fn(wrapper, transform, part)
        for wrapper, transform, part in _quantized_members(tx, state)
    }
    return jax.tree.map(
        lambda x: replacements.get(id(x), x), state, is_leaf=lambda x: id(x) in replacements
    )


def _quantized_members(
    tx: Transformation, state: Any, wrapper: sharded | None = None
) -> Iterator[tuple[sharded | None, quantized_state, Any]]:
    """Yield every `quantized_state`, with the `sharded` around it (or None) and its state."""
    wrapper = tx if isinstance(tx, sharded) else wrapper
    if isinstance(tx, quantized_state):
        if any(isinstance(member.tx, sharded) for member in tx.members()):
            raise ValueError(
                "got quantized_state(sharded(...)), which quantizes different blocks on each "
                "device; expected sharded(quantized_state(...), axis). Put quantized_state inside "
                "sharded."
            )
        yield wrapper, tx, state
    for member in tx.members(state):
        yield from _quantized_members(member.tx, member.state, wrapper)


def gather_state(tx: Any, state: Any, params: Any, *, requantize: bool = False) -> Any:
    """Convert the state of a `sharded` optimizer to the state of the inner optimizer.

    Use the result to evaluate an average of the params, or to save a checkpoint that can be
    restored on any number of devices.

    Args:
        tx: An optimizer that contains `sharded`.
        state: The state of `tx`, from outside of `jax.shard_map`, for any number of devices.
        params: The params; arrays or shapes.
        requantize: Whether to quantize a slot of `quantized_state` again if a block of the whole
            leaf crosses a shard boundary; other codes are copied. The state must then be on its
            mesh, outside of `jax.jit`.

    Returns:
        The state of the optimizer `tx` without `sharded`.

    Raises:
        ValueError: If a leaf has too few elements for its param, or if a block of codes crosses a
            shard boundary and `requantize` is False.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> from fnopt import distributed
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> params = jax.device_put({"w": jnp.ones((2, 3))}, NamedSharding(mesh, P()))
        >>> tx = distributed.sharded(fnopt.adam(1e-3), axis="data")
        >>> state = tx.init(params)
        >>> gathered = distributed.gather_state(tx, state, params)
        >>> fnopt.slots(state)["mu"]["w"].shape, fnopt.slots(gathered)["mu"]["w"].shape
        ((1, 6), (2, 3))
    """
    # Only shapes are computed, so that no state of the plain optimizer is allocated.
    plain_tx, target = without_sharded(tx), _state_without_sharded(tx, params)

    def gather_recoded() -> Any:
        numbers = decode_slots(tx, state, params)
        like = jax.eval_shape(lambda s: decode_slots(plain_tx, s, params), target)
        return encode_slots(plain_tx, _map_states(_unsharded_leaf, numbers, like), params)

    recoded = _recode_differing_blocks(state, target, gather_recoded if requantize else None)
    return _map_states(_unsharded_leaf, state, target, recoded)


def _unsharded_leaf(name: str, x: Any, like: Any) -> Any:
    if x.shape == like.shape:
        return x
    rows = x.size // max(x.shape[-1], 1) if x.size else 1  # a history has several rows
    size = math.prod(like.shape) // rows
    if size * rows != math.prod(like.shape) or x.shape[-1] < size:
        raise ValueError(
            f"gather_state: {leaf_text(name)} of the state has shape {x.shape}, expected "
            f"concatenated shards of a leaf of shape {like.shape}. Pass the optimizer and the "
            "params that the state was made for."
        )
    return replicate(x).reshape(rows, x.shape[-1])[:, :size].reshape(like.shape)


def scatter_state(
    tx: Any, state: Any, params: Any, *, mesh: Mesh | None = None, requantize: bool = False
) -> Any:
    """Convert a gathered state to the state of a `sharded` optimizer on a mesh.

    Args:
        tx: An optimizer that contains `sharded`.
        state: The state of the optimizer without `sharded`.
        params: The params, on the mesh.
        mesh: The mesh; by default the mesh of the params.
        requantize: Whether to quantize a slot again if a block of codes crosses a shard boundary.

    Returns:
        The state of `tx`, with slots sharded over the devices of the axis of `sharded`.

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
    _map_states(_check_shape, state, _state_without_sharded(tx, params))
    shardings = state_sharding(tx, params, mesh=mesh)
    fresh = init_sharded(tx, params, mesh=mesh)
    mesh = next((s.mesh for s in jax.tree.leaves(shardings)), None)
    shard_leaf = functools.partial(_sharded_leaf, mesh)

    def scatter_recoded() -> Any:
        numbers = decode_slots(without_sharded(tx), state, params)
        rows = _map_states(shard_leaf, numbers, decode_slots(tx, fresh, params))
        return encode_slots(tx, rows, params)

    recoded = _recode_differing_blocks(fresh, state, scatter_recoded if requantize else None)
    return jax.tree.map(put, _map_states(shard_leaf, state, fresh, recoded), shardings)


def _state_without_sharded(tx: Any, params: Any) -> Any:
    """Shapes and dtypes of the state of the optimizer without `sharded`."""
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p)), params)
    return jax.eval_shape(without_sharded(tx).init, shapes)


def _check_shape(name: str, x: Any, like: Any) -> Any:
    if jnp.shape(x) != like.shape:
        raise ValueError(
            f"scatter_state: {leaf_text(name)} of the state has shape {jnp.shape(x)}, expected "
            f"{like.shape}. Pass a state of the optimizer without sharded, such as the result of "
            "gather_state, for these params."
        )
    return x


def _sharded_leaf(mesh: Any, _: str, x: Any, fresh: Any) -> Any:
    if jnp.shape(x) == fresh.shape:
        return x
    rows = fresh.size // max(fresh.shape[-1], 1) if fresh.size else 1
    size = jnp.size(x) // rows
    row = jnp.reshape(replicate(x), (*fresh.shape[:-1], size))
    x = put(row, NamedSharding(mesh, P()))
    if size == fresh.shape[-1]:
        return x
    # The padding is copied from a fresh state: zeros may be invalid, if a method divides by a slot.
    return jnp.concatenate([x, replicate(fresh)[..., size:]], axis=-1)


def _recode_differing_blocks(
    parts: Any, whole: Any, recode: Callable[[], Any] | None
) -> dict[str, Any]:
    """Quantize again the slots whose blocks differ between shards and whole leaves, keyed by name.

    If `recode` is None, raise a ValueError that names the first such slot.
    """
    shard_slots = leaves_with_names(parts, is_coded)[0]
    leaf_slots = jax.tree.leaves(whole, is_leaf=is_coded)
    names = set()
    for (name, shard_slot), leaf_slot in zip(shard_slots, leaf_slots, strict=False):
        if not (is_coded(shard_slot) and is_coded(leaf_slot)):
            continue
        (codes, scales), (all_codes, all_scales) = shard_slot, leaf_slot
        # No block crosses a shard boundary if the shards and the whole leaf have the same integral
        # number of elements per scale.
        have_equal_blocks = codes.size * all_scales.size == scales.size * all_codes.size
        if have_equal_blocks and all_codes.size % all_scales.size == 0:
            continue
        names.add(name)
        if recode is None:
            raise ValueError(
                f"{leaf_text(name)} of the state has {count_text(scales.size, 'scale')} for "
                f"{count_text(codes.size, 'code')} in its shards, but "
                f"{count_text(all_scales.size, 'scale')} for {count_text(all_codes.size, 'code')} "
                "in the whole leaf, expected equal blocks. Pass requantize=True to quantize the "
                "leaf again, or pass quantized_state a block_size that divides the shards."
            )
    if not names or recode is None:
        return {}
    return {name: x for name, x in leaves_with_names(recode(), is_coded)[0] if name in names}


def _map_states(
    fn: Any, state: Any, target: Any, replacements: dict[str, Any] | None = None
) -> Any:
    """Map `fn(name, x, y)` over the leaves of two states, except leaves in `replacements`."""
    expected = jax.tree.structure(target)
    if jax.tree.structure(state) != expected:
        raise ValueError(
            f"the state has the structure {jax.tree.structure(state)}, expected {expected}. Pass "
            "the optimizer that the state was made for."
        )
    replacements = replacements or {}

    def map_leaf(name: str, x: Any, y: Any) -> Any:
        if name in replacements:
            return replacements[name]
        # A quantized leaf is a pair of codes and scales, and both arrays are mapped.
        return tuple(map(functools.partial(fn, name), x, y)) if is_coded(x) else fn(name, x, y)

    leaves, treedef = leaves_with_names(state, is_coded)
    targets = jax.tree.leaves(target, is_leaf=is_coded)
    mapped = [map_leaf(name, x, y) for (name, x), y in zip(leaves, targets, strict=True)]
    return jax.tree.unflatten(treedef, mapped)
