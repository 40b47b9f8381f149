"""Evaluation of a jaxpr with a function that reads or replaces the value of each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from fnopt.programs import _jaxprs as jaxprs
from fnopt.programs._control_flow import Cond, Scan, While, control_view
from fnopt.programs._nodes import JaxprNodes

NodeFn = Callable[[int, Any, Any], tuple[Any, Any]]
"""`(node, value, probe) -> (value, record)`; `None` means no record or no probe."""

NodeValues = dict[int, Any]
"""Probes or records, keyed by the number of the node."""


def intercept_nodes(
    level: JaxprNodes, args: Sequence[Any], visit: NodeFn, probes: NodeValues
) -> tuple[list[Any], NodeValues]:
    """Evaluate a jaxpr; `visit` maps the value of every node before other equations use it.

    Args:
        level: The jaxpr with its nodes.
        args: Values of its inputs.
        visit: Called once per node while the jaxpr is traced, also for a node inside a loop.
        probes: Extra inputs of `visit`, keyed by node, with leading axes for the scans around the
            node; `visit` receives the entry of the iteration.

    Returns:
        The outputs of the jaxpr, and the records keyed by node, with leading axes for the scans.
    """
    env = jaxprs.Environment(level.jaxpr, level.consts, args)
    records: NodeValues = {}

    def apply_visit(node: int, value: Any) -> Any:
        value, record = visit(node, value, probes.get(node))
        if record is not None:
            records[node] = record
        return value

    for i, eqn in enumerate(level.jaxpr.eqns):
        ins, pairs = env.read(eqn.invars), level.node_vars.get(i, ())
        if jaxprs.names_value(eqn) and pairs and pairs[0].var is eqn.outvars[0]:
            # The visit comes before the tap, so that a record of a patched function has the patched
            # value.
            ins, pairs = [apply_visit(pairs[0].node, *ins)], pairs[1:]
        if i in level.inner:
            with jaxprs.trace_context(eqn):
                outs, inner_records = _intercept_inner(eqn, level.inner[i], ins, visit, probes)
            records |= inner_records
        else:
            outs = jaxprs.bind(eqn, ins)
        env.write(eqn.outvars, outs)
        for node, var in pairs:
            env.write([var], [apply_visit(node, *env.read([var]))])
    return env.read(level.jaxpr.outvars), records


def _intercept_inner(
    eqn: jex.JaxprEqn,
    levels: tuple[JaxprNodes, ...],
    ins: list[Any],
    visit: NodeFn,
    probes: NodeValues,
) -> tuple[list[Any], NodeValues]:
    """Evaluate an equation whose jaxprs contain nodes."""
    if jaxprs.is_remat(eqn):
        return _remat(eqn, levels, ins, visit, probes)
    if jaxprs.is_custom_rule(eqn):
        # The body is evaluated for its nodes in addition to the call, which has the derivative
        # rule. XLA merges both forward computations.
        return jaxprs.bind(eqn, ins), intercept_nodes(levels[0], ins, visit, probes)[1]
    if jaxprs.is_call(eqn):
        return intercept_nodes(levels[0], ins, visit, probes)
    match control_view(eqn):
        case Scan() as loop:
            return _scan(loop, levels[0], ins, visit, probes)
        case Cond():
            return _cond(levels, ins, visit, probes)
        case While() as loop:
            return _while(loop, levels, ins, visit, probes)
    raise AssertionError(
        f"got a visible node inside {eqn.primitive.name}, expected none (a bug in find_nodes)"
    )


def _remat(
    eqn: jex.JaxprEqn,
    levels: tuple[JaxprNodes, ...],
    ins: list[Any],
    visit: NodeFn,
    probes: NodeValues,
) -> tuple[list[Any], NodeValues]:
    # Records are outputs of the checkpoint, so they are stored; other values are recomputed.
    def run(ins: list[Any], probes: NodeValues) -> tuple[list[Any], NodeValues]:
        return intercept_nodes(levels[0], ins, visit, probes)

    options = {key: eqn.params[key] for key in ("prevent_cse", "policy") if key in eqn.params}
    return jax.checkpoint(run, **options)(ins, _probes_inside(levels, probes))


def _scan(
    loop: Scan, level: JaxprNodes, ins: list[Any], visit: NodeFn, probes: NodeValues
) -> tuple[list[Any], NodeValues]:
    consts, init, xs = loop.parts(ins)

    def body(carry: list[Any], x: tuple[list[Any], NodeValues]) -> tuple[list[Any], Any]:
        outs, records = intercept_nodes(level, [*consts, *carry, *x[0]], visit, x[1])
        carry, rows = loop.results(outs)
        return carry, (rows, records)

    slices = (xs, _probes_inside((level,), probes))
    carry, (ys, records) = jax.lax.scan(
        body, init, slices, length=loop.length, reverse=loop.reverse, **loop.options
    )
    return [*carry, *ys], records


def _cond(
    levels: tuple[JaxprNodes, ...], ins: list[Any], visit: NodeFn, probes: NodeValues
) -> tuple[list[Any], NodeValues]:
    def evaluator(level: JaxprNodes) -> Callable[..., tuple[list[Any], NodeValues]]:
        return lambda ins, probes: intercept_nodes(level, ins, visit, probes)

    index, *operands = ins
    branches, probes = [evaluator(level) for level in levels], _probes_inside(levels, probes)
    # All branches must return the same tree, so a branch returns zeros for the records of others.
    shapes: NodeValues = {}
    for branch in branches:
        shapes |= jax.eval_shape(branch, operands, probes)[1]

    def with_all_records(branch: Callable[..., Any]) -> Callable[..., Any]:
        def run(ins: list[Any], probes: NodeValues) -> tuple[list[Any], NodeValues]:
            outs, records = branch(ins, probes)
            return outs, _zeros(shapes) | records

        return run

    return jax.lax.switch(index, [with_all_records(b) for b in branches], operands, probes)


def _while(
    loop: While, levels: tuple[JaxprNodes, ...], ins: list[Any], visit: NodeFn, probes: NodeValues
) -> tuple[list[Any], NodeValues]:
    test_consts, body_consts, init = loop.parts(ins)
    level = next(level for level in levels if level.jaxpr is loop.body.jaxpr)

    def cond_fun(state: tuple[list[Any], NodeValues]) -> Any:
        return jex.jaxpr_as_fun(loop.test.closed)(*test_consts, *state[0])[0]

    def body(state: tuple[list[Any], NodeValues]) -> tuple[list[Any], NodeValues]:
        return intercept_nodes(level, [*body_consts, *state[0]], visit, probes)

    # The records are part of the carry, so that the records of the last iteration are returned.
    _, shapes = jax.eval_shape(body, (init, {}))
    return jax.lax.while_loop(cond_fun, body, (init, _zeros(shapes)))


def _probes_inside(levels: tuple[JaxprNodes, ...], probes: NodeValues) -> NodeValues:
    inside = set().union(*(level.nodes() for level in levels))
    return {node: probe for node, probe in probes.items() if node in inside}


def _zeros(shapes: NodeValues) -> NodeValues:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
