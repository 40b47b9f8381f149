"""Weights that are selections or permutations of elements of parameters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from fnopt.gradients.ghost._weights import ComputedWeight, Leaf, Slice, Weight
from fnopt.programs import jaxprs


def entry_shapes(weight: Weight) -> dict[int, tuple[int, ...]]:
    """Shapes of the params of a weight by index, in the order of concatenation.

    The shape of a scanned param is the shape of one slice.
    """
    if isinstance(weight, Leaf) or _is_entry(weight):
        (number,) = weight.leaves
        return {number: weight.aval.shape}
    return {i: shape for w in weight.inputs for i, shape in entry_shapes(w).items()}


def replace_params(weight: Weight, params: Mapping[int, np.ndarray]) -> np.ndarray | None:
    """Compute the weight (within scans, a slice of it) from other values of the params.

    Args:
        weight: The weight.
        params: Params by index, with the shapes of `entry_shapes`.

    Returns:
        A view if possible; `None` if the weight isn't a selection of elements.
    """
    if isinstance(weight, Leaf) or _is_entry(weight):
        (number,) = weight.leaves
        return params[number]
    if not isinstance(weight, ComputedWeight):
        return None
    inputs = [replace_params(w, params) for w in weight.inputs]
    known = [x for x in inputs if x is not None]
    return _apply_move(weight, known) if known and len(known) == len(inputs) else None


def _apply_move(weight: ComputedWeight, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    name, shape, params, x = weight.name, weight.aval.shape, weight.eqn.params, inputs[0]
    if name == "concatenate":
        return np.concatenate(inputs, params["dimension"])
    if name == "stack":
        return np.stack(inputs, params["axis"])
    if len(inputs) > 1 or (name == "reshape" and params.get("dimensions") is not None):
        return None
    if name == "broadcast_in_dim":
        own = np.ones(len(shape), int)
        own[list(params["broadcast_dimensions"])] = x.shape
        return np.broadcast_to(x.reshape(own), shape)
    if name == "transpose":
        return x.transpose(params["permutation"])
    if name == "split":
        ends = np.cumsum(params["sizes"])[:-1].tolist()
        return np.split(x, ends, params["axis"])[weight.index]
    if name == "slice":
        steps = params["strides"] or (1,) * x.ndim
        ends = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
        return x[tuple(slice(*cut) for cut in ends)]
    # These operations keep the order of the elements, so that a reshape to the result is the same.
    kept = {"convert_element_type", "copy", "copy_p", "expand_dims", "reshape", "squeeze"}
    return x.reshape(shape) if name in kept or jaxprs.names_value(weight.eqn) else None


def _is_entry(weight: Weight) -> bool:
    """Whether a weight is a param that scans slice."""
    sliced = isinstance(weight, Slice)
    while isinstance(weight, Slice):
        (weight,) = weight.inputs
    return sliced and isinstance(weight, Leaf)


def are_apart(weights: Sequence[Weight]) -> bool:
    """Whether weights provably share no element.

    Args:
        weights: The weights, each with distinct elements.
    """
    shapes: dict[int, tuple[int, ...]] = {}
    for w in weights:
        if any(shapes.setdefault(i, s) != s for i, s in entry_shapes(w).items()):
            return False
    # This memory is neither read nor written, so it costs nothing; it serves to compare views.
    memory = {i: np.empty(shape, np.int8) for i, shape in shapes.items()}
    found = [_views(w, memory) for w in weights]
    known = [views for views in found if views is not None]
    pairs = itertools.combinations(known, 2)
    return len(known) == len(found) and not any(
        np.shares_memory(x, y) for views, other_views in pairs for x in views for y in other_views
    )


def _views(weight: Weight, memory: Mapping[int, np.ndarray]) -> list[np.ndarray] | None:
    if isinstance(weight, ComputedWeight) and weight.aval.size == sum(
        w.aval.size for w in weight.inputs
    ):
        parts = [_views(w, memory) for w in weight.inputs]  # the whole array, in another order
        known = [views for views in parts if views is not None]
        return [x for views in known for x in views] if len(known) == len(parts) else None
    view = replace_params(weight, memory)
    if view is None or not any(np.shares_memory(view, x) for x in memory.values()):
        return None  # a copy shares no memory with a param
    return [view]
