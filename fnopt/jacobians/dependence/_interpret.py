"""Abstract interpretation of a linear program by the dependence rules."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from fnopt.jacobians.dependence._control import branches, scan, while_loop
from fnopt.jacobians.dependence._rule import Entry, dependent, entry_of, outputs_of, shape_of
from fnopt.jacobians.dependence._sets import ALL, Sets
from fnopt.jacobians.dependence._sums import mixed
from fnopt.jacobians.dependence._table import RULES
from fnopt.programs import jaxprs

_CONTROL = {"cond": branches, "while": while_loop, "scan": scan}


def dependence(linear: jex.ClosedJaxpr, size: int) -> tuple[Sets, list[np.ndarray]]:
    r"""Sets of inputs that each output of a program can depend on, as upper bounds.

    The program is walked once, with a set of inputs in place of every number. An operation that
    isn't known, or has a parameter that isn't, mixes all its inputs. Index arrays and zeros of
    matrices count where the program has them as constants. What is written into mutable arrays
    (`jax.new_ref`) isn't followed: then every output depends on all inputs.

    Args:
        linear: A program that is linear in its last argument, a vector of shape `[size]`. Of the
            other arguments nothing is known.
        size: The length of that vector.

    Returns:
        The sets, and for each output of the program an array of them.

    Example:
        >>> from fnopt.jacobians.dependence import dependence
        >>> program = jax.make_jaxpr(lambda x, v: x[1:] * v[1:] + v[0])(jnp.ones(3), jnp.ones(3))
        >>> sets, (ids,) = dependence(program, 3)
        >>> [part.tolist() for part in sets.members(ids)]
        [[0, 0, 1, 1], [0, 1, 0, 2]]
    """
    sets = Sets(size)
    *others, _ = linear.jaxpr.invars
    inputs = [Entry(shape_of(v)) for v in others] + [dependent(sets.inputs)]
    with jax.ensure_compile_time_eval():  # also where something is being traced outside
        try:
            return sets, [entry.sets for entry in _run(sets, linear, inputs)]
        except _WrittenError:
            return sets, [np.full(shape_of(v), ALL, np.int32) for v in linear.jaxpr.outvars]


def _run(sets: Sets, closed: jex.ClosedJaxpr, inputs: list[Entry]) -> list[Entry]:
    consts = [entry_of(value) for value in closed.consts]
    return _walk(sets, closed.jaxpr, consts, inputs)


def _walk(sets: Sets, jaxpr: jex.Jaxpr, consts: list[Entry], inputs: list[Entry]) -> list[Entry]:
    known: dict[jex.Var, Entry] = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Entry:
        return entry_of(atom.val) if isinstance(atom, jex.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        outputs = _outputs(sets, eqn, [read(atom) for atom in eqn.invars])
        known.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _outputs(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    if all(entry.ids is None for entry in inputs):
        return outputs_of(eqn, inputs)
    sub = jaxprs.called_jaxpr(eqn)
    if sub is not None:
        return _walk(sets, sub.jaxpr, [entry_of(value) for value in sub.consts], inputs)
    if _writes(eqn):
        raise _WrittenError
    name, run = eqn.primitive.name, lambda body, xs: _run(sets, body, xs)
    if name in _CONTROL:
        return _CONTROL[name](sets, run, eqn, inputs)
    rule, shapes = RULES.get(name), [shape_of(v) for v in eqn.outvars]
    if rule is None or not rule.knows(eqn):
        return [dependent(ids) for ids in mixed(sets, shapes, inputs)]
    found = rule(sets, eqn, inputs, run)
    assert [ids.shape for ids in found] == shapes, f"{name}: {[ids.shape for ids in found]}"
    return [dependent(ids) for ids in found]


class _WrittenError(Exception):
    """A value that depends on inputs was written to a mutable array, which isn't followed."""


def _writes(eqn: jex.JaxprEqn) -> bool:
    return any(type(effect).__name__ in {"WriteEffect", "AccumEffect"} for effect in eqn.effects)
