"""Evaluation of a traced function, with a visit to each of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from fnopt.programs import _read as jaxprs
from fnopt.programs._control import Cond, Scan, While, control_view
from fnopt.programs._levels import Level

Visit = Callable[[int, Any, Any], tuple[Any, Any]]
"""`(node, value, probe) -> (value, record)`; no record is `None`, no probe too."""

Records = dict[int, Any]
"""By node: what is given to it (probes), or what was seen there."""


def replay(
    level: Level, args: Sequence[Any], visit: Visit, probes: Records
) -> tuple[list[Any], Records]:
    """Runs a level; every node's value goes through `visit` before anything else uses it.

    Args:
        level: The jaxpr with its nodes.
        args: Values of its inputs.
        visit: Called once for each node, and once for all iterations of a loop.
        probes: Extra inputs of `visit` by node, with leading axes for the scans around the node;
            what `visit` gets is the entry of the iteration.

    Returns:
        The outputs of the jaxpr, and the records by node, with leading axes for the scans.
    """
    env = jaxprs.Environment(level.jaxpr, level.consts, args)
    records: Records = {}

    def visited(node: int, value: Any) -> Any:
        value, record = visit(node, value, probes.get(node))
        if record is not None:
            records[node] = record
        return value

    for i, eqn in enumerate(level.jaxpr.eqns):
        ins, marks = env.read(eqn.invars), level.marks.get(i, ())
        if jaxprs.is_name(eqn) and marks and marks[0].var is eqn.outvars[0]:
            # Before the tap, so that a look at a patched function shows what was put there.
            ins, marks = [visited(marks[0].node, *ins)], marks[1:]
        if i in level.inner:
            with jaxprs.context(eqn):
                outs, seen = _inside(eqn, level.inner[i], ins, visit, probes)
            records |= seen
        else:
            outs = jaxprs.bind(eqn, ins)
        env.write(eqn.outvars, outs)
        for node, var in marks:
            env.write([var], [visited(node, *env.read([var]))])
    return env.read(level.jaxpr.outvars), records


def _inside(
    eqn: jex.JaxprEqn, levels: tuple[Level, ...], ins: list[Any], visit: Visit, probes: Records
) -> tuple[list[Any], Records]:
    """Runs an equation with nodes in it."""
    if jaxprs.is_remat(eqn):
        return _remat(eqn, levels, ins, visit, probes)
    if jaxprs.is_custom_rule(eqn):
        # Beside the call, which keeps its rule; the compiler merges the two forward computations.
        return jaxprs.bind(eqn, ins), replay(levels[0], ins, visit, probes)[1]
    if jaxprs.is_call(eqn):
        return replay(levels[0], ins, visit, probes)
    match control_view(eqn):
        case Scan() as loop:
            return _scan(loop, levels[0], ins, visit, probes)
        case Cond():
            return _cond(levels, ins, visit, probes)
        case While() as loop:
            return _while(loop, levels, ins, visit, probes)
    raise AssertionError(f"a node inside {eqn.primitive.name} was thought to be visible")


def _remat(
    eqn: jex.JaxprEqn, levels: tuple[Level, ...], ins: list[Any], visit: Visit, probes: Records
) -> tuple[list[Any], Records]:
    # What is recorded is stored; all else is still forgotten and computed again.
    def run(ins: list[Any], probes: Records) -> tuple[list[Any], Records]:
        return replay(levels[0], ins, visit, probes)

    options = {key: eqn.params[key] for key in ("prevent_cse", "policy") if key in eqn.params}
    return jax.checkpoint(run, **options)(ins, _of(levels, probes))


def _scan(
    loop: Scan, level: Level, ins: list[Any], visit: Visit, probes: Records
) -> tuple[list[Any], Records]:
    consts, init, xs = loop.parts(ins)

    def body(carry: list[Any], x: tuple[list[Any], Records]) -> tuple[list[Any], Any]:
        outs, records = replay(level, [*consts, *carry, *x[0]], visit, x[1])
        carry, rows = loop.results(outs)
        return carry, (rows, records)

    slices = (xs, _of((level,), probes))
    carry, (ys, records) = jax.lax.scan(
        body, init, slices, length=loop.length, reverse=loop.reverse, **loop.options
    )
    return [*carry, *ys], records


def _cond(
    levels: tuple[Level, ...], ins: list[Any], visit: Visit, probes: Records
) -> tuple[list[Any], Records]:
    def runs(level: Level) -> Callable[..., tuple[list[Any], Records]]:
        return lambda ins, probes: replay(level, ins, visit, probes)

    index, *operands = ins
    branches, probes = [runs(level) for level in levels], _of(levels, probes)
    shapes: Records = {}
    for branch in branches:
        shapes |= jax.eval_shape(branch, operands, probes)[1]

    def with_all_records(branch: Callable[..., Any]) -> Callable[..., Any]:
        def run(ins: list[Any], probes: Records) -> tuple[list[Any], Records]:
            outs, records = branch(ins, probes)
            return outs, _zeros(shapes) | records

        return run

    return jax.lax.switch(index, [with_all_records(b) for b in branches], operands, probes)


def _while(
    loop: While, levels: tuple[Level, ...], ins: list[Any], visit: Visit, probes: Records
) -> tuple[list[Any], Records]:
    test_consts, body_consts, init = loop.parts(ins)
    level = next(level for level in levels if level.jaxpr is loop.body.jaxpr)

    def goes_on(state: tuple[list[Any], Records]) -> Any:
        return jex.jaxpr_as_fun(loop.test.closed)(*test_consts, *state[0])[0]

    def body(state: tuple[list[Any], Records]) -> tuple[list[Any], Records]:
        return replay(level, [*body_consts, *state[0]], visit, probes)

    _, shapes = jax.eval_shape(body, (init, {}))
    return jax.lax.while_loop(goes_on, body, (init, _zeros(shapes)))


def _of(levels: tuple[Level, ...], probes: Records) -> Records:
    inside = set().union(*(level.nodes() for level in levels))
    return {node: probe for node, probe in probes.items() if node in inside}


def _zeros(shapes: Records) -> Records:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
