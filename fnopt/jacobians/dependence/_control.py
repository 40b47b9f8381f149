"""Dependence rules of loops and branches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jax.extend import core as jex

from fnopt.jacobians.dependence._rule import DeferredConstant, Entry, dependent, shape_of
from fnopt.jacobians.dependence._sets import ALL, Sets
from fnopt.jacobians.dependence._sums import mixed
from fnopt.programs import Cond, Scan, While, control_view

# Largest number of equations of an unrolled scan: 20,000 equations of 20 elements take 2 seconds.
_UNROLLED = 20_000
# Largest number of iterations to the fixed point of a loop. Each iteration reaches one more link of
# a chain of variables, each of which is computed from the previous one.
_ROUNDS = 32

Run = Callable[[jex.ClosedJaxpr, list[Entry]], list[Entry]]
Iteration = Callable[[list[Entry]], list[Entry]]


def branches(sets: Sets, run: Run, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """`lax.cond` and `lax.switch`: the union over the branches that can run."""
    cond = control_view(eqn)
    if not isinstance(cond, Cond):
        return _fallback(sets, eqn, inputs)
    index, *operands = inputs
    possible = [branch.closed for branch in cond.branches]
    if index.known:
        possible = [possible[min(max(int(index.value()), 0), len(possible) - 1)]]
    result, *others = [run(branch, operands) for branch in possible]
    for other in others:
        result = _unite(sets, result, other)
    return result


def while_loop(sets: Sets, run: Run, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """`lax.while_loop`: the union over any number of iterations."""
    loop = control_view(eqn)
    if not isinstance(loop, While):
        return _fallback(sets, eqn, inputs)
    _, consts, carry = loop.parts(inputs)
    body = loop.body.closed
    return _fixed_point(sets, lambda carry: run(body, consts + carry), carry)


def scan(sets: Sets, run: Run, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """`lax.scan`: unrolled if it is short, else the union over any number of iterations."""
    loop = control_view(eqn)
    if not isinstance(loop, Scan):
        return _fallback(sets, eqn, inputs)
    consts, carry, xs = loop.parts(inputs)
    body, length = loop.body.closed, loop.length

    def iterate(carry: list[Entry], x: list[Entry]) -> list[Entry]:
        return run(body, consts + carry + x)

    if not length:
        _, rows = loop.results(eqn.outvars)
        return carry + [Entry(shape_of(v)) for v in rows]
    if length * len(body.jaxpr.eqns) <= _UNROLLED:
        return _unroll(iterate, carry, xs, length, loop.reverse)
    # Each iteration is assumed to read any row of the scanned arrays.
    any_x = [_row_union(sets, x) for x in xs]
    carry = _fixed_point(sets, lambda carry: loop.results(iterate(carry, any_x))[0], carry)
    _, ys = loop.results(iterate(carry, any_x))
    rows = [np.broadcast_to(y.sets, (length, *y.shape)) for y in ys]
    return carry + [dependent(row) for row in rows]


def _fallback(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """Rule for control flow of unknown form: all outputs depend on all inputs."""
    shapes = [shape_of(v) for v in eqn.outvars]
    return [dependent(ids) for ids in mixed(sets, shapes, inputs)]


def _unroll(
    iterate: Callable[[list[Entry], list[Entry]], list[Entry]],
    carry: list[Entry],
    xs: list[Entry],
    length: int,
    reverse: bool,
) -> list[Entry]:
    rows: list[list[Entry]] = [[] for _ in range(length)]
    count = len(carry)
    for i in reversed(range(length)) if reverse else range(length):
        outputs = iterate(carry, [_row(x, i) for x in xs])
        carry, rows[i] = [_evaluate(c) for c in outputs[:count]], outputs[count:]
    ys = [dependent(np.stack([y.sets for y in parts])) for parts in zip(*rows, strict=True)]
    return carry + ys


def _row(x: Entry, i: int) -> Entry:
    if x.ids is not None:
        return dependent(x.ids[i])
    if not x.known:
        return Entry(x.shape[1:])
    return Entry(x.shape[1:], source=(DeferredConstant(outputs=[x.value()[i]]), 0))


def _evaluate(entry: Entry) -> Entry:
    """Evaluate a constant scalar of a carry, such as a loop counter.

    Constant arrays are treated as unknown, because the deferred constants of all iterations would
    form a long chain.
    """
    if not entry.known or entry.shape:
        return entry if entry.ids is not None else Entry(entry.shape)
    return Entry((), source=(DeferredConstant(outputs=[entry.value()[()]]), 0))


def _row_union(sets: Sets, x: Entry) -> Entry:
    """Union of all rows of a scanned array, without a value."""
    if x.ids is None:
        return Entry(x.shape[1:])
    return dependent(sets.union_along(x.ids, (0,)))


def _fixed_point(sets: Sets, iterate: Iteration, carry: list[Entry]) -> list[Entry]:
    """Iterate the sets of a carry to their fixed point, or to ALL after too many iterations."""
    # The values of the carry change in every iteration, so they are unknown.
    carry = [entry if entry.ids is not None else Entry(entry.shape) for entry in carry]
    for _ in range(_ROUNDS):
        new_carry = _unite(sets, carry, iterate(carry))
        if all(map(np.array_equal, (c.sets for c in carry), (c.sets for c in new_carry))):
            return carry
        carry = new_carry
    return [dependent(np.full(c.shape, ALL, np.int32)) for c in carry]


def _unite(sets: Sets, a: list[Entry], b: list[Entry]) -> list[Entry]:
    """Unite the sets of two lists of variables, and drop their values."""

    def union(x: Entry, y: Entry) -> Entry:
        if x.ids is None and y.ids is None:
            return Entry(x.shape)
        return dependent(sets.union(x.sets, y.sets))

    return [union(x, y) for x, y in zip(a, b, strict=True)]
