"""Total work of a program, with loop bodies multiplied by trip counts."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter

from fnopt.costs._bytes import edge_traffic, own_traffic
from fnopt.costs._flops_table import RULES, reason_unknown
from fnopt.costs._graph import Graph, Op
from fnopt.costs._loops import trip_count
from fnopt.costs._remarks import Bound, Loop, Unknown
from fnopt.costs._result import Cost, worse
from fnopt.costs._roofline import Work
from fnopt.programs import Cond, Control, Scan, ShardMap, While

_Scope = tuple[str, ...]


@dataclasses.dataclass
class _Tally:
    """Work of each part in one run of a program.

    Attributes:
        works: The work, keyed by the part.
        unknown: Number of runs of uncounted operations, keyed by name, part and reason.
        inexact: The parts whose work is an upper bound or incomplete.
    """

    works: dict[_Scope, Work] = dataclasses.field(default_factory=dict)
    unknown: Counter[tuple[str, str, str]] = dataclasses.field(default_factory=Counter)
    inexact: dict[_Scope, Bound] = dataclasses.field(default_factory=dict)

    def add(self, scope: _Scope, work: Work) -> None:
        if work != Work():
            self.works[scope] = self.works.get(scope, Work()) + work

    def add_all(
        self, other: _Tally, scope: _Scope, times: int = 1, bound: Bound | None = None
    ) -> None:
        """Add the work of `times` runs of a program in the part `scope`; mark it as a `bound`."""
        if times == 0:
            return
        for inner, work in other.works.items():
            self.add(scope + inner, work * times)
            if bound is not None:
                self.mark_inexact(scope + inner, bound)
        for inner, inner_bound in other.inexact.items():
            self.mark_inexact(scope + inner, inner_bound)
        for (name, part, reason), count in other.unknown.items():
            self.unknown[name, _path(scope, part), reason] += count * times

    def mark_inexact(self, scope: _Scope, bound: Bound) -> None:
        """Mark the work of a part as an upper bound or as incomplete."""
        self.inexact[scope] = worse(self.inexact.get(scope), bound)

    @property
    def total(self) -> Work:
        return sum(self.works.values(), Work())


def count(graph: Graph, trip_counts: dict[str, int]) -> Cost:
    """Compute the cost of one run of a program.

    Args:
        graph: The program without unused operations.
        trip_counts: Trip counts keyed by loop names (see `Loop`); `'*'` for all other loops.
    """
    counter = _Counter(trip_counts)
    tally = counter.graph(graph, ())
    works = {"/".join(scope): work for scope, work in tally.works.items()}
    unknown = tuple(Unknown(*key, n) for key, n in tally.unknown.items())
    inexact: dict[str, Bound] = {"/".join(scope): bound for scope, bound in tally.inexact.items()}
    return Cost(works, unknown, tuple(counter.loops), None, inexact, tuple(counter.choices))


class _Counter:
    """Traversal of a program that collects work, loops and conditionals."""

    def __init__(self, trip_counts: dict[str, int]) -> None:
        self.trip_counts = trip_counts
        self.loops: list[Loop] = []
        self.choices: list[str] = []

    def graph(self, graph: Graph, outer: _Scope) -> _Tally:
        tally = _Tally()
        for op in graph.ops:
            self.op(op, tally, outer)
        for scope, traffic in edge_traffic(graph):
            tally.add(scope, Work(bytes=traffic))
        return tally

    def op(self, op: Op, tally: _Tally, outer: _Scope) -> None:
        if op.control is not None:
            self.control(op, op.control, tally, outer + op.scope)
            return
        work = _work(op)
        if isinstance(work, str):
            tally.unknown[op.name, "/".join(op.scope), work] += 1
            tally.mark_inexact(op.scope, "incomplete")
        else:
            tally.add(op.scope, work)
        tally.add(op.scope, Work(bytes=own_traffic(op)))

    def control(self, op: Op, control: Control, tally: _Tally, where: _Scope) -> None:
        match control:
            case Scan() as loop:
                self.loops.append(Loop(self.loop_name(where, "scan"), loop.length))
                tally.add_all(self.graph(op.bodies[0], where), op.scope, loop.length)
            case While():
                self.while_loop(op, tally, where)
            case Cond():
                self.cond(op, tally, where)
            case ShardMap() as mapped:
                # The body is the program of one device, and all devices run this program.
                tally.add_all(self.graph(op.bodies[0], where), op.scope, mapped.devices)

    def while_loop(self, op: Op, tally: _Tally, where: _Scope) -> None:
        loop = self.iterations(op, self.loop_name(where, "while"))
        self.loops.append(loop)
        test, body = (self.graph(g, where) for g in op.bodies)
        # The condition runs once more than the body.
        trips, bound = (1, "incomplete") if loop.trips is None else (loop.trips, None)
        if loop.trips is None:
            reason = f"ONE iteration is counted; pass trip_counts={{{loop.name!r}: n}}"
            tally.unknown[loop.name, "/".join(op.scope), reason] += 1
            tally.mark_inexact(op.scope, "incomplete")
        tally.add_all(test, op.scope, trips + 1, "at most" if loop.at_most else bound)
        tally.add_all(body, op.scope, trips, "at most" if loop.at_most else bound)

    def iterations(self, op: Op, name: str) -> Loop:
        """Trip count of a while loop: the user's count for the name, the program's, or `'*'`."""
        if name in self.trip_counts:
            return Loop(name, self.trip_counts[name])
        trips, default = trip_count(op), self.trip_counts.get("*")
        # The user's default replaces an upper bound only if the default is smaller.
        if default is not None and (trips is None or (not trips.exact and default < trips.number)):
            return Loop(name, default)
        return Loop(name, None) if trips is None else Loop(name, trips.number, not trips.exact)

    def cond(self, op: Op, tally: _Tally, where: _Scope) -> None:
        branches = [self.graph(branch, where) for branch in op.bodies]
        totals = [branch.total for branch in branches]
        weights = [(work.flops + work.transcendentals, work.bytes) for work in totals]
        heaviest = branches[weights.index(max(weights))]
        are_equal = all(branch.works == heaviest.works for branch in branches)
        tally.add_all(heaviest, op.scope, bound=None if are_equal else "at most")
        if not are_equal:
            self.choices.append(_path(where, ""))
            # One branch may have more FLOPs and another branch more bytes, so the upper bound is
            # the elementwise maximum.
            maximum = functools.reduce(Work.at_least, totals)
            tally.add(op.scope, maximum - heaviest.total)
            tally.mark_inexact(op.scope, "at most")
        # Unknown operations could make another branch the most expensive.
        for other in branches:
            if other is not heaviest:
                tally.add_all(_Tally(unknown=other.unknown, inexact=other.inexact), op.scope)

    def loop_name(self, where: _Scope, kind: str) -> str:
        """Unique name of a loop: the part and the kind, with a number if the name exists."""
        name = "/".join((*where, kind))
        names = {loop.name for loop in self.loops}
        numbered = (f"{name}_{i}" for i in range(2, len(names) + 3))
        return name if name not in names else next(n for n in numbered if n not in names)


def _work(op: Op) -> Work | str:
    """Work of an operation, or the reason why it is unknown."""
    rule = RULES.get(op.name)
    if rule is None:
        return reason_unknown(op.name)
    try:
        return rule(op)
    except KeyError as name:  # a release of JAX may have other parameter names
        return f"the equation has no parameter {name} in this release of JAX"


def _path(scope: _Scope, part: str) -> str:
    return "/".join(p for p in (*scope, part) if p)
