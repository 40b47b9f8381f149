"""Abstract values of jaxpr variables, and the class of dependence rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer
from jax.extend import core as jex

from fnopt.jacobians.dependence._sets import Sets
from fnopt.programs import jaxprs


class DeferredConstant:
    """Outputs of an equation that depend on no input, evaluated when a rule needs their value.

    Args:
        eqn: The equation; None for a constant of the program.
        inputs: The inputs of the equation, each a constant and the index of its output.
        outputs: The values; None before the evaluation.
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
        """Evaluate the outputs."""
        stack = [self]  # a stack, because recursion fails for a long chain of constants
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
    """Abstract value of a variable: its sets if it depends on inputs, else its value if known.

    Attributes:
        shape: The shape of the variable.
        ids: The sets of the elements; None if the variable depends on no input.
        source: The constant and the index of its output that is the value; None if unknown.
        parts: The parts and the axis, if the variable is a concatenation that isn't known as a
            whole; else None. The index array of `x[known, unknown]` is such a concatenation.
    """

    shape: tuple[int, ...]
    ids: np.ndarray | None = None
    source: tuple[DeferredConstant, int] | None = None
    parts: tuple[tuple[Entry, ...], int] | None = None

    @property
    def sets(self) -> np.ndarray:
        """The sets of the elements, which are empty if the variable depends on no input."""
        return np.zeros(self.shape, np.int32) if self.ids is None else self.ids

    @property
    def known(self) -> bool:
        """Whether the value of the variable is known."""
        return self.ids is None and self.source is not None

    def partly(self) -> tuple[np.ndarray, np.ndarray]:
        """The values of the elements, and a mask of the elements whose value is known."""
        if self.known:
            return self.value(), np.ones(self.shape, bool)
        if self.parts is not None:
            parts, axis = self.parts
            values, masks = zip(*(part.partly() for part in parts), strict=True)
            return np.concatenate(values, axis), np.concatenate(masks, axis)
        return np.zeros(self.shape, np.int32), np.zeros(self.shape, bool)

    def value(self) -> np.ndarray:
        """The value of the variable, which must be known."""
        assert self.source is not None
        constant, position = self.source
        return np.asarray(constant.compute()[position])


def entry_of(value: Any) -> Entry:
    """Abstract value of a constant of a jaxpr, which is unknown if it is a tracer of the caller."""
    shape = tuple(np.shape(value))
    if isinstance(value, Tracer):
        return Entry(shape)
    return Entry(shape, source=(DeferredConstant(outputs=[value]), 0))


def dependent(ids: np.ndarray) -> Entry:
    """Abstract value of a variable with the sets `ids`, an int32 array of its shape."""
    return Entry(ids.shape, ids)


def outputs_of(eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """Abstract values of the outputs of an equation that depends on no input of the program."""
    shapes = [tuple(getattr(v.aval, "shape", ())) for v in eqn.outvars]
    if eqn.effects or not all(entry.known for entry in inputs):
        axis = eqn.params.get("dimension") if eqn.primitive.name == "concatenate" else None
        parts = None if axis is None else (tuple(inputs), axis)
        return [Entry(shape, parts=parts) for shape in shapes]
    sources = [entry.source for entry in inputs if entry.source is not None]
    constant = DeferredConstant(eqn, sources)
    return [Entry(shape, source=(constant, k)) for k, shape in enumerate(shapes)]


Run = Callable[[jex.ClosedJaxpr, list[Entry]], list[Entry]]

# Parameters of primitives that don't affect dependence.
_HARMLESS = frozenset(
    ("sharding", "out_sharding", "precision", "preferred_element_type", "accuracy")
)


class Operation(NamedTuple):
    """The parts of an equation that a rule may read.

    Attributes:
        params: The parameters that the rule declares in `reads`.
        shapes: The shapes of the outputs.
        run: Function that interprets another program from abstract values of its inputs.
    """

    params: dict[str, Any]
    shapes: list[tuple[int, ...]]
    run: Run

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return self.shapes[0]


Derive = Callable[[Sets, Operation, list[Entry]], list[np.ndarray]]


class DependenceRule(NamedTuple):
    """Rule of a primitive: it computes the sets of the outputs from the sets of the inputs.

    JAX adds parameters to its primitives. A rule that ignores an unknown parameter may silently
    lose entries, as happened with the parameter `dimensions` of a reshape. A rule therefore
    declares all parameters that it reads, and all parameters without effect on dependence. The rule
    doesn't apply to an equation with another parameter that isn't None; all outputs of the equation
    then depend on all inputs.

    Attributes:
        derive: The function that computes the sets of the outputs.
        reads: The parameters that `derive` uses; an equation must have them.
        ignores: The parameters that don't affect dependence.
    """

    derive: Derive
    reads: frozenset[str]
    ignores: frozenset[str]

    def knows(self, eqn: jex.JaxprEqn) -> bool:
        """Whether the rule supports all parameters of an equation."""
        unknown = eqn.params.keys() - self.reads - self.ignores
        return self.reads <= eqn.params.keys() and all(eqn.params[k] is None for k in unknown)

    def __call__(
        self, sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry], run: Run
    ) -> list[np.ndarray]:
        """Compute the sets of the outputs of an equation that the rule supports."""
        params = {name: eqn.params[name] for name in self.reads}
        operation = Operation(params, [shape_of(v) for v in eqn.outvars], run)
        return self.derive(sets, operation, inputs)


def rule(derive: Derive, reads: str = "", ignores: str = "") -> DependenceRule:
    """Make a rule from a function, and names of parameters separated by spaces."""
    return DependenceRule(derive, frozenset(reads.split()), _HARMLESS.union(ignores.split()))


def shape_of(variable: Any) -> tuple[int, ...]:
    """Shape of a jaxpr variable, or `()` for a token, which has no shape."""
    return tuple(getattr(variable.aval, "shape", ()))
