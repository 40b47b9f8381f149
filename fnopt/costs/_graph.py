"""A traced program as a list of operations, with every plain call opened up."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core as jex

from fnopt.programs import (
    Cond,
    Control,
    Scan,
    ShardMap,
    While,
    called_with,
    control_view,
    jaxprs,
    uncached,
)


def names(text: str) -> frozenset[str]:
    """A set of names, written with spaces between them."""
    return frozenset(text.split())


# These only look at their first operand (or at each operand in turn), in another shape, dtype or
# order, or at a part of it: reading the result reads the operand's memory.
VIEWS = names("""
    reshape transpose squeeze expand_dims broadcast_in_dim convert_element_type slice dynamic_slice
    gather split unstack tile rev copy copy_p name tap stop_gradient optimization_barrier
    sharding_constraint layout_constraint device_put reduce_precision bitcast_convert_type reshard
    pvary pin unpin to_edtype from_edtype
""")
# These change a few elements of their first operand where it lies.
IN_PLACE = names("""
    dynamic_update_slice scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max
    scatter-apply
""")
_JAX = os.path.dirname(jax.__file__) + os.sep
_TRANSFORMED = re.compile(r"^(?:jvp|transpose|vmap)\((.*)\)$")


@dataclasses.dataclass(eq=False)
class Cell:
    """One value of the program.

    Attributes:
        aval: Its shape and dtype.
        known: The number, if it is a whole one that is known before the program runs.
        base: The cell whose memory it looks at, if it is a view.
    """

    aval: Any
    known: int | None = None
    base: Cell | None = None

    @property
    def root(self) -> Cell:
        """The cell whose memory this is."""
        return self if self.base is None else self.base.root


@dataclasses.dataclass(eq=False)
class Op:
    """One operation on cells.

    Attributes:
        name: The primitive's name.
        params: The equation's parameters.
        inputs: What it reads.
        outputs: What it makes.
        scope: The parts of the model that it belongs to, outermost first.
        control: How it repeats, chooses or maps, if it does.
        bodies: What it repeats or chooses from: `(body,)` of a scan, `(test, body)` of a while
            loop, the branches of a cond.
        effects: Whether it does something besides its outputs, so that it runs in any case.
        used: Which outputs somebody reads; known once the program is pruned.
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
        """The shapes and dtypes of the inputs."""
        return [c.aval for c in self.inputs]

    @property
    def out(self) -> Any:
        """The shape and dtype of the first output."""
        return self.outputs[0].aval


class Graph(NamedTuple):
    """A program: operations in order, between inputs and outputs (`None` for unneeded ones)."""

    inputs: list[Cell]
    ops: list[Op]
    outputs: Sequence[Cell | None]


def trace_graph(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """The program that `fn` runs on arguments of these shapes; nothing is computed."""
    closed = jax.make_jaxpr(uncached(fn))(*args, **kwargs)
    known = list(map(whole_number, jax.tree.leaves((args, kwargs))))
    return graph_of(jaxprs.Sub("", closed.jaxpr, tuple(closed.consts)), known)


def graph_of(sub: jaxprs.Sub, known: Sequence[int | None]) -> Graph:
    """The operations of a jaxpr; its constants are inputs too, after its arguments.

    Args:
        sub: The jaxpr.
        known: Whole numbers that its first arguments are known to be.
    """
    values = itertools.chain(known, itertools.repeat(None))
    inputs = [Cell(v.aval, k) for v, k in zip(sub.jaxpr.invars, values, strict=False)]
    consts = _constants(sub)
    ops: list[Op] = []
    outputs = _run(sub.jaxpr, inputs, consts, (), ops)
    return Graph([*inputs, *consts], ops, outputs)


def whole_number(x: Any) -> int | None:
    """The value of a concrete scalar integer, `None` for anything else (a shape, a tracer)."""
    if isinstance(x, (bool, np.bool_, Tracer, jax.ShapeDtypeStruct)):
        return None
    if isinstance(x, int):
        return x
    whole = getattr(x, "shape", None) == () and jnp.issubdtype(x.dtype, jnp.integer)
    return int(x) if whole else None


def _constants(sub: jaxprs.Sub) -> list[Cell]:
    return [
        Cell(v.aval, whole_number(value))
        for v, value in zip(sub.jaxpr.constvars, sub.consts, strict=True)
    ]


def _run(
    jaxpr: jex.Jaxpr,
    inputs: list[Cell],
    consts: list[Cell],
    scope: tuple[str, ...],
    ops: list[Op],
) -> list[Cell]:
    """Appends the operations of a jaxpr to `ops`; returns the cells of its outputs."""
    env = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(
        zip(jaxpr.invars, inputs, strict=True)
    )

    def read(atom: Any) -> Cell:
        return Cell(atom.aval, whole_number(atom.val)) if _is_literal(atom) else env[atom]

    for eqn in jaxpr.eqns:
        found = [read(a) for a in eqn.invars]
        here = _scope_of(eqn, scope)
        call = called_with(eqn, found)
        if call is None:
            op = _operation(eqn, found, here)
            ops.append(op)
            made = op.outputs
        else:
            sub, passed = call
            made = _run(sub.jaxpr, passed, _constants(sub), _inside(eqn, sub, here), ops)
        env.update(zip(eqn.outvars, made, strict=True))
    return [read(a) for a in jaxpr.outvars]


def _is_literal(atom: Any) -> bool:
    return isinstance(atom, jex.Literal)


def _operation(eqn: jex.JaxprEqn, inputs: list[Cell], scope: tuple[str, ...]) -> Op:
    name, control = eqn.primitive.name, control_view(eqn)
    outputs = [Cell(v.aval) for v in eqn.outvars]
    bodies = _bodies(control, [c.known for c in inputs])
    if name in VIEWS | IN_PLACE:
        for i, out in enumerate(outputs):
            out.base = inputs[min(i, len(inputs) - 1) if name == "optimization_barrier" else 0]
    if len(outputs) == 1 and outputs[0].aval.shape == ():
        outputs[0].known = _fold(name, [c.known for c in inputs])
    params, effects = dict(eqn.params), bool(eqn.effects)
    return Op(name, params, inputs, outputs, scope, control, bodies, effects)


def _bodies(control: Control | None, known: list[int | None]) -> tuple[Graph, ...]:
    """The programs inside a loop or a choice, with what stays known of their arguments."""
    match control:
        case While() as loop:
            test_consts, body_consts, _ = loop.parts(known)
            return graph_of(loop.test, test_consts), graph_of(loop.body, body_consts)
        case Scan() as loop:
            return (graph_of(loop.body, loop.parts(known)[0]),)
        case Cond() as choice:
            return tuple(graph_of(branch, known[1:]) for branch in choice.branches)
        case ShardMap() as mapped:
            return (graph_of(mapped.body, []),)
    return ()


def _fold(name: str, values: list[int | None]) -> int | None:
    """Arithmetic on known whole numbers, as far as the bounds of loops need it."""
    if not values or any(v is None for v in values):
        return None
    match name, values:
        case (("convert_element_type" | "copy" | "stop_gradient" | "reshape" | "squeeze"), [v]):
            return v
        case "add", [int(a), int(b)]:
            return a + b
        case "sub", [int(a), int(b)]:
            return a - b
        case "mul", [int(a), int(b)]:
            return a * b
        case "max" | "min", [int(a), int(b)]:
            return max(a, b) if name == "max" else min(a, b)
    return None


def _scope_of(eqn: jex.JaxprEqn, outer: tuple[str, ...]) -> tuple[str, ...]:
    """The named scopes around an equation: forward and backward count as the same part."""
    own = tuple(p for p in map(_plain, jaxprs.scope(eqn)) if p and p != "rematted_computation")
    # The backward pass names a rematerialised part twice: where it was, and where it is run again.
    half = len(own) // 2
    if jaxprs.is_remat(eqn) and own[:half] == own[half:]:
        own = own[:half]
    return outer + own


def _plain(part: str) -> str:
    while match := _TRANSFORMED.match(part):
        part = match[1]
    return part


def _inside(eqn: jex.JaxprEqn, sub: jaxprs.Sub, scope: tuple[str, ...]) -> tuple[str, ...]:
    """A jitted function of the user's is a part too; those of JAX itself (`relu`) are not."""
    name = eqn.params.get("name")
    file = getattr(sub.jaxpr.debug_info, "func_filename", None) or _JAX
    named = jaxprs.is_call(eqn) and name and name != "<lambda>" and not file.startswith(_JAX)
    return (*scope, str(name)) if named else scope
