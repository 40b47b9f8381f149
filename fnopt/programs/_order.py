"""The order in which a program can be run: what depends on what, and what can be done beside it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from jax.extend import core as jex

_ROW = 10  # additions, that are left as they are: those of a formula of one leaf


def dependent(jaxpr: jex.Jaxpr) -> set[jex.Var]:
    """The variables that depend on the inputs."""
    found = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if any(is_one_of(atom, found) for atom in eqn.invars):
            found.update(eqn.outvars)
    return found


class Sum(NamedTuple):
    """Additions in a row, each of what came before and one array more."""

    invars: list[Any]
    outvars: list[jex.Var]


def levels(jaxpr: jex.Jaxpr) -> list[list[Any]]:
    """The equations by how many others have to be run before them; additions in a row are sums."""
    depth: dict[jex.Var, int] = {}
    found: list[list[Any]] = []
    for eqn in _with_sums(jaxpr):
        level = max((depth[atom] for atom in eqn.invars if is_one_of(atom, depth)), default=0)
        depth.update((var, level + 1) for var in eqn.outvars)
        found.extend([] for _ in range(level + 1 - len(found)))
        found[level].append(eqn)
    return found


def _with_sums(jaxpr: jex.Jaxpr) -> list[Any]:
    """The equations, of which additions in a row are one sum."""
    read = [atom for eqn in jaxpr.eqns for atom in eqn.invars] + list(jaxpr.outvars)
    uses = Counter(atom for atom in read if isinstance(atom, jex.Var))
    rows: dict[jex.Var, tuple[list[Any], list[jex.Var]]] = {}  # what is added up, and the sums
    first: Any
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "add":
            first, new = sorted(eqn.invars, key=lambda a: not is_one_of(a, rows))
            goes_on = is_one_of(first, rows) and uses[first] == 1
            terms, sums = rows.pop(first) if goes_on else ([first], [])
            terms.append(new)
            sums.append(eqn.outvars[0])
            rows[eqn.outvars[0]] = terms, sums
    long = {last: row for last, row in rows.items() if len(row[0]) >= _ROW}
    inside = {var for _, sums in long.values() for var in sums}
    equations: list[Any] = []
    for eqn in jaxpr.eqns:
        if eqn.outvars and eqn.outvars[0] in long:
            equations.append(Sum(long[eqn.outvars[0]][0], eqn.outvars))
        elif inside.isdisjoint(eqn.outvars):
            equations.append(eqn)
    return equations


def numbers(atom: Any) -> int:
    """How many numbers an input or output of an equation has."""
    return math.prod(atom.aval.shape)


def is_one_of(atom: Any, variables: Any) -> bool:
    """Whether an input of an equation is a variable, and one of these."""
    return isinstance(atom, jex.Var) and atom in variables
