"""Dependence rules of primitives, with the parameters that each of them supports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core as jex

from fnopt.jacobians.dependence._entry import Entry
from fnopt.jacobians.dependence._sets import Sets

Run = Callable[[jex.ClosedJaxpr, list[Entry]], list[Entry]]

# What never says which element goes where.
_HARMLESS = frozenset(
    ("sharding", "out_sharding", "precision", "preferred_element_type", "accuracy")
)


class Operation(NamedTuple):
    """The parts of an equation that a rule may read.

    Attributes:
        params: The parameters that the rule has said it reads, and no others.
        shapes: The shapes of the outputs.
        given: The shapes and dtypes of the inputs.
        run: Walks another program with these inputs.
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

    JAX adds parameters to its primitives. A rule that doesn't know one may lose entries without a
    word, as one did that didn't know `dimensions` of a reshape. So it counts only for equations all
    of whose parameters it reads or knows to be harmless; for others all inputs mix. A parameter
    that is None says nothing.

    Attributes:
        derive: The sets of the outputs, for sets of the inputs.
        reads: The parameters that it makes use of; an equation has to have them.
        ignores: Those that don't matter for it.
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
        """The sets of the outputs of an equation that it knows."""
        params = {name: eqn.params[name] for name in self.reads}
        given = [v.aval for v in eqn.invars]
        operation = Operation(params, [shape_of(v) for v in eqn.outvars], given, run)
        return self.derive(sets, operation, inputs)


def rule(derive: Derive, reads: str = "", ignores: str = "") -> DependenceRule:
    """Make a rule; names of parameters are separated by spaces."""
    return DependenceRule(derive, frozenset(reads.split()), _HARMLESS.union(ignores.split()))


def shape_of(variable: Any) -> tuple[int, ...]:
    """The shape of a variable; that of a token or the like is `()`."""
    return tuple(getattr(variable.aval, "shape", ()))
