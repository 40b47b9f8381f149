"""Finding the nodes of a traced function: what is tapped, and what leaves a named scope."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend import core as jex

from fnopt.core import is_inexact
from fnopt.programs import _read as jaxprs
from fnopt.programs._control import Cond, Scan, While, control_view


class Node(NamedTuple):
    """A named intermediate value of a function.

    Attributes:
        name: What selects this node alone: `'hidden'`, `'hidden#1'`, `'scope:Model/Dense_0'`.
        shape: The shape of its captured value: inside scans, the iterations come first.
        dtype: Its dtype.
        axes: How many iterations the scans around it have, outermost first.
        note: Why it has no cotangent, or why even its value is out of reach; else empty.
        visible: Whether its value can be captured.
        branches: The branches that it is in: the number of each `cond`, and that of its branch.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[int, ...] = ()
    note: str = ""
    visible: bool = True
    branches: tuple[tuple[int, int], ...] = ()

    def excludes(self, other: Node) -> bool:
        """Whether only one of two nodes can run: they are in different branches of one `cond`."""
        mine, others = dict(self.branches), dict(other.branches)
        return any(mine[cond] != others[cond] for cond in mine.keys() & others.keys())


class Mark(NamedTuple):
    """A variable of a jaxpr that is a node: the node's number, and the variable."""

    node: int
    var: jex.Var


class Level(NamedTuple):
    """A jaxpr with the nodes in it.

    Attributes:
        jaxpr: The jaxpr.
        consts: The values of its constvars.
        marks: By the index of the equation after which they are complete.
        inner: The levels inside an equation, by its index.
    """

    jaxpr: jex.Jaxpr
    consts: tuple[Any, ...]
    marks: dict[int, tuple[Mark, ...]]
    inner: dict[int, tuple[Level, ...]]

    def nodes(self) -> set[int]:
        """The numbers of all nodes at this level and below."""
        here = {mark.node for marks in self.marks.values() for mark in marks}
        return here.union(*(level.nodes() for levels in self.inner.values() for level in levels))

    def only(self, chosen: set[int]) -> Level:
        """A copy of the level with only these nodes; equations without any are closed."""
        kept = {i: tuple(m for m in marks if m.node in chosen) for i, marks in self.marks.items()}
        inner = {i: tuple(s.only(chosen) for s in levels) for i, levels in self.inner.items()}
        return self._replace(
            marks={i: marks for i, marks in kept.items() if marks},
            inner={i: s for i, s in inner.items() if any(level.nodes() for level in s)},
        )


def find_nodes(closed: jex.ClosedJaxpr, scopes: bool) -> tuple[Level, tuple[Node, ...]]:
    """The jaxpr with its nodes, and a description of every node by number.

    Args:
        closed: The traced function.
        scopes: Whether named scopes are nodes too, besides taps.
    """
    finder = _NodeFinder(scopes)
    level = finder.level(jaxprs.Sub("jaxpr", closed.jaxpr, tuple(closed.consts)), _Place())
    return level, _numbered(finder.found)


def _numbered(found: list[Node]) -> tuple[Node, ...]:
    """Tells nodes of one name apart: `name#0`, `name#1`, in the order of the program."""
    total = collections.Counter(node.name for node in found)
    seen: collections.Counter[str] = collections.Counter()
    numbered = []
    for node in found:
        several = total[node.name] > 1
        numbered.append(node._replace(name=f"{node.name}#{seen[node.name]}") if several else node)
        seen[node.name] += 1
    return tuple(numbered)


class _Place(NamedTuple):
    """The surroundings of a jaxpr: lengths of scans, scopes, branches, and obstacles."""

    axes: tuple[int, ...] = ()
    scope: tuple[str, ...] = ()
    note: str = ""
    visible: bool = True
    branches: tuple[tuple[int, int], ...] = ()


IN_LOOP = "inside a while loop, which has no reverse derivative; its value is the last iteration's"
SCOPE = "scope:"
"""What the name of a node begins with that is a named scope of the program, not a tap."""

IN_RULE = "inside a function with its own derivative rule (custom_jvp, custom_vjp), which hides it"


class _NodeFinder:
    def __init__(self, scopes: bool) -> None:
        self.scopes = scopes
        self.found: list[Node] = []
        self.conds = itertools.count()

    def level(self, sub: jaxprs.Sub, place: _Place) -> Level:
        ends = _scope_ends(sub.jaxpr) if self.scopes else {}
        level = Level(sub.jaxpr, sub.consts, {}, {})
        for i, eqn in enumerate(sub.jaxpr.eqns):
            if inner := tuple(self.level(*pair) for pair in _inside(eqn, place, self.conds)):
                level.inner[i] = inner
            marks = [self.mark(name, var, place) for name, var in _taps(eqn)]
            for path, var in ends.get(i, ()):
                marks.append(self.mark(SCOPE + "/".join((*place.scope, *path)), var, place))
            if marks:
                level.marks[i] = tuple(marks)
        return level

    def mark(self, name: str, var: jex.Var, place: _Place) -> Mark:
        aval: Any = var.aval
        note = place.note
        if not note and not is_inexact(aval):
            note = f"{aval.dtype}, which has no gradient"
        shape = (*place.axes, *aval.shape)
        rest = place.axes, note, place.visible, place.branches
        self.found.append(Node(name, shape, aval.dtype, *rest))
        return Mark(len(self.found) - 1, var)


def _taps(eqn: jex.JaxprEqn) -> Iterator[tuple[str, jex.Var]]:
    if jaxprs.is_name(eqn):
        yield eqn.params["name"], eqn.outvars[0]


def _inside(
    eqn: jex.JaxprEqn, outer: _Place, conds: Iterator[int]
) -> Iterator[tuple[jaxprs.Sub, _Place]]:
    """The jaxprs in an equation that are looked into, each with its place."""
    place = outer._replace(scope=(*outer.scope, *jaxprs.scope(eqn)))
    if sub := jaxprs.called(eqn):
        yield sub, place._replace(note=IN_RULE if jaxprs.is_custom_rule(eqn) else place.note)
        return
    match control_view(eqn):
        case Scan() as loop:
            yield loop.body, place._replace(axes=(*place.axes, loop.length))
        case Cond() as choice:
            cond = next(conds)
            for i, branch in enumerate(choice.branches):
                yield branch, place._replace(branches=(*place.branches, (cond, i)))
        case While() as loop:
            yield loop.test, _hidden(place, eqn, loop.test)
            yield loop.body, place._replace(note=place.note or IN_LOOP)
        case _:
            yield from ((sub, _hidden(place, eqn, sub)) for sub in jaxprs.sub_jaxprs(eqn))


def _hidden(place: _Place, eqn: jex.JaxprEqn, sub: jaxprs.Sub) -> _Place:
    note = f"inside {eqn.primitive.name} ({sub.param}), where nothing can be seen"
    return place._replace(note=note, visible=False)


def _scope_ends(jaxpr: jex.Jaxpr) -> dict[int, list[tuple[tuple[str, ...], jex.Var]]]:
    """The end of every scope that begins in this jaxpr, and the value that leaves it there.

    A scope is a run of equations; what leaves it is the last floating value made in it that is
    used after it.
    """
    last_use = _last_use(jaxpr)
    ends: dict[int, list[tuple[tuple[str, ...], jex.Var]]] = {}
    for path, start, end in _runs([jaxprs.scope(eqn) for eqn in jaxpr.eqns]):
        made = [v for eqn in jaxpr.eqns[start : end + 1] for v in eqn.outvars]
        leaving = [v for v in made if last_use.get(v, -1) > end and is_inexact(v.aval)]
        if leaving:
            ends.setdefault(end, []).append((path, leaving[-1]))
    return ends


def _last_use(jaxpr: jex.Jaxpr) -> dict[Any, int]:
    uses = [(v, i) for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars]
    uses += [(v, len(jaxpr.eqns)) for v in jaxpr.outvars]
    return {v: i for v, i in uses if not isinstance(v, jex.Literal)}


def _runs(paths: list[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Every maximal run `(path, first, last)` of places that are under a path; inner ones first."""
    starts: list[int] = []
    before: tuple[str, ...] = ()
    for i, path in enumerate([*paths, ()]):
        common = _common(before, path)
        for depth in range(len(before), common, -1):
            yield before[:depth], starts.pop(), i - 1
        starts += [i] * (len(path) - common)
        before = path


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """The number of leading names that two paths share."""
    same = (x == y for x, y in zip(a, b, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, same))
