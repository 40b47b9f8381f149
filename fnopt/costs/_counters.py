"""Linear bounds of loop variables, from their initial values and changes per iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fnopt.costs._graph import Cell, Op, names
from fnopt.costs._lines import (
    ANY,
    LinearBounds,
    any_of,
    maximum,
    minimum,
    minus,
    plus,
    restrict_to_dtype,
    times,
)
from fnopt.programs import Cond, Scan, While

# Primitives whose results consist of elements of their first operand.
SAME = names("""
    convert_element_type copy copy_p stop_gradient reshape squeeze expand_dims broadcast_in_dim
    transpose slice dynamic_slice split unstack tile rev name tap pvary sharding_constraint
    layout_constraint reshard reduce_max reduce_min reduce_and reduce_or
""")
_ARITHMETIC = {"add": plus, "sub": minus, "mul": times, "max": maximum, "min": minimum}
# Maximum depth and number of visited operations in an analysis: far above the arithmetic of real
# loops, and below Python's recursion limit.
MAX_DEPTH, MAX_VISITS = 60, 5_000


class BodyArgument(NamedTuple):
    """Origin of an argument of a loop body or branch.

    Attributes:
        op: The loop or conditional.
        outside: The operand of the loop or conditional; `None` for a constant of the body.
        inside: For a carried value, the argument of the body.
        later: For a carried value, the result of the body.
    """

    op: Op
    outside: Cell | None
    inside: Cell | None = None
    later: Cell | None = None


def entry_of(cell: Cell) -> BodyArgument:
    """Origin of a cell that is an argument of an inner program."""
    op = cell.maker
    assert op is not None
    body_index, position = next(
        (i, body.inputs.index(cell)) for i, body in enumerate(op.bodies) if cell in body.inputs
    )
    operands, first, carries, body_first = list(op.inputs), 0, 0, 0
    match op.control:
        case While() as loop:
            test_consts, body_consts, starts = loop.parts(op.inputs)
            operands = (body_consts if body_index else test_consts) + starts
            first, body_first, carries = len(operands) - len(starts), len(body_consts), len(starts)
        case Scan() as loop:
            first, body_first, carries = loop.consts, loop.consts, loop.carry
        case Cond():
            operands = operands[1:]
    # The inputs of a body end with constants, which have no operand.
    outside = operands[position] if position < len(operands) else None
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
    """Bounds of the values in a loop, as linear functions of the iteration number.

    Args:
        loop: A while loop or a scan.
        max_trips: Function that returns an upper bound of the trip count of an enclosing while
            loop.
    """

    def __init__(self, loop: Op, max_trips: Callable[[Op], float]) -> None:
        self.loop, self.max_trips = loop, max_trips
        self.lines: dict[Cell, LinearBounds] = {}
        self.depth = self.visits = 0

    def line(self, cell: Cell | None) -> LinearBounds:
        """Bounds of all elements of a cell."""
        if cell is None:
            return ANY
        if cell.known is not None:
            return LinearBounds(cell.known, cell.known)
        if cell not in self.lines:
            self.lines[cell] = ANY  # ends the recursion if a value depends on itself
            self.lines[cell] = self.compute(cell)
        return self.lines[cell]

    def compute(self, cell: Cell) -> LinearBounds:
        """Bounds of a cell that isn't in the cache."""
        self.visits += 1
        if cell.maker is None or self.depth > MAX_DEPTH or self.visits > MAX_VISITS:
            return ANY
        self.depth += 1
        line = self.argument(cell) if cell.enters else self.result_of(cell.maker, cell)
        self.depth -= 1
        return restrict_to_dtype(line, cell.aval.dtype)

    def result_of(self, op: Op, cell: Cell) -> LinearBounds:
        """Bounds of a value from the operation that computes it."""
        if op.name in _ARITHMETIC:
            a, b = map(self.line, op.inputs)
            return _ARITHMETIC[op.name](a, b)
        # The elements of the result are elements of the operand, so they have the same bounds.
        if op.name in SAME:
            return self.line(op.inputs[0])
        if op.name == "neg":
            return minus(LinearBounds(0, 0), self.line(op.inputs[0]))
        if op.name == "clamp":
            low, x, high = map(self.line, op.inputs)
            return minimum(maximum(low, x), high)
        if op.name == "iota":
            return LinearBounds(0, max(cell.aval.shape[op.params["dimension"]] - 1, 0))
        return any_of([self.line(case) for case in cases_of(op, cell)] or [ANY])

    def argument(self, cell: Cell) -> LinearBounds:
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
        if change is None or not start.finite:
            return ANY
        before = LinearBounds(start.low, start.high, *change)
        after = LinearBounds(start.low + change[0], start.high + change[1], *change)
        # The body also computes the value of the next iteration, so this value must not overflow.
        lasts = min(
            (restrict_to_dtype(after, dtype).lasts + 1 for dtype in dtypes), default=math.inf
        )
        return before._replace(lasts=lasts)

    def change(self, cell: Cell, later: Cell | None, dtypes: set[Any]) -> tuple[Any, Any] | None:
        """Bounds of the change of a carried value per iteration.

        Args:
            cell: The value at the start of the body.
            later: The value at the end of the body.
            dtypes: A set to which the dtypes of intermediate values are added.

        Returns:
            The lower and the upper bound; `None` if the change is unknown.
        """
        if later is cell:
            return 0, 0
        self.visits += 1
        op = None if later is None or later.enters or later.known is not None else later.maker
        if later is None or op is None or self.depth > MAX_DEPTH or self.visits > MAX_VISITS:
            return None
        dtypes.add(later.aval.dtype)
        self.depth += 1
        try:
            if op.name in SAME:
                return self.change(cell, op.inputs[0], dtypes)
            if op.name in {"add", "sub"}:
                return self.increment(cell, op, dtypes)
            cases = cases_of(op, later)
            changes = [c for x in cases if (c := self.change(cell, x, dtypes)) is not None]
        finally:
            self.depth -= 1
        if not changes or len(changes) < len(cases):
            return None
        return min(low for low, _ in changes), max(high for _, high in changes)

    def increment(self, cell: Cell, op: Op, dtypes: set[Any]) -> tuple[Any, Any] | None:
        """Bounds of the change by a sum or difference, such as `i + 1`."""
        a, b = op.inputs
        combine = plus if op.name == "add" else minus
        for number, other in [(a, b), (b, a)][: 2 if op.name == "add" else 1]:
            change = self.change(cell, number, dtypes)
            if change is None:
                continue
            total = combine(LinearBounds(*change), self.line(other))
            return (total.low, total.high) if total.finite and total.constant else None
        return None

    def in_all_trips(self, cell: Cell, loop: Op) -> LinearBounds:
        """Bounds of a value of an enclosing loop, over all iterations of the enclosing loop."""
        line = CounterBounds(loop, self.max_trips).line(cell)
        if line.constant:
            return line
        control = loop.control
        trips = control.length if isinstance(control, Scan) else self.max_trips(loop)
        # The condition of a while loop also runs after the last iteration.
        last = trips if cell in loop.bodies[0].inputs and len(loop.bodies) == 2 else trips - 1
        if last > line.lasts:
            return ANY
        decrease = line.fall * last if line.fall < 0 else 0
        increase = line.rise * last if line.rise > 0 else 0
        return LinearBounds(line.low + decrease, line.high + increase)
