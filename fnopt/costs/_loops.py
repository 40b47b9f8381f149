"""The trip counts of while loops, where they can be read off the program."""

from __future__ import annotations

from typing import NamedTuple

from fnopt.costs._graph import Cell, Graph, Op
from fnopt.programs import While

_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


class _Test(NamedTuple):
    """`counter <relation> bound`: the loop goes on while this holds."""

    counter: int
    relation: str
    bound: int


class _Loop(NamedTuple):
    """A while loop, without the constants that its condition and its body close over.

    Attributes:
        starts: The values that it starts with.
        tested: Those values in the condition.
        entered: Those values in the body.
        returned: The values that the body hands on.
    """

    test: Graph
    body: Graph
    starts: list[Cell]
    tested: list[Cell]
    entered: list[Cell]
    returned: list[Cell | None]


def trip_count(op: Op) -> int | None:
    """The number of iterations of a while loop that counts up or down to a known bound.

    That is what `jax.lax.fori_loop` makes, and what people write by hand: one carried whole number
    with a known start and a known step is compared with a known bound. `None` for all others.
    """
    assert isinstance(op.control, While)
    loop = _loop(op, op.control)
    test = _test(loop)
    start = None if test is None else loop.starts[test.counter].known
    step = None if test is None else _step(loop, test.counter)
    if test is None or start is None or not step:
        return None
    return _iterations(start, step, test)


def _loop(op: Op, loop: While) -> _Loop:
    test, body = op.bodies
    _, _, starts = loop.parts(op.inputs)
    return _Loop(
        test,
        body,
        starts,
        test.inputs[loop.test_consts :][: len(starts)],
        body.inputs[loop.body_consts :][: len(starts)],
        list(body.outputs),
    )


def _iterations(start: int, step: int, test: _Test) -> int | None:
    distance = test.bound - start
    if test.relation in {"gt", "ge"}:  # counting down is counting up on the mirrored line
        distance, step = -distance, -step
    if test.relation in {"le", "ge"}:
        distance += 1
    if distance <= 0:
        return 0
    return -(-distance // step) if step > 0 else None  # it walks away from the bound


def _test(loop: _Loop) -> _Test | None:
    op = _maker(loop.test, loop.test.outputs[0])
    if op is None or op.name not in _MIRRORED:
        return None
    left, right = op.inputs
    for relation, counter, bound in ((op.name, left, right), (_MIRRORED[op.name], right, left)):
        index = _index(loop.tested, counter)
        value = _bound(loop, bound)
        if index is not None and value is not None:
            return _Test(index, relation, value)
    return None


def _bound(loop: _Loop, cell: Cell) -> int | None:
    """The value of a cell of the condition, if it is the same in all iterations."""
    if cell.known is not None:
        return cell.known
    index = _index(loop.tested, cell)
    if index is None or loop.returned[index] is not loop.entered[index]:
        return None
    return loop.starts[index].known


def _step(loop: _Loop, counter: int) -> int | None:
    """The increment of the counter in one iteration."""
    op = _maker(loop.body, loop.returned[counter])
    if op is None or op.name not in {"add", "sub"}:
        return None
    left, right = op.inputs
    if op.name == "add" and _index(loop.entered, right) == counter:
        left, right = right, left
    if _index(loop.entered, left) != counter or right.known is None:
        return None
    return -right.known if op.name == "sub" else right.known


def _index(cells: list[Cell], cell: Cell) -> int | None:
    """Which of the cells this one is; a cast of a scalar is still that scalar."""
    root = cell.root if cell.root.aval.shape == () else cell
    return next((i for i, c in enumerate(cells) if c is root), None)


def _maker(graph: Graph, cell: Cell | None) -> Op | None:
    """The operation that made a cell, looking through casts."""
    root = None if cell is None else cell.root
    return next((op for op in graph.ops if root in op.outputs), None)
