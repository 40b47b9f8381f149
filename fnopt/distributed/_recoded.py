"""Codes of slots in other blocks: from those of parts to those of whole leaves, and back."""

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


def in_numbers(tx: Any, state: Any, params: Any) -> Any:
    """The state with the numbers of slots in place of their codes."""

    def one(over: sharded | None, tx: quantized_state, state: QuantizedStateState) -> Any:
        with contextlib.nullcontext() if over is None else _parts(over, state, params):
            inner = tx._map_slots(tx._decoded, state.inner_state)
        return QuantizedStateState(state.count, inner)

    return _mapped(tx, state, one)


def in_codes(tx: Any, numbers: Any, params: Any) -> Any:
    """The state with slots as codes again, rounded anew in the blocks of this optimizer."""

    def one(over: sharded | None, tx: quantized_state, state: QuantizedStateState) -> Any:
        known = None if over is None else over._leaves_in_rows(params)
        with shards_over((), known):
            return tx._coded(state.count, state.inner_state)

    return _mapped(tx, numbers, one)


def _parts(over: sharded, state: Any, params: Any) -> Context:
    """Says that slots are parts in rows, as many as there are devices in the mesh they are on."""
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


def _mapped(tx: Any, state: Any, fn: Callable[..., Any]) -> Any:
    new = {id(part): fn(over, own, part) for over, own, part in _found(tx, state)}
    return jax.tree.map(lambda x: new.get(id(x), x), state, is_leaf=lambda x: id(x) in new)


def _found(
    tx: Transformation, state: Any, over: sharded | None = None
) -> Iterator[tuple[sharded | None, quantized_state, Any]]:
    """All transforms that keep slots in codes, with what divides them and with their states."""
    over = tx if isinstance(tx, sharded) else over
    if isinstance(tx, quantized_state):
        if any(isinstance(member.tx, sharded) for member in tx.members()):
            raise ValueError(
                "quantized_state is around sharded, so every device quantizes its own blocks and "
                "the layout is unknown. Put it inside: sharded(quantized_state(...), axis)."
            )
        yield over, tx, state
    for member in tx.members(state):
        yield from _found(member.tx, member.state, over)
