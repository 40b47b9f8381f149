"""Bounds of loop variables, and of their change per iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fnopt.costs._graph import Cell, Op, names
from fnopt.costs._lines import (
    ANY,
    LinearBounds,
    any_of,
    fitted,
    largest,
    minus,
    plus,
    smallest,
    times,
)
from fnopt.programs import Cond, Scan, While

# Primitives whose results consist of elements of their first operand.
SAME = names("""
    convert_element_type copy copy_p stop_gradient reshape squeeze expand_dims broadcast_in_dim
    transpose slice dynamic_slice split unstack tile rev name tap pvary sharding_constraint
    layout_constraint reshard reduce_max reduce_min reduce_and reduce_or
""")
_ARITHMETIC = {"add": plus, "sub": minus, "mul": times, "max": largest, "min": smallest}
# Maximum depth and number of operations in the analysis of a counter: far above the arithmetic of
# real loops, and below Python's recursion limit.
_DEEPEST, _LONGEST = 60, 5_000


class BodyArgument(NamedTuple):
    """Origin of an argument of a loop body or branch.

    Attributes:
        op: The loop or conditional.
        outside: The initial value outside; `None` for a constant of the program.
        inside: A carried value at the start of the body.
        later: The carried value at the end of the body.
    """

    op: Op
    outside: Cell | None
    inside: Cell | None = None
    later: Cell | None = None


def entry_of(cell: Cell) -> BodyArgument:
    """Origin of a cell that is an argument of an inner program."""
    op = cell.maker
    assert op is not None
    which, position = next(
        (i, body.inputs.index(cell)) for i, body in enumerate(op.bodies) if cell in body.inputs
    )
    given, first, carries, body_first = list(op.inputs), 0, 0, 0
    match op.control:
        case While() as loop:
            of_test, of_body, starts = loop.parts(op.inputs)
            given = (of_body if which else of_test) + starts
            first, body_first, carries = len(given) - len(starts), len(of_body), len(starts)
        case Scan() as loop:
            first, body_first, carries = loop.consts, loop.consts, loop.carry
        case Cond():
            given = given[1:]
    outside = given[position] if position < len(given) else None
    if not first <= position < first + carries:
        return BodyArgument(op, outside)
    body = op.bodies[-1]
    return BodyArgument(
        op, outside, body.inputs[body_first + position - first], body.outputs[position - first]
    )


def cases_of(op: Op, cell: Cell) -> Sequence[Cell | None]:
    """Alternatives of a selection or a conditional; empty for other operations."""
    if op.name == "select_n":
        return op.inputs[1:]
    if isinstance(op.control, Cond):
        return [branch.outputs[op.outputs.index(cell)] for branch in op.bodies]
    return ()


class CounterBounds:
    """Bounds of the values in a loop, as functions of the iteration number.

    Args:
        loop: A while loop or a scan.
        most_trips: Function that returns the maximum trip count of a surrounding while loop.
    """

    def __init__(self, loop: Op, most_trips: Callable[[Op], float]) -> None:
        self.loop, self.most_trips = loop, most_trips
        self.lines: dict[Cell, LinearBounds] = {}
        self.depth = self.visits = 0

    def line(self, cell: Cell | None) -> LinearBounds:
        """Bounds of all elements of a cell."""
        if cell is None:
            return ANY
        if cell.known is not None:
            return LinearBounds(cell.known, cell.known)
        if cell not in self.lines:
            self.lines[cell] = ANY  # ends the recursion where a number depends on itself
            self.lines[cell] = self.compute(cell)
        return self.lines[cell]

    def compute(self, cell: Cell) -> LinearBounds:
        self.visits += 1
        if cell.maker is None or self.depth > _DEEPEST or self.visits > _LONGEST:
            return ANY
        self.depth += 1
        line = self.entered(cell) if cell.enters else self.result_of(cell.maker, cell)
        self.depth -= 1
        return fitted(line, cell.aval.dtype)

    def result_of(self, op: Op, cell: Cell) -> LinearBounds:
        """Bounds of a value from the operation that computes it."""
        if op.name in _ARITHMETIC:
            a, b = map(self.line, op.inputs)
            return _ARITHMETIC[op.name](a, b)
        # Elements of a view are elements of its operand, so its bounds hold.
        if op.name in SAME:
            return self.line(op.inputs[0])
        if op.name == "neg":
            return minus(LinearBounds(0, 0), self.line(op.inputs[0]))
        if op.name == "clamp":
            low, x, high = map(self.line, op.inputs)
            return smallest(largest(low, x), high)
        if op.name == "iota":
            return LinearBounds(0, max(cell.aval.shape[op.params["dimension"]] - 1, 0))
        return any_of([self.line(case) for case in cases_of(op, cell)] or [ANY])

    def entered(self, cell: Cell) -> LinearBounds:
        """Bounds of an argument of a loop body or branch."""
        entry = entry_of(cell)
        start = self.line(entry.outside)
        if entry.inside is None:
            return start
        if entry.op is not self.loop:
            return self.in_all_trips(cell, entry.op)
        dtypes: set[Any] = set()
        change = self.change(entry.inside, entry.later, dtypes)
        if change == (0, 0):
            return start
        if change is None or not start.known:
            return ANY
        before = LinearBounds(start.low, start.high, *change)
        after = LinearBounds(start.low + change[0], start.high + change[1], *change)
        # The last iteration computes the value for which the condition fails.
        lasts = min((fitted(after, dtype).lasts + 1 for dtype in dtypes), default=math.inf)
        return before._replace(lasts=lasts)

    def change(self, cell: Cell, later: Cell | None, dtypes: set[Any]) -> tuple[Any, Any] | None:
        """Bounds of the change of a carried value per iteration.

        Args:
            cell: The number.
            later: The value at the end of the body.
            dtypes: A set to which the dtypes of intermediate values are added.
        """
        if later is cell:
            return 0, 0
        self.visits += 1
        op = None if later is None or later.enters or later.known is not None else later.maker
        if later is None or op is None or self.depth > _DEEPEST or self.visits > _LONGEST:
            return None
        dtypes.add(later.aval.dtype)
        self.depth += 1
        try:
            if op.name in SAME:
                return self.change(cell, op.inputs[0], dtypes)
            if op.name in {"add", "sub"}:
                return self.increment(cell, op, dtypes)
            found = [self.change(cell, case, dtypes) for case in cases_of(op, later)]
        finally:
            self.depth -= 1
        known = [c for c in found if c is not None]
        if not known or len(known) < len(found):
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    def increment(self, cell: Cell, op: Op, dtypes: set[Any]) -> tuple[Any, Any] | None:
        a, b = op.inputs
        combined = plus if op.name == "add" else minus
        for number, other in [(a, b), (b, a)][: 2 if op.name == "add" else 1]:
            change = self.change(cell, number, dtypes)
            if change is None:
                continue
            grown = combined(LinearBounds(*change), self.line(other))
            return (grown.low, grown.high) if grown.known and grown.steady else None
        return None

    def in_all_trips(self, cell: Cell, loop: Op) -> LinearBounds:
        """Bounds of a value of an enclosing loop, over all iterations of the enclosing loop."""
        line = CounterBounds(loop, self.most_trips).line(cell)
        if line.steady:
            return line
        control = loop.control
        trips = control.length if isinstance(control, Scan) else self.most_trips(loop)
        last = trips if cell in loop.bodies[0].inputs and len(loop.bodies) == 2 else trips - 1
        if last > line.lasts:
            return ANY
        falls = line.fall * last if line.fall < 0 else 0
        rises = line.rise * last if line.rise > 0 else 0
        return LinearBounds(line.low + falls, line.high + rises)
