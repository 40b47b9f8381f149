"""Trip counts of while loops, exact or as upper bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fnopt.costs._counters import (
    MAX_DEPTH,
    MAX_VISITS,
    SAME,
    CounterBounds,
    cases_of,
    entry_of,
)
from fnopt.costs._graph import Cell, Op
from fnopt.costs._lines import (
    LinearBounds,
    Number,
    TripSpan,
    always,
    conjunction,
    difference,
    disjunction,
    positive,
    zero,
)

# A comparison is equivalent to a condition on a difference. For each comparison: whether the
# difference is `right - left`, not `left - right`; whether it must be positive, not nonnegative.
_COMPARED = {"gt": (False, True), "ge": (False, False), "lt": (True, True), "le": (True, False)}
_OPPOSITE = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}
_LIMIT = 2**31 - 2  # a loop that counts to the largest int32 is practically unbounded


class Trips(NamedTuple):
    """Trip count of a loop.

    Attributes:
        number: Number of iterations, or its upper bound.
        exact: Whether `number` is exact.
    """

    number: int
    exact: bool


def trip_count(op: Op) -> Trips | None:
    """Trip count of a while loop, or an upper bound; `None` if the program doesn't determine one.

    The analysis evaluates the loop's condition with linear bounds of the loop variables. A
    conjunction of comparisons ends the loop when the first comparison fails; a disjunction ends the
    loop when the last comparison fails. A batched loop (`jax.vmap`) runs until the last example has
    finished, so the bounds cover all examples.
    """
    original = op.bodies[1].inputs[0].maker  # pruning may have removed operations of `op`
    assert original is not None
    return _Conditions(original).trips()


class _Conditions:
    """Iterations in which the conditions of a loop hold.

    Attributes:
        op: The while loop.
        numbers: Bounds of the numbers in the loop.
        open: Conditions that are being analyzed, to end recursions.
        lasts: The last iteration in which no number overflows.
    """

    def __init__(self, op: Op) -> None:
        self.op = op
        self.numbers = CounterBounds(op, _max_trips)
        self.open: set[tuple[Cell, bool]] = set()
        self.depth = self.visits = 0
        self.lasts: Number = math.inf

    def trips(self) -> Trips | None:
        """Trip count of the loop, or an upper bound; `None` if the loop may not end."""
        span = self.span(self.op.bodies[0].outputs[0], True)
        if span.end > min(self.lasts, _LIMIT):
            return None
        return Trips(int(span.end), span.until >= span.end)

    def span(self, cell: Cell | None, truth: bool) -> TripSpan:
        """Iterations in which all elements of a cell are true (or false)."""
        if cell is None:
            return TripSpan()
        if cell.known is not None:
            return always(bool(cell.known) == truth)
        self.visits += 1
        if cell.maker is None or self.depth > MAX_DEPTH or self.visits > MAX_VISITS:
            return TripSpan()
        self.depth += 1
        span = (
            self.argument(cell, truth) if cell.enters else self.result_of(cell.maker, cell, truth)
        )
        self.depth -= 1
        return span

    def result_of(self, op: Op, cell: Cell, truth: bool) -> TripSpan:
        """Iterations in which a condition holds, from the operation that computes the condition."""
        a, b = (*op.inputs, None, None)[:2]
        parts = _logical_operands(op)
        if parts and cell.aval.dtype == bool:
            # De Morgan: a conjunction is false if at least one operand is false.
            combine = conjunction if op.name.endswith("and") == truth else disjunction
            return combine(*(self.span(part, truth) for part in parts))
        if op.name in SAME and a is not None:
            if a.aval.dtype == bool:
                return self.span(a, truth)
            return self.until_overflow(zero(self.numbers.line(a), not truth), self.numbers.line(a))
        if cell.aval.dtype != bool:
            return TripSpan()
        if op.name == "not":
            return self.span(a, not truth)
        if op.name in _COMPARED:
            return self.inequality(op.name if truth else _OPPOSITE[op.name], op)
        if op.name in {"eq", "ne", "xor"} and a is not None and b is not None:
            return self.equal(a, b, (op.name == "eq") == truth)
        return self.selection(op, cell, truth)

    def inequality(self, name: str, op: Op) -> TripSpan:
        """Iterations in which an inequality between the operands holds."""
        left, right = map(self.numbers.line, op.inputs)
        reverse, strictly = _COMPARED[name]
        line = difference(right, left) if reverse else difference(left, right)
        return self.until_overflow(positive(line, strictly), line)

    def equal(self, a: Cell, b: Cell, truth: bool) -> TripSpan:
        """Iterations in which `a` and `b` are equal (or unequal)."""
        if a.aval.dtype != bool:
            line = difference(self.numbers.line(a), self.numbers.line(b))
            return self.until_overflow(zero(line, truth), line)
        if a.known is not None:
            a, b = b, a
        return TripSpan() if b.known is None else self.span(a, bool(b.known) == truth)

    def until_overflow(self, span: TripSpan, line: LinearBounds) -> TripSpan:
        """Restrict a span to the iterations before a number overflows."""
        if span.end > line.lasts:
            return TripSpan(min(span.until, line.lasts + 1))
        self.lasts = min(self.lasts, line.lasts)
        return span

    def selection(self, op: Op, cell: Cell, truth: bool) -> TripSpan:
        """Iterations in which a condition holds that a select or a cond returns."""
        spans = [self.span(case, truth) for case in cases_of(op, cell)]
        if len(spans) == 2:  # the predicate selects the second case if it is true
            first, second = (self.span(op.inputs[0], predicate) for predicate in (False, True))
            return disjunction(conjunction(first, spans[0]), conjunction(second, spans[1]))
        if not spans:
            return TripSpan()
        after = max(span.after for span in spans)
        return TripSpan(min(span.until for span in spans), after, after)

    def argument(self, cell: Cell, truth: bool) -> TripSpan:
        """Iterations in which an argument of a loop body or branch is true (or false)."""
        entry = entry_of(cell)
        if entry.inside is None:
            return self.span(entry.outside, truth)
        if entry.op is not self.op:
            return TripSpan()
        if (entry.inside, truth) in self.open:
            # The carried condition depends on itself. Induction over the iterations: assume that
            # the condition holds at the start of the body, and prove that it holds at the end.
            return TripSpan(until=math.inf)
        start = self.span(entry.outside, truth)
        self.open.add((entry.inside, truth))
        later = self.span(entry.later, truth)
        self.open.remove((entry.inside, truth))
        until = later.until + 1 if start.until == math.inf else 0
        end = 0 if start.end == 0 else later.end + 1
        return TripSpan(until, end, 0 if start.end == later.after == 0 else later.after + 1)


def _logical_operands(op: Op) -> Sequence[Cell]:
    """Operands of a logical operation; empty for other operations."""
    if op.name in {"and", "or"}:
        return op.inputs
    if op.name in {"reduce_and", "reduce_or"}:
        stacked = op.inputs[0].maker
        if stacked is not None and stacked.name in {"concatenate", "stack"}:
            return stacked.inputs
    return ()


def _max_trips(op: Op) -> float:
    trips = _Conditions(op).trips()
    return math.inf if trips is None else trips.number
