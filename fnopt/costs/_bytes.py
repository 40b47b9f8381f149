"""Memory traffic of a program, assuming that elementwise operations are fused."""

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
    """Memory traffic of one operation: the bytes of its operands and results.

    For an operand that is a broadcast or a wider view of a smaller array, the size of the smaller
    array is counted.
    """
    if op.name in IN_PLACE:
        changed = op.inputs[1 if op.name == "dynamic_update_slice" else 2]
        return nbytes(changed)
    if not moves_memory(op) or op.bodies:
        return 0
    # XLA fuses a broadcast or a cast into its reader: memory has the smaller array.
    reads = sum(min(nbytes(c), nbytes(c.root)) for c in op.inputs)
    return reads + sum(map(nbytes, op.outputs))


def moves_memory(op: Op) -> bool:
    """Whether an operation has memory traffic: if it is unfused, a loop, or unknown."""
    return op.name in MEMORY_BOUND_BY_ITSELF or bool(op.bodies) or op.name not in RULES


def edge_traffic(graph: Graph) -> Iterator[tuple[tuple[str, ...], int]]:
    """Traffic of inputs and outputs that only fused operations read or write.

    Fused elementwise operations read or write each of these arrays once. Yields the part and the
    bytes.
    """
    # The memory whose traffic `own_traffic` or the body of a loop counts.
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
            if read := min(nbytes(cell), unread.get(cell.root, 0)):
                unread[cell.root] -= read
                yield op.scope, read


def _writes(graph: Graph, counted: set[Cell]) -> Iterator[tuple[tuple[str, ...], int]]:
    inputs = set(graph.inputs)
    makers = {out: op for op in graph.ops for out in op.outputs}
    free = {c for c in counted if c in makers and moves_memory(makers[c])}
    for cell in dict.fromkeys(c for c in graph.outputs if c is not None and c not in inputs):
        op = makers.get(cell)
        if op is None or cell.root in counted:
            continue
        if cell.root in inputs:
            if op.name not in IN_PLACE:  # a view of an input, copied: read and written
                yield op.scope, nbytes(cell) + min(nbytes(cell), nbytes(cell.root))
        elif result := _fused_into(cell, makers, free):
            free.remove(result)
        else:
            yield op.scope, nbytes(cell)


def _fused_into(cell: Cell, makers: dict[Cell, Op], free: set[Cell]) -> Cell | None:
    """Result of a matrix product (or similar) that a fused operation overwrites with this output.

    An activation function after a matrix product adds no traffic: only the output of the function
    is written.
    """
    seen, stack = {cell}, [cell]
    while stack and free:
        found = stack.pop()
        # A larger result can be overwritten; a smaller one needs memory of its own.
        if found in free and nbytes(found) >= nbytes(cell):
            return found
        op = makers.get(found)
        if op is not None and not moves_memory(op):
            new = set(op.inputs) - seen
            seen |= new
            stack += new
    return None
