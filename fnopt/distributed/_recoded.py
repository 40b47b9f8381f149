"""Requantization of slots: from the blocks of shards to those of whole leaves, and back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from fnopt.core import Transformation, leaf_text, leaves_with_names
from fnopt.distributed._sharded import mesh_of, shapes_by_name, sharded
from fnopt.sharding import UnshardedLeaves, shards_over
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
    """Encode the slots of a state, rounded in the blocks of this optimizer."""

    def encode_state(over: sharded | None, tx: quantized_state, state: QuantizedStateState) -> Any:
        known = None if over is None else over._unsharded_leaves(params)
        with shards_over((), known):
            return tx._encode(state.count, state.inner_state)

    return _map_quantized(tx, numbers, encode_state)


def _shards_of(over: sharded, state: Any, params: Any) -> Context:
    """Declare slots as shards, one for every device of their mesh."""
    named = leaves_with_names(state, is_coded)[0]
    name, codes = next((name, x[0]) for name, x in named if is_coded(x))
    mesh = mesh_of(codes)
    if mesh is None or not {*over.axis} <= {*mesh.axis_names}:
        raise ValueError(
            f"{leaf_text(name)} of the state is in 8-bit codes and not on a mesh with the axis "
            f"{over.axis!r}, which gives the number of parts. Give the state outside of jax.jit, "
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
