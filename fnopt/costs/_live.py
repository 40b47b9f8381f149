"""Dead-code elimination, as the compiler does it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fnopt.costs._graph import Cell, Graph, Op
from fnopt.programs import Cond, Scan, ShardMap, While


def prune(graph: Graph, keep: Sequence[bool] | None = None) -> tuple[Graph, list[bool]]:
    """A program without the operations that its kept outputs don't need.

    Args:
        graph: The program.
        keep: Which outputs are needed; all by default.

    Returns:
        The program with `None` in place of outputs that are not kept, and which inputs it reads.
    """
    keep = [True] * len(graph.outputs) if keep is None else keep
    outputs = [c if k else None for c, k in zip(graph.outputs, keep, strict=True)]
    needed: set[Cell | None] = set(outputs)
    ops = []
    for op in reversed(graph.ops):
        used = [c in needed for c in op.outputs]
        if any(used) or op.effects:
            kept, reads = _prune_op(op, used)
            ops.append(dataclasses.replace(kept, used=used))
            needed.update(c for c, r in zip(op.inputs, reads, strict=True) if r)
    return Graph(graph.inputs, ops[::-1], outputs), [c in needed for c in graph.inputs]


def _prune_op(op: Op, used: list[bool]) -> tuple[Op, list[bool]]:
    match op.control:
        case Scan() as loop:
            return _prune_scan(op, loop, used)
        case While() as loop:
            return _prune_while(op, loop, used)
        case Cond():
            return _prune_cond(op, used)
        case ShardMap():
            body, reads = prune(op.bodies[0], used)
            return dataclasses.replace(op, bodies=(body,)), reads[: len(op.inputs)]
    return op, [True] * len(op.inputs)


def _prune_scan(op: Op, loop: Scan, used: list[bool]) -> tuple[Op, list[bool]]:
    consts, carries = loop.consts, loop.carry
    keep = list(used)
    while True:
        body, reads = prune(op.bodies[0], keep)
        grown = _either(keep[:carries], reads[consts : consts + carries])
        if grown == keep[:carries]:
            break
        keep[:carries] = grown
    reads[consts : consts + carries] = keep[:carries]
    # After its arguments a body lists constants of its own, which are inputs of nothing here.
    return dataclasses.replace(op, bodies=(body,)), reads[: len(op.inputs)]


def _prune_while(op: Op, loop: While, used: list[bool]) -> tuple[Op, list[bool]]:
    n_test, n_body = loop.test_consts, loop.body_consts
    carries = len(used)
    test, test_reads = prune(op.bodies[0])
    keep = _either(used, test_reads[n_test : n_test + carries])
    while True:
        body, reads = prune(op.bodies[1], keep)
        grown = _either(keep, reads[n_body : n_body + carries])
        if grown == keep:
            break
        keep = grown
    kept = dataclasses.replace(op, bodies=(test, body))
    return kept, [*test_reads[:n_test], *reads[:n_body], *keep]


def _prune_cond(op: Op, used: list[bool]) -> tuple[Op, list[bool]]:
    pruned = [prune(branch, used) for branch in op.bodies]
    size = len(op.inputs) - 1
    reads = [any(r) for r in zip(*(r[:size] for _, r in pruned), strict=True)]
    return dataclasses.replace(op, bodies=tuple(g for g, _ in pruned)), [True, *reads]


def _either(a: Sequence[bool], b: Sequence[bool]) -> list[bool]:
    return [x or y for x, y in zip(a, b, strict=True)]
