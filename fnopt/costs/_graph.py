"""Computation graph of a traced program: inlining of calls, and dead-code elimination."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend import core as jex

from fnopt.errors import explain_jax_errors, explain_missing_keys
from fnopt.programs import (
    Cond,
    Control,
    Scan,
    ShardMap,
    While,
    call_view,
    control_view,
    copy_function,
    jaxprs,
)


def names(text: str) -> frozenset[str]:
    """Split a string into a set of names."""
    return frozenset(text.split())


# Primitives whose result is a view of (a part of) the first operand in another shape, dtype or
# order. Reading the result reads the operand's memory.
VIEWS = names("""
    reshape transpose squeeze expand_dims broadcast_in_dim convert_element_type slice dynamic_slice
    gather split unstack tile rev copy copy_p name tap stop_gradient optimization_barrier
    sharding_constraint layout_constraint device_put reduce_precision bitcast_convert_type reshard
    pvary pin unpin to_edtype from_edtype
""")
# Primitives that update a few elements of their first operand in place.
IN_PLACE = names("""
    dynamic_update_slice scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max
    scatter-apply
""")
_JAX = os.path.dirname(jax.__file__) + os.sep
_TRANSFORMED = re.compile(r"^(?:jvp|transpose|vmap)\((.*)\)$")


@dataclasses.dataclass(eq=False)
class Cell:
    """Node of the computation graph: one value of the program.

    Attributes:
        aval: The shape and dtype.
        known: The value of a concrete scalar (a constant or an argument); `None` otherwise.
        base: For a view, the cell whose memory is viewed; `None` otherwise.
        maker: The operation that computes the cell.
        enters: Whether the cell is an argument inside `maker`, such as a carried value of a loop.
    """

    aval: Any
    known: int | Fraction | None = None
    base: Cell | None = None
    maker: Op | None = dataclasses.field(default=None, repr=False)
    enters: bool = False

    @property
    def root(self) -> Cell:
        """Cell that owns the memory of this cell."""
        return self if self.base is None else self.base.root


@dataclasses.dataclass(eq=False)
class Op:
    """One operation on cells.

    Attributes:
        name: The primitive's name.
        params: The equation's parameters.
        inputs: The operands.
        outputs: The results.
        scope: The parts of the model that contain the operation, outermost first.
        control: The kind of control flow (loop, conditional or map), if any.
        bodies: The inner programs: `(body,)` of a scan, `(test, body)` of a while loop, the
            branches of a cond.
        effects: Whether the operation has side effects, so that it is never removed.
        used: Mask of the outputs that are used; set when the program is pruned.
    """

    name: str
    params: dict[str, Any]
    inputs: list[Cell]
    outputs: list[Cell]
    scope: tuple[str, ...]
    control: Control | None = None
    bodies: tuple[Graph, ...] = ()
    effects: bool = False
    used: Sequence[bool] = ()

    @property
    def avals(self) -> list[Any]:
        """Shapes and dtypes of the inputs."""
        return [c.aval for c in self.inputs]

    @property
    def out(self) -> Any:
        """Shape and dtype of the first output."""
        return self.outputs[0].aval


class Graph(NamedTuple):
    """A program: inputs, operations in order, and outputs (`None` for unused outputs)."""

    inputs: list[Cell]
    ops: list[Op]
    outputs: Sequence[Cell | None]


def trace_graph(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """Trace `fn` for arguments of these shapes without running it."""
    with (
        explain_jax_errors("cost", "the function"),
        explain_missing_keys(args[0] if args else None),
    ):
        # A copy, because JAX caches the trace of a function, although its globals may change.
        closed = jax.make_jaxpr(copy_function(fn))(*args, **kwargs)
    graph = graph_of(jaxprs.SubJaxpr("", closed.jaxpr, tuple(closed.consts)))
    for cell, leaf in zip(graph.inputs, jax.tree.leaves((args, kwargs)), strict=False):
        cell.known = number(leaf)
    return graph


def graph_of(sub: jaxprs.SubJaxpr) -> Graph:
    """Graph of a jaxpr; the inputs are the arguments, followed by the constants."""
    inputs = [Cell(v.aval) for v in sub.jaxpr.invars]
    consts = _constants(sub)
    ops: list[Op] = []
    outputs = _run(sub.jaxpr, inputs, consts, (), ops)
    return Graph([*inputs, *consts], ops, outputs)


def number(x: Any) -> int | Fraction | None:
    """Value of a concrete finite scalar; `None` for other objects, such as tracers or arrays."""
    scalar = isinstance(x, (bool, int, float)) or getattr(x, "shape", None) == ()
    if not scalar or isinstance(x, (Tracer, jax.ShapeDtypeStruct)):
        return None
    dtype = jnp.result_type(x)
    if jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_):
        return int(x)
    finite = jnp.issubdtype(dtype, jnp.floating) and math.isfinite(float(x))
    return Fraction(float(x)) if finite else None


def _constants(sub: jaxprs.SubJaxpr) -> list[Cell]:
    return [
        Cell(v.aval, number(value))
        for v, value in zip(sub.jaxpr.constvars, sub.consts, strict=True)
    ]


def _run(
    jaxpr: jex.Jaxpr,
    inputs: list[Cell],
    consts: list[Cell],
    scope: tuple[str, ...],
    ops: list[Op],
) -> list[Cell]:
    """Append the operations of a jaxpr to `ops`; return the output cells."""
    env = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(
        zip(jaxpr.invars, inputs, strict=True)
    )

    def read(atom: Any) -> Cell:
        return Cell(atom.aval, number(atom.val)) if isinstance(atom, jex.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(a) for a in eqn.invars]
        eqn_scope = _scope_of(eqn, scope)
        call = call_view(eqn, operands)
        if call is None:
            op = _operation(eqn, operands, eqn_scope)
            ops.append(op)
            outputs = op.outputs
        else:
            sub, args = call
            outputs = _run(sub.jaxpr, args, _constants(sub), _call_scope(eqn, sub, eqn_scope), ops)
        env.update(zip(eqn.outvars, outputs, strict=True))
    return [read(a) for a in jaxpr.outvars]


def _operation(eqn: jex.JaxprEqn, inputs: list[Cell], scope: tuple[str, ...]) -> Op:
    name, control = eqn.primitive.name, control_view(eqn)
    outputs = [Cell(v.aval) for v in eqn.outvars]
    bodies = _bodies(control)
    if name in VIEWS | IN_PLACE:
        for i, out in enumerate(outputs):
            # Output `i` of an optimization barrier is operand `i`.
            out.base = inputs[min(i, len(inputs) - 1) if name == "optimization_barrier" else 0]
    params, effects = dict(eqn.params), bool(eqn.effects)
    op = Op(name, params, inputs, outputs, scope, control, bodies, effects)
    for cell in outputs:
        cell.maker = op
    for body in bodies:
        for cell in body.inputs:
            cell.maker, cell.enters = op, True
    return op


def _bodies(control: Control | None) -> tuple[Graph, ...]:
    """Inner programs of a loop or conditional."""
    match control:
        case While() as loop:
            return graph_of(loop.test), graph_of(loop.body)
        case Scan() | ShardMap():
            return (graph_of(control.body),)
        case Cond() as choice:
            return tuple(map(graph_of, choice.branches))
    return ()


def _scope_of(eqn: jex.JaxprEqn, outer: tuple[str, ...]) -> tuple[str, ...]:
    """Named scopes of an equation, without the names of transformations such as `jvp(...)`."""
    parts: tuple[str, ...] = ()
    for part in jaxprs.name_scopes(eqn):
        while match := _TRANSFORMED.match(part):
            part = match[1]
        if part and part != "rematted_computation":
            parts = (*parts, part)
    # In the backward pass, the scopes of a rematerialized part appear twice, for the original and
    # for the recomputation.
    half = len(parts) // 2
    if jaxprs.is_remat(eqn) and parts[:half] == parts[half:]:
        parts = parts[:half]
    return outer + parts


def _call_scope(eqn: jex.JaxprEqn, sub: jaxprs.SubJaxpr, scope: tuple[str, ...]) -> tuple[str, ...]:
    """Scope of the body of a call: a user's jitted function adds its name."""
    name = eqn.params.get("name")
    # Functions of JAX, such as `relu`, are jitted too, and would otherwise be parts of every model.
    file = getattr(sub.jaxpr.debug_info, "func_filename", None) or _JAX
    named = jaxprs.is_call(eqn) and name and name != "<lambda>" and not file.startswith(_JAX)
    return (*scope, str(name)) if named else scope


def prune(graph: Graph, keep: Sequence[bool] | None = None) -> tuple[Graph, list[bool]]:
    """Remove operations that the kept outputs don't depend on.

    Args:
        graph: The program.
        keep: Mask of the outputs to keep; all by default.

    Returns:
        The program with `None` in place of removed outputs, and a mask of the used inputs.
    """
    keep = [True] * len(graph.outputs) if keep is None else keep
    outputs = [c if k else None for c, k in zip(graph.outputs, keep, strict=True)]
    needed: set[Cell | None] = set(outputs)
    ops = []
    for op in reversed(graph.ops):
        used = [c in needed for c in op.outputs]
        if any(used) or op.effects:
            pruned, reads = _prune_op(op, used)
            ops.append(dataclasses.replace(pruned, used=used))
            needed.update(c for c, r in zip(op.inputs, reads, strict=True) if r)
    return Graph(graph.inputs, ops[::-1], outputs), [c in needed for c in graph.inputs]


def _prune_op(op: Op, used: list[bool]) -> tuple[Op, list[bool]]:
    """Prune the bodies of an operation; return the operation and a mask of its used inputs."""
    match op.control:
        case Scan() as loop:
            return _prune_scan(op, loop, used)
        case While() as loop:
            return _prune_while(op, loop, used)
        case Cond():
            return _prune_cond(op, used)
        case ShardMap():
            body, reads = prune(op.bodies[0], used)
            return dataclasses.replace(op, bodies=(body,)), reads[: len(op.inputs)]
    return op, [True] * len(op.inputs)


def _prune_scan(op: Op, loop: Scan, used: list[bool]) -> tuple[Op, list[bool]]:
    consts, carries = loop.consts, loop.carry
    keep = list(used)
    # Fixed point: a carry is needed if a needed carry or output reads it. Every round adds at least
    # one carry.
    while True:
        body, reads = prune(op.bodies[0], keep)
        needed = _elementwise_or(keep[:carries], reads[consts : consts + carries])
        if needed == keep[:carries]:
            break
        keep[:carries] = needed
    reads[consts : consts + carries] = keep[:carries]
    # The inputs of a body end with its constants, which aren't inputs of the operation.
    return dataclasses.replace(op, bodies=(body,)), reads[: len(op.inputs)]


def _prune_while(op: Op, loop: While, used: list[bool]) -> tuple[Op, list[bool]]:
    n_test, n_body = loop.test_consts, loop.body_consts
    carries = len(used)
    test, test_reads = prune(op.bodies[0])
    keep = _elementwise_or(used, test_reads[n_test : n_test + carries])
    while True:
        body, reads = prune(op.bodies[1], keep)
        needed = _elementwise_or(keep, reads[n_body : n_body + carries])
        if needed == keep:
            break
        keep = needed
    pruned = dataclasses.replace(op, bodies=(test, body))
    return pruned, [*test_reads[:n_test], *reads[:n_body], *keep]


def _prune_cond(op: Op, used: list[bool]) -> tuple[Op, list[bool]]:
    pruned = [prune(branch, used) for branch in op.bodies]
    size = len(op.inputs) - 1
    reads = [any(r) for r in zip(*(r[:size] for _, r in pruned), strict=True)]
    return dataclasses.replace(op, bodies=tuple(g for g, _ in pruned)), [True, *reads]


def _elementwise_or(a: Sequence[bool], b: Sequence[bool]) -> list[bool]:
    return [x or y for x, y in zip(a, b, strict=True)]
