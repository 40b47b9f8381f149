"""Memory traffic of a program if all elementwise operations are fused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from fnopt.costs._flops_table import MEMORY_BOUND_BY_ITSELF, RULES
from fnopt.costs._graph import IN_PLACE, VIEWS, Cell, Graph, Op


def nbytes(cell: Cell) -> int:
    """Size of a value in bytes; 0 for tokens."""
    return bytes_of(cell.aval)


def bytes_of(array: Any) -> int:
    """Size of an array or abstract value in bytes; 0 for tokens."""
    dtype = getattr(array, "dtype", None)
    size = math.prod(getattr(array, "shape", ())) * getattr(dtype, "itemsize", 0)
    return -(-size // 2) if dtype in (jnp.int4, jnp.uint4) else size  # two 4-bit numbers per byte


def own_traffic(op: Op) -> int:
    """Bytes of the operands and results of one operation; 0 for a fused operation."""
    if op.name in IN_PLACE:
        updates = op.inputs[1 if op.name == "dynamic_update_slice" else 2]
        return nbytes(updates)
    if not moves_memory(op) or op.bodies:
        return 0
    # XLA fuses a broadcast or a cast into the operation that uses the result. This operation then
    # reads the smaller array.
    reads = sum(min(nbytes(c), nbytes(c.root)) for c in op.inputs)
    return reads + sum(map(nbytes, op.outputs))


def moves_memory(op: Op) -> bool:
    """Whether an operation isn't fused: it has its own kernel, is a loop, or is unknown."""
    return op.name in MEMORY_BOUND_BY_ITSELF or bool(op.bodies) or op.name not in RULES


def edge_traffic(graph: Graph) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the traffic of inputs and outputs that only fused operations read or write.

    Each of these arrays is read or written once.

    Yields:
        The part of the model, and the bytes.
    """
    # `own_traffic`, or the body of a loop, already counts the traffic of this memory.
    counted = {c.root for op in filter(moves_memory, graph.ops) for c in [*op.inputs, *op.outputs]}
    yield from _reads(graph, counted)
    yield from _writes(graph, counted)


def _reads(graph: Graph, counted: set[Cell]) -> Iterator[tuple[tuple[str, ...], int]]:
    unread = {c: nbytes(c) for c in graph.inputs if c not in counted}
    for op in graph.ops:
        if op.name in VIEWS or moves_memory(op):
            continue
        # An array that is updated in place isn't read; only the changed elements have traffic.
        for cell in op.inputs[1:] if op.name in IN_PLACE else op.inputs:
            if traffic := min(nbytes(cell), unread.get(cell.root, 0)):
                unread[cell.root] -= traffic
                yield op.scope, traffic


def _writes(graph: Graph, counted: set[Cell]) -> Iterator[tuple[tuple[str, ...], int]]:
    inputs = set(graph.inputs)
    makers = {out: op for op in graph.ops for out in op.outputs}
    # Results of unfused operations, which a fused operation may overwrite.
    reusable = {c for c in counted if c in makers and moves_memory(makers[c])}
    for cell in dict.fromkeys(c for c in graph.outputs if c is not None and c not in inputs):
        op = makers.get(cell)
        if op is None or cell.root in counted:
            continue
        if cell.root in inputs:
            # An output that is a view of an input is copied, so it is read and written.
            if op.name not in IN_PLACE:
                yield op.scope, nbytes(cell) + min(nbytes(cell), nbytes(cell.root))
        elif result := _fused_into(cell, makers, reusable):
            reusable.remove(result)
        else:
            yield op.scope, nbytes(cell)


def _fused_into(cell: Cell, makers: dict[Cell, Op], reusable: set[Cell]) -> Cell | None:
    """Result of a matrix product (or similar) into which XLA fuses the operations before `cell`.

    For example, an activation function after a matrix product adds no traffic, because only the
    output of the activation function is written.
    """
    visited, stack = {cell}, [cell]
    while stack and reusable:
        candidate = stack.pop()
        # The memory of a smaller result isn't sufficient for the output.
        if candidate in reusable and nbytes(candidate) >= nbytes(cell):
            return candidate
        op = makers.get(candidate)
        if op is not None and not moves_memory(op):
            operands = set(op.inputs) - visited
            visited |= operands
            stack += operands
    return None
