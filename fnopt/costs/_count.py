"""Adds up the work of a program, loops by their trip counts."""

from __future__ import annotations

import dataclasses
from collections import Counter

from fnopt.costs._bytes import edge_traffic, own_traffic
from fnopt.costs._flops_table import RULES, reason_unknown
from fnopt.costs._graph import Graph, Op
from fnopt.costs._loops import trip_count
from fnopt.costs._result import Cost, Loop, Unknown
from fnopt.costs._work import Work
from fnopt.programs import Cond, Control, Scan, ShardMap, While

_Scope = tuple[str, ...]


@dataclasses.dataclass
class _Tally:
    """Work per part and what is unknown, of one run of a program."""

    works: dict[_Scope, Work] = dataclasses.field(default_factory=dict)
    unknown: Counter[tuple[str, str, str]] = dataclasses.field(default_factory=Counter)

    def add(self, scope: _Scope, work: Work) -> None:
        if work != Work():
            self.works[scope] = self.works.get(scope, Work()) + work

    def add_all(self, other: _Tally, scope: _Scope, times: int = 1) -> None:
        """Adds `times` runs of a program that stands in the part `scope`."""
        if times == 0:
            return
        for inner, work in other.works.items():
            self.add(scope + inner, work * times)
        for (name, part, reason), count in other.unknown.items():
            self.unknown[name, _path(scope, part), reason] += count * times

    @property
    def total(self) -> Work:
        return sum(self.works.values(), Work())


def count(graph: Graph, trip_counts: dict[str, int]) -> Cost:
    """The cost of one run of a program.

    Args:
        graph: The program, pruned.
        trip_counts: Iterations of loops by name (see `Loop`), `'*'` for all that aren't named.
    """
    counter = _Counter(trip_counts)
    tally = counter.graph(graph, ())
    works = {"/".join(scope): work for scope, work in tally.works.items()}
    unknown = tuple(Unknown(*key, n) for key, n in tally.unknown.items())
    return Cost(works, unknown, tuple(counter.loops))


class _Counter:
    """Walks a program; remembers the loops that it met, whose names must be unique."""

    def __init__(self, trip_counts: dict[str, int]) -> None:
        self.trip_counts = trip_counts
        self.loops: list[Loop] = []

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
                # The body is the program of one device; all devices run it.
                tally.add_all(self.graph(op.bodies[0], where), op.scope, mapped.devices)

    def while_loop(self, op: Op, tally: _Tally, where: _Scope) -> None:
        name = self.loop_name(where, "while")
        trips = self.trip_counts.get(name, trip_count(op))
        if trips is None:
            trips = self.trip_counts.get("*")
        self.loops.append(Loop(name, trips))
        test, body = (self.graph(g, where) for g in op.bodies)
        if trips is None:
            reason = f"ONE iteration is counted: pass trip_counts={{{name!r}: n}}"
            tally.unknown[name, "/".join(op.scope), reason] += 1
        tally.add_all(test, op.scope, 2 if trips is None else trips + 1)
        tally.add_all(body, op.scope, 1 if trips is None else trips)

    def cond(self, op: Op, tally: _Tally, where: _Scope) -> None:
        branches = [self.graph(branch, where) for branch in op.bodies]
        heaviest = max(branches, key=_weight)
        tally.add_all(heaviest, op.scope)
        for other in branches:  # what isn't known of them might make them the heaviest
            if other is not heaviest:
                tally.add_all(_Tally(unknown=other.unknown), op.scope)

    def loop_name(self, where: _Scope, kind: str) -> str:
        name = "/".join((*where, kind))
        taken = {loop.name for loop in self.loops}
        later = (f"{name}_{i}" for i in range(2, len(taken) + 3))
        return name if name not in taken else next(n for n in later if n not in taken)


def _work(op: Op) -> Work | str:
    """The work of an operation, or why it is not known."""
    rule = RULES.get(op.name)
    if rule is None:
        return reason_unknown(op.name)
    try:
        return rule(op)
    except KeyError as missing:  # a release of JAX may name its parameters otherwise
        return f"this release of JAX gives it no parameter {missing}"


def _weight(tally: _Tally) -> tuple[int, int]:
    """Which branch is the heavier: by operations, then by bytes."""
    total = tally.total
    return total.flops + total.transcendentals, total.bytes


def _path(scope: _Scope, part: str) -> str:
    return "/".join(p for p in (*scope, part) if p)
