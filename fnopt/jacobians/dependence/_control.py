"""Dependence rules of loops and branches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jax.extend import core as jex

from fnopt.jacobians.dependence._rule import DeferredConstant, Entry, dependent, shape_of
from fnopt.jacobians.dependence._sets import ALL, Sets
from fnopt.jacobians.dependence._sums import mixed
from fnopt.programs import Cond, Scan, While, control_view

_UNROLLED = 20_000  # equations; a longer loop is treated as one of unknown length
_ROUNDS = 32  # iterations to a fixed point; a carry that still changes depends on all inputs

Run = Callable[[jex.ClosedJaxpr, list[Entry]], list[Entry]]
Turn = Callable[[list[Entry]], list[Entry]]


def branches(sets: Sets, run: Run, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """`lax.cond` and `lax.switch`: the union over the branches."""
    choice = control_view(eqn)
    if not isinstance(choice, Cond):
        return _unknown(sets, eqn, inputs)
    index, *operands = inputs
    chosen = [branch.closed for branch in choice.branches]
    if index.known:
        chosen = [chosen[min(max(int(index.value()), 0), len(chosen) - 1)]]
    first, *others = [run(branch, operands) for branch in chosen]
    for other in others:
        first = _joined(sets, first, other)
    return first


def while_loop(sets: Sets, run: Run, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """`lax.while_loop`: the union over any number of iterations."""
    loop = control_view(eqn)
    if not isinstance(loop, While):
        return _unknown(sets, eqn, inputs)
    _, consts, carry = loop.parts(inputs)
    body = loop.body.closed
    return _settled(sets, lambda carry: run(body, consts + carry), carry)


def scan(sets: Sets, run: Run, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """`lax.scan`: unrolled if it is short, else the union over any number of iterations."""
    loop = control_view(eqn)
    if not isinstance(loop, Scan):
        return _unknown(sets, eqn, inputs)
    consts, carry, xs = loop.parts(inputs)
    body, length = loop.body.closed, loop.length

    def turn(carry: list[Entry], x: list[Entry]) -> list[Entry]:
        return run(body, consts + carry + x)

    if not length:
        _, rows = loop.results(eqn.outvars)
        return carry + [Entry(shape_of(v)) for v in rows]
    if length * len(body.jaxpr.eqns) <= _UNROLLED:
        return _unrolled(turn, carry, xs, length, loop.reverse)
    any_x = [_any_row(sets, x) for x in xs]
    carry = _settled(sets, lambda carry: loop.results(turn(carry, any_x))[0], carry)
    _, ys = loop.results(turn(carry, any_x))
    rows = [np.broadcast_to(y.sets, (length, *y.shape)) for y in ys]
    return carry + [dependent(row) for row in rows]


def _unknown(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """Fallback for control flow of unknown form: all outputs depend on all inputs."""
    shapes = [shape_of(v) for v in eqn.outvars]
    return [dependent(ids) for ids in mixed(sets, shapes, inputs)]


def _unrolled(
    turn: Callable[[list[Entry], list[Entry]], list[Entry]],
    carry: list[Entry],
    xs: list[Entry],
    length: int,
    reverse: bool,
) -> list[Entry]:
    rows: list[list[Entry]] = [[] for _ in range(length)]
    count = len(carry)
    for i in reversed(range(length)) if reverse else range(length):
        outputs = turn(carry, [_row(x, i) for x in xs])
        carry, rows[i] = [_forced(c) for c in outputs[:count]], outputs[count:]
    ys = [dependent(np.stack([y.sets for y in parts])) for parts in zip(*rows, strict=True)]
    return carry + ys


def _row(x: Entry, i: int) -> Entry:
    if x.ids is not None:
        return dependent(x.ids[i])
    if not x.known:
        return Entry(x.shape[1:])
    return Entry(x.shape[1:], source=(DeferredConstant(outputs=[x.value()[i]]), 0))


def _forced(entry: Entry) -> Entry:
    """Evaluate deferred constants of a carry, so that they don't form a long chain."""
    if not entry.known or entry.shape:
        return entry if entry.ids is not None else Entry(entry.shape)
    return Entry((), source=(DeferredConstant(outputs=[entry.value()[()]]), 0))


def _any_row(sets: Sets, x: Entry) -> Entry:
    if x.ids is None:
        return Entry(x.shape[1:])
    return dependent(sets.union_along(x.ids, (0,)))


def _settled(sets: Sets, turn: Turn, carry: list[Entry]) -> list[Entry]:
    """The fixed point of the carry's sets under the body of a loop."""
    carry = [entry if entry.ids is not None else Entry(entry.shape) for entry in carry]
    for _ in range(_ROUNDS):
        following = _joined(sets, carry, turn(carry))
        if all(map(np.array_equal, (c.sets for c in carry), (f.sets for f in following))):
            return carry
        carry = following
    return [dependent(np.full(c.shape, ALL, np.int32)) for c in carry]


def _joined(sets: Sets, a: list[Entry], b: list[Entry]) -> list[Entry]:
    def union(x: Entry, y: Entry) -> Entry:
        if x.ids is None and y.ids is None:
            return Entry(x.shape)
        return dependent(sets.union(x.sets, y.sets))

    return [union(x, y) for x, y in zip(a, b, strict=True)]
