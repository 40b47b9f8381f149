"""The abstract value of a variable of a jaxpr: the sets of its elements, or a constant."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer
from jax.extend import core as jex

from fnopt.programs import jaxprs


class DeferredConstant:
    """A value that depends on nothing, computed when it is first needed.

    Args:
        eqn: The equation that it comes from; None for one that is there.
        inputs: The constants that the equation takes.
        outputs: The values of the equation, once they are there.
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
    """A variable: sets if it depends on inputs; else its value, if that can be known.

    Attributes:
        shape: Its shape.
        ids: The sets; None if it depends on no input.
        source: Where its value comes from, if that can be known.
        parts: Of one laid together from others, of which some are known: these, and the axis. So
            are the indices of `x[known, unknown]`.
    """

    shape: tuple[int, ...]
    ids: np.ndarray | None = None
    source: tuple[DeferredConstant, int] | None = None
    parts: tuple[tuple[Entry, ...], int] | None = None

    @property
    def sets(self) -> np.ndarray:
        """The sets; empty ones if it depends on nothing."""
        return np.zeros(self.shape, np.int32) if self.ids is None else self.ids

    @property
    def known(self) -> bool:
        """Whether its value can be known."""
        return self.ids is None and self.source is not None

    def partly(self) -> tuple[np.ndarray, np.ndarray]:
        """The values, and the mask of those that are known."""
        if self.known:
            return self.value(), np.ones(self.shape, bool)
        if self.parts is not None:
            parts, axis = self.parts
            values, known = zip(*(part.partly() for part in parts), strict=True)
            return np.concatenate(values, axis), np.concatenate(known, axis)
        return np.zeros(self.shape, np.int32), np.zeros(self.shape, bool)

    def value(self) -> np.ndarray:
        """The value, which has to be known."""
        assert self.source is not None
        constant, position = self.source
        return np.asarray(constant.compute()[position])


def entry_of(value: Any) -> Entry:
    """The abstract value of a constant of a jaxpr; unknown for an outer tracer."""
    shape = tuple(np.shape(value))
    if isinstance(value, Tracer):
        return Entry(shape)
    return Entry(shape, source=(DeferredConstant(outputs=[value]), 0))


def dependent(ids: np.ndarray) -> Entry:
    """A variable with these sets, `int32` in its shape."""
    return Entry(ids.shape, ids)


def outputs_of(eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    """The outputs of an equation whose inputs depend on nothing."""
    shapes = [tuple(getattr(v.aval, "shape", ())) for v in eqn.outvars]
    if eqn.effects or not all(entry.known for entry in inputs):
        axis = eqn.params.get("dimension") if eqn.primitive.name == "concatenate" else None
        parts = None if axis is None else (tuple(inputs), axis)
        return [Entry(shape, parts=parts) for shape in shapes]
    sources = [entry.source for entry in inputs if entry.source is not None]
    constant = DeferredConstant(eqn, sources)
    return [Entry(shape, source=(constant, k)) for k, shape in enumerate(shapes)]
