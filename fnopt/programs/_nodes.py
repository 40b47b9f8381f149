"""The nodes of a jaxpr: values named by taps, and results of named scopes."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend import core as jex

from fnopt.numerics import is_inexact
from fnopt.programs import _jaxprs as jaxprs
from fnopt.programs._control_flow import Cond, Scan, While, control_view


class Node(NamedTuple):
    """A named intermediate value of a function.

    Attributes:
        name: The unique name of the node: `'hidden'`, `'hidden#1'`, `'scope:Model/Dense_0'`.
        shape: The shape of its captured value; the iterations of scans are leading axes.
        dtype: The dtype of the value.
        axes: The lengths of the scans around the node, outermost first.
        note: The reason why the node has no cotangent or can't be captured, or an empty string.
        visible: Whether the value can be captured.
        branches: The number of each `cond` around the node, with the number of the branch.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[int, ...] = ()
    note: str = ""
    visible: bool = True
    branches: tuple[tuple[int, int], ...] = ()

    def excludes(self, other: Node) -> bool:
        """Whether two nodes are in different branches of one `cond`, so that at most one runs."""
        own_branches, other_branches = dict(self.branches), dict(other.branches)
        return any(
            own_branches[cond] != other_branches[cond]
            for cond in own_branches.keys() & other_branches.keys()
        )


class NodeVar(NamedTuple):
    """The number of a node, and the jaxpr variable with its value."""

    node: int
    var: jex.Var


class JaxprNodes(NamedTuple):
    """A jaxpr with its nodes, and the nodes of the jaxprs inside its equations.

    Attributes:
        jaxpr: The jaxpr.
        consts: The values of its constvars.
        node_vars: The nodes whose values an equation computes, keyed by the index of the equation.
        inner: The jaxprs inside an equation, keyed by the index of the equation.
    """

    jaxpr: jex.Jaxpr
    consts: tuple[Any, ...]
    node_vars: dict[int, tuple[NodeVar, ...]]
    inner: dict[int, tuple[JaxprNodes, ...]]

    def nodes(self) -> set[int]:
        """The numbers of all nodes, including nodes of inner jaxprs."""
        own_nodes = {pair.node for pairs in self.node_vars.values() for pair in pairs}
        return own_nodes.union(
            *(level.nodes() for levels in self.inner.values() for level in levels)
        )

    def restrict(self, nodes: set[int]) -> JaxprNodes:
        """Keep only the given nodes, and drop inner jaxprs without such nodes."""
        restricted = {
            i: tuple(p for p in ps if p.node in nodes) for i, ps in self.node_vars.items()
        }
        inner = {i: tuple(s.restrict(nodes) for s in levels) for i, levels in self.inner.items()}
        return self._replace(
            node_vars={i: pairs for i, pairs in restricted.items() if pairs},
            inner={i: s for i, s in inner.items() if any(level.nodes() for level in s)},
        )


def find_nodes(closed: jex.ClosedJaxpr, scopes: bool) -> tuple[JaxprNodes, tuple[Node, ...]]:
    """Find the nodes of a jaxpr; return the jaxpr with its nodes, and a description of each node.

    Args:
        closed: The traced function.
        scopes: Whether named scopes are nodes in addition to taps.
    """
    finder = _NodeFinder(scopes)
    level = finder.find_in_jaxpr(
        jaxprs.SubJaxpr("jaxpr", closed.jaxpr, tuple(closed.consts)), _Context()
    )
    return level, _number_names(finder.found)


def _number_names(nodes: list[Node]) -> tuple[Node, ...]:
    """Number the nodes that share a name: `name#0`, `name#1`, in the order of the program."""
    total = collections.Counter(node.name for node in nodes)
    numbers: collections.Counter[str] = collections.Counter()
    numbered = []
    for node in nodes:
        is_shared = total[node.name] > 1
        numbered.append(
            node._replace(name=f"{node.name}#{numbers[node.name]}") if is_shared else node
        )
        numbers[node.name] += 1
    return tuple(numbered)


class _Context(NamedTuple):
    """The context of a jaxpr: lengths of scans, scopes, branches, and obstacles."""

    axes: tuple[int, ...] = ()
    scope: tuple[str, ...] = ()
    note: str = ""
    visible: bool = True
    branches: tuple[tuple[int, int], ...] = ()


_IN_WHILE_LOOP = (
    "inside a while loop, which has no reverse-mode derivative; the value of the last iteration is "
    "captured"
)
SCOPE_PREFIX = "scope:"
"""The prefix in the name of a node that is the result of a `jax.named_scope`, not a tap."""

HIDDEN_BY_RULE = "inside a function with a custom derivative rule (custom_jvp, custom_vjp)"


class _NodeFinder:
    def __init__(self, scopes: bool) -> None:
        self.scopes = scopes
        self.found: list[Node] = []
        self.conds = itertools.count()

    def find_in_jaxpr(self, sub: jaxprs.SubJaxpr, context: _Context) -> JaxprNodes:
        ends = _scope_ends(sub.jaxpr) if self.scopes else {}
        level = JaxprNodes(sub.jaxpr, sub.consts, {}, {})
        for i, eqn in enumerate(sub.jaxpr.eqns):
            if inner := tuple(
                self.find_in_jaxpr(*pair) for pair in _inner_jaxprs(eqn, context, self.conds)
            ):
                level.inner[i] = inner
            pairs = [self.add(name, var, context) for name, var in _taps(eqn)]
            for path, var in ends.get(i, ()):
                pairs.append(
                    self.add(SCOPE_PREFIX + "/".join((*context.scope, *path)), var, context)
                )
            if pairs:
                level.node_vars[i] = tuple(pairs)
        return level

    def add(self, name: str, var: jex.Var, context: _Context) -> NodeVar:
        aval: Any = var.aval
        note = context.note
        if not note and not is_inexact(aval):
            note = f"{aval.dtype}, which has no gradient"
        shape = (*context.axes, *aval.shape)
        fields = context.axes, note, context.visible, context.branches
        self.found.append(Node(name, shape, aval.dtype, *fields))
        return NodeVar(len(self.found) - 1, var)


def _taps(eqn: jex.JaxprEqn) -> Iterator[tuple[str, jex.Var]]:
    if jaxprs.names_value(eqn):
        yield eqn.params["name"], eqn.outvars[0]


def _inner_jaxprs(
    eqn: jex.JaxprEqn, outer: _Context, conds: Iterator[int]
) -> Iterator[tuple[jaxprs.SubJaxpr, _Context]]:
    """Yield the jaxprs in an equation, each with its context."""
    context = outer._replace(scope=(*outer.scope, *jaxprs.name_scopes(eqn)))
    if sub := jaxprs.called_jaxpr(eqn):
        yield (
            sub,
            context._replace(note=HIDDEN_BY_RULE if jaxprs.is_custom_rule(eqn) else context.note),
        )
        return
    match control_view(eqn):
        case Scan() as loop:
            yield loop.body, context._replace(axes=(*context.axes, loop.length))
        case Cond() as choice:
            cond = next(conds)
            for i, branch in enumerate(choice.branches):
                yield branch, context._replace(branches=(*context.branches, (cond, i)))
        case While() as loop:
            yield loop.test, _hide(context, eqn, loop.test)
            yield loop.body, context._replace(note=context.note or _IN_WHILE_LOOP)
        case _:
            yield from ((sub, _hide(context, eqn, sub)) for sub in jaxprs.sub_jaxprs(eqn))


def _hide(context: _Context, eqn: jex.JaxprEqn, sub: jaxprs.SubJaxpr) -> _Context:
    note = f"inside {eqn.primitive.name} ({sub.param}), where values can't be captured"
    return context._replace(note=note, visible=False)


def _scope_ends(jaxpr: jex.Jaxpr) -> dict[int, list[tuple[tuple[str, ...], jex.Var]]]:
    """The last equation of every scope that begins in this jaxpr, and the result of the scope.

    A scope is a sequence of consecutive equations. The result of a scope is the last floating value
    that is used after the scope.
    """
    last_use = _last_use(jaxpr)
    ends: dict[int, list[tuple[tuple[str, ...], jex.Var]]] = {}
    for path, start, end in _runs([jaxprs.name_scopes(eqn) for eqn in jaxpr.eqns]):
        outputs = [v for eqn in jaxpr.eqns[start : end + 1] for v in eqn.outvars]
        results = [v for v in outputs if last_use.get(v, -1) > end and is_inexact(v.aval)]
        if results:
            ends.setdefault(end, []).append((path, results[-1]))
    return ends


def _last_use(jaxpr: jex.Jaxpr) -> dict[Any, int]:
    uses = [(v, i) for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars]
    uses += [(v, len(jaxpr.eqns)) for v in jaxpr.outvars]
    return {v: i for v, i in uses if not isinstance(v, jex.Literal)}


def _runs(paths: list[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Yield each maximal sequence of equations under a path, `(path, first, last)`, inner first."""
    starts: list[int] = []
    previous: tuple[str, ...] = ()
    for i, path in enumerate([*paths, ()]):
        common = _common_length(previous, path)
        for depth in range(len(previous), common, -1):
            yield previous[:depth], starts.pop(), i - 1
        starts += [i] * (len(path) - common)
        previous = path


def _common_length(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """The number of leading names that two paths share."""
    matches = (x == y for x, y in zip(a, b, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, matches))
