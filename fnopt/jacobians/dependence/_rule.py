"""Abstract values of variables, and the dependence rules of primitives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer
from jax.extend import core as jex

from fnopt.jacobians.dependence._sets import Sets
from fnopt.programs import jaxprs


class DeferredConstant:
    """A value that depends on no input, computed when it is first needed.

    Args:
        eqn: The equation that computes it; None for a given value.
        inputs: The constant inputs of the equation.
        outputs: The values of the equation, after they are computed.
    """

    def __init__(
        self,
        eqn: jex.JaxprEqn | None = None,
        inputs: list[tuple[DeferredConstant, int]] | None = None,
        outputs: list[Any] | None = None,
    ) -> None:
        self.eqn = eqn
        self.inputs = inputs or []
        self.outputs = outputs

    def compute(self) -> list[Any]:
        """Compute the outputs, without recursion, because a chain of constants may be long."""
        stack = [self]
        while stack:
            node = stack[-1]
            missing = [source for source, _ in node.inputs if source.outputs is None]
            if node.outputs is None and missing:
                stack += missing
                continue
            if node.outputs is None:
                assert node.eqn is not None
                values = [source.outputs[i] for source, i in node.inputs if source.outputs]
                node.outputs = jaxprs.bind(node.eqn, values)
            stack.pop()
        assert self.outputs is not None
        return self.outputs


class Entry(NamedTuple):
    """A variable: its sets if it depends on inputs; else its value, if known.

    Attributes:
        shape: Its shape.
        ids: The sets; None if it depends on no input.
        source: The source of its value, if known.
        parts: For a concatenation of known and unknown parts: the parts, and the axis. Indices of
            `x[known, unknown]` have this form.
    """

    shape: tuple[int, ...]
    ids: np.ndarray | None = None
    source: tuple[DeferredConstant, int] | None = None
    parts: tuple[tuple[Entry, ...], int] | None = None

    @property
    def sets(self) -> np.ndarray:
        """The sets; empty sets if it depends on no input."""
        return np.zeros(self.shape, np.int32) if self.ids is None else self.ids

    @property
    def known(self) -> bool:
        """Whether its value is known."""
        return self.ids is None and self.source is not None

    def partly(self) -> tuple[np.ndarray, np.ndarray]:
        """The values, and a mask of the known ones."""
        if self.known:
            return self.value(), np.ones(self.shape, bool)
        if self.parts is not None:
            parts, axis = self.parts
            values, known = zip(*(part.partly() for part in parts), strict=True)
            return np.concatenate(values, axis), np.concatenate(known, axis)
        return np.zeros(self.shape, np.int32), np.zeros(self.shape, bool)

    def value(self) -> np.ndarray:
        """The value, which must be known."""
        assert self.source is not None
        constant, position = self.source
        return np.asarray(constant.compute()[position])


def entry_of(value: Any) -> Entry:
    """Abstract value of a constant of a jaxpr; unknown for an outer tracer."""
    shape = tuple(np.shape(value))
    if isinstance(value, Tracer):
        return Entry(shape)
    return Entry(shape, source=(DeferredConstant(outputs=[value]), 0))


def dependent(ids: np.ndarray) -> Entry:
    """Variable with these sets, `int32` in its shape."""
    return Entry(ids.shape, ids)


def outputs_of(eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """Outputs of an equation whose inputs depend on no input of the program."""
    shapes = [tuple(getattr(v.aval, "shape", ())) for v in eqn.outvars]
    if eqn.effects or not all(entry.known for entry in inputs):
        axis = eqn.params.get("dimension") if eqn.primitive.name == "concatenate" else None
        parts = None if axis is None else (tuple(inputs), axis)
        return [Entry(shape, parts=parts) for shape in shapes]
    sources = [entry.source for entry in inputs if entry.source is not None]
    constant = DeferredConstant(eqn, sources)
    return [Entry(shape, source=(constant, k)) for k, shape in enumerate(shapes)]


Run = Callable[[jex.ClosedJaxpr, list[Entry]], list[Entry]]

# Names of parameters that don't affect dependence.
_HARMLESS = frozenset(
    ("sharding", "out_sharding", "precision", "preferred_element_type", "accuracy")
)


class Operation(NamedTuple):
    """The parts of an equation that a rule may read.

    Attributes:
        params: The declared parameters of the rule.
        shapes: The shapes of the outputs.
        given: The shapes and dtypes of the inputs.
        run: Function that interprets another program with these inputs.
    """

    params: dict[str, Any]
    shapes: list[tuple[int, ...]]
    given: list[Any]
    run: Run

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return self.shapes[0]


Derive = Callable[[Sets, Operation, list[Entry]], list[np.ndarray]]


class DependenceRule(NamedTuple):
    """The rule of a primitive: the sets of its outputs from those of its inputs.

    JAX adds parameters to its primitives. A rule that doesn't know a parameter may silently lose
    entries, as happened with `dimensions` of a reshape. A rule therefore applies only to equations
    all of whose parameters it reads or ignores; the outputs of other equations depend on all their
    inputs. Parameters that are None are disregarded.

    Attributes:
        derive: The sets of the outputs, for sets of the inputs.
        reads: The parameters that it uses; an equation must have them.
        ignores: The parameters that don't matter.
    """

    derive: Derive
    reads: frozenset[str]
    ignores: frozenset[str]

    def knows(self, eqn: jex.JaxprEqn) -> bool:
        """Whether the rule supports all parameters of an equation."""
        rest = eqn.params.keys() - self.reads - self.ignores
        return self.reads <= eqn.params.keys() and all(eqn.params[k] is None for k in rest)

    def __call__(
        self, sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry], run: Run
    ) -> list[np.ndarray]:
        """The sets of the outputs of an equation that the rule supports."""
        params = {name: eqn.params[name] for name in self.reads}
        given = [v.aval for v in eqn.invars]
        operation = Operation(params, [shape_of(v) for v in eqn.outvars], given, run)
        return self.derive(sets, operation, inputs)


def rule(derive: Derive, reads: str = "", ignores: str = "") -> DependenceRule:
    """Make a rule; names of parameters are separated by spaces."""
    return DependenceRule(derive, frozenset(reads.split()), _HARMLESS.union(ignores.split()))


def shape_of(variable: Any) -> tuple[int, ...]:
    """Shape of a variable; `()` for a token."""
    return tuple(getattr(variable.aval, "shape", ()))
