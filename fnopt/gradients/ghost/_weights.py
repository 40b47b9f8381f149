"""Weights, the values inside a loss that depend on the params but not on the example."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from fnopt.numerics import is_inexact
from fnopt.programs import jaxprs
from fnopt.sharding import pvary_like, reshard_like, sharded_full_like, varying_axes

# Primitives that only move elements (or change signs), so they are linear in any dtype.
_MOVES = {
    "broadcast_in_dim",
    "concatenate",
    "convert_element_type",
    "copy",
    "copy_p",
    "expand_dims",
    "neg",
    "reshape",
    "rev",
    "slice",
    "split",
    "squeeze",
    "stack",
    "tile",
    "transpose",
    "unstack",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Weight:
    """A value that is the same for every example.

    Inside a scan, a weight may be a slice of a larger value. The *stacked* value has a leading axis
    for every scan that slices the weight. Weights are computed and differentiated in this form.

    Attributes:
        aval: Shape and dtype of one slice.
        leaves: The params on which the weight depends differentiably; empty for a constant.
        axes: Indices of the scans that slice the weight, outermost first.
        inputs: The weights from which this weight is computed.
    """

    aval: Any
    leaves: frozenset[int] = frozenset()
    axes: tuple[int, ...] = ()
    inputs: tuple[Weight, ...] = ()

    @functools.cached_property
    def key(self) -> Any:
        """Hashable key that is equal for weights with the same computation."""
        return id(self)

    @functools.cached_property
    def moves_only(self) -> bool:
        """Whether every element equals an element of the params, up to the sign."""
        return False

    @functools.cached_property
    def preserves_norm(self) -> bool:
        """Whether the gradients with respect to the weight and to its params have the same norm."""
        return False

    @property
    def differentiable(self) -> bool:
        """Whether a gradient reaches params through the weight."""
        return bool(self.leaves) and is_inexact(self.aval)

    def compute(self, values: Sequence[Any], wide: bool) -> Any:
        """Compute the stacked value from the stacked values of the inputs."""
        raise NotImplementedError


class Leaf(Weight):
    """A parameter of the loss."""

    @functools.cached_property
    def key(self) -> Any:
        """Hashable key: the index of the leaf."""
        return ("leaf", *self.leaves)

    @functools.cached_property
    def moves_only(self) -> bool:
        """Return True."""
        return True

    @functools.cached_property
    def preserves_norm(self) -> bool:
        """Return True."""
        return True


@dataclasses.dataclass(frozen=True, eq=False)
class ConstantWeight(Weight):
    """A constant of the program.

    Attributes:
        value: The constant.
    """

    value: Any = None

    def compute(self, values: Sequence[Any], wide: bool) -> Any:
        """Return the constant."""
        return self.value


class Slice(Weight):
    """Slice of a weight that a scan iterates over; the stacked value is the sliced weight."""

    @functools.cached_property
    def key(self) -> Any:
        """Hashable key: the scan and the key of the sliced weight."""
        return ("slice", self.axes[-1], self.inputs[0].key)

    @functools.cached_property
    def moves_only(self) -> bool:
        """Whether the sliced weight only moves elements."""
        return self.inputs[0].moves_only

    @functools.cached_property
    def preserves_norm(self) -> bool:
        """Whether the sliced weight preserves the norm of gradients."""
        return self.inputs[0].preserves_norm

    def compute(self, values: Sequence[Any], wide: bool) -> Any:
        """Return the sliced weight."""
        return values[0]


@dataclasses.dataclass(frozen=True, eq=False)
class ComputedWeight(Weight):
    """Output of an equation whose inputs are weights.

    Attributes:
        eqn: The equation.
        index: Index of the output.
    """

    eqn: Any = None
    index: int = 0

    @property
    def name(self) -> str:
        """Name of the primitive."""
        return self.eqn.primitive.name

    @functools.cached_property
    def key(self) -> Any:
        """Hashable key: equal for equal moves of equal inputs, else unique."""
        if not self.moves_only:
            return id(self)
        params = tuple((k, str(v)) for k, v in sorted(self.eqn.params.items()))
        return (self.name, self.index, params, *(w.key for w in self.inputs))

    @functools.cached_property
    def moves_only(self) -> bool:
        """Whether the equation and all its inputs only move elements."""
        avals = [self.aval, *(w.aval for w in self.inputs)]
        # A cast from real to complex isn't a move: its transpose drops the imaginary part.
        same_kind = all(map(is_inexact, avals)) and len({jnp.iscomplexobj(a) for a in avals}) == 1
        moves = self.name in _MOVES or jaxprs.names_value(self.eqn)
        return same_kind and moves and all(w.moves_only for w in self.inputs)

    @functools.cached_property
    def preserves_norm(self) -> bool:
        """Whether the weight only moves elements and doesn't repeat any element."""
        repeats = self.name in {"broadcast_in_dim", "tile"}
        if repeats and self.inputs[0].aval.size != self.aval.size:
            return False
        # The gradient of a repeated element is a sum, which changes the norm.
        disjoint = sum(len(w.leaves) for w in self.inputs) == len(self.leaves)
        return self.moves_only and disjoint and all(w.preserves_norm for w in self.inputs)

    def compute(self, values: Sequence[Any], wide: bool) -> Any:
        """Evaluate the equation for all slices."""
        # Without the casts of a mixed-precision model, gradients aren't rounded.
        if wide and self.name == "convert_element_type":
            return values[0]

        def bind_equation(*values: Any) -> list[Any]:
            return jaxprs.bind(self.eqn, values)

        axes = [w.axes for w in self.inputs]
        return map_over_scans(bind_equation, self.axes, axes)(*values)[self.index]


def map_over_scans(
    fn: Any,
    around: Sequence[int],
    axes: Sequence[Sequence[int]],
    lengths: Sequence[int] | None = None,
) -> Any:
    """Map `fn` over all iterations of the enclosing scans.

    Args:
        fn: A function of as many arrays as `axes` has entries.
        around: Indices of the scans, outermost first.
        axes: For each argument, the scans for which the argument has a leading axis.
        lengths: Numbers of iterations of the scans; required if no argument has a scan's axis.
    """
    # The vmap of the outermost scan is applied last, so that its axis is the first.
    for i, number in reversed([*enumerate(around)]):
        in_axes = tuple(0 if number in scans else None for scans in axes)
        fn = jax.vmap(fn, in_axes, axis_size=None if lengths is None else lengths[i])
    return fn


def step(eqn: jex.JaxprEqn, inputs: Sequence[Weight], around: Sequence[int]) -> list[Weight]:
    """Output weights of an equation whose inputs are all weights."""
    is_constant = eqn.primitive.name == "stop_gradient"
    leaves = frozenset() if is_constant else frozenset().union(*(w.leaves for w in inputs))
    scans = {number for w in inputs for number in w.axes}
    axes = tuple(number for number in around if number in scans)
    return [
        ComputedWeight(v.aval, leaves, axes, tuple(inputs), eqn, i)  # pyright: ignore[reportAbstractUsage]
        for i, v in enumerate(eqn.outvars)
    ]


def evaluate(weight: Weight, leaves: Mapping[int, Any], wide: bool = False) -> Any:
    """Compute the stacked value of a weight.

    Args:
        weight: The weight.
        leaves: The params, keyed by index.
        wide: Whether to omit casts.
    """
    memo: dict[int, Any] = {}

    def value(w: Weight) -> Any:
        if isinstance(w, Leaf):
            (number,) = w.leaves
            return leaves[number]
        if id(w) not in memo:
            memo[id(w)] = w.compute([value(x) for x in w.inputs], wide)
        return memo[id(w)]

    return value(weight)


def pull_back(weight: Weight, cotangent: Any, leaves: Mapping[int, Any]) -> dict[int, Any]:
    """Convert the gradient with respect to a weight's stacked value to gradients of the params.

    If the weight only moves elements, the gradients have the dtype of the cotangent. A sum over a
    batch is then not rounded to the model's compute dtype.
    """
    numbers = sorted(weight.leaves)
    if isinstance(weight, Leaf):
        return {numbers[0]: cotangent}

    def forward(values: list[Any]) -> Any:
        params = {**leaves, **dict(zip(numbers, values, strict=True))}
        return evaluate(weight, params, weight.moves_only)

    params = [leaves[i] for i in numbers]
    if weight.moves_only:
        # `jax.vjp` at the params would cast the cotangent to the params' dtype. A move is linear in
        # every dtype, so its transpose can be computed in the cotangent's dtype.
        if varying_axes(cotangent):  # `linear_transpose` takes shapes without varying axes
            zeros = [sharded_full_like(p, 0, cotangent.dtype) for p in params]
            value, transposed = jax.vjp(forward, pvary_like(zeros, cotangent))
            (grads,) = transposed(reshard_like(cotangent, value))
        else:
            shapes = [jax.ShapeDtypeStruct(p.shape, cotangent.dtype) for p in params]
            (grads,) = jax.linear_transpose(forward, shapes)(cotangent)
    else:
        value, transposed = jax.vjp(forward, params)
        (grads,) = transposed(reshard_like(cotangent.astype(weight.aval.dtype), value))
    return dict(zip(numbers, grads, strict=True))


def without_transposes(weight: Weight) -> tuple[Weight, tuple[int, ...]]:
    """Weight before casts, names and transposes, and the axis permutation of the transposes."""
    perm = tuple(range(weight.aval.ndim))
    while isinstance(weight, ComputedWeight) and weight.moves_only:
        if weight.name == "transpose":
            permutation = weight.eqn.params["permutation"]
            perm = tuple(permutation[d] for d in perm)
        elif weight.name != "convert_element_type" and not jaxprs.names_value(weight.eqn):
            break
        weight = weight.inputs[0]
    return weight, perm
