"""Weights whose elements are selected or permuted elements of the params."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from fnopt.gradients.ghost._weights import ComputedWeight, Leaf, Slice, Weight
from fnopt.programs import jaxprs


def entry_shapes(weight: Weight) -> dict[int, tuple[int, ...]]:
    """Shapes of a weight's params, keyed by index, in the order of concatenation.

    For a param that a scan slices, the shape is the shape of one slice.
    """
    if isinstance(weight, Leaf) or _is_entry(weight):
        (number,) = weight.leaves
        return {number: weight.aval.shape}
    return {i: shape for w in weight.inputs for i, shape in entry_shapes(w).items()}


def replace_params(weight: Weight, params: Mapping[int, np.ndarray]) -> np.ndarray | None:
    """Compute a weight (inside scans, one slice) from other values of the params.

    Args:
        weight: The weight.
        params: Arrays with the shapes of `entry_shapes`, keyed by index.

    Returns:
        The weight, a view of the params if possible; `None` if the weight isn't a selection of
        elements.
    """
    if isinstance(weight, Leaf) or _is_entry(weight):
        (number,) = weight.leaves
        return params[number]
    if not isinstance(weight, ComputedWeight):
        return None
    inputs = [x for w in weight.inputs if (x := replace_params(w, params)) is not None]
    return _apply_move(weight, inputs) if inputs and len(inputs) == len(weight.inputs) else None


def _apply_move(weight: ComputedWeight, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Evaluate an equation in NumPy, which returns views; `None` for other operations."""
    name, shape, params, x = weight.name, weight.aval.shape, weight.eqn.params, inputs[0]
    if name == "concatenate":
        return np.concatenate(inputs, params["dimension"])
    if name == "stack":
        return np.stack(inputs, params["axis"])
    if len(inputs) > 1 or (name == "reshape" and params.get("dimensions") is not None):
        return None
    if name == "broadcast_in_dim":
        input_shape = np.ones(len(shape), int)
        input_shape[list(params["broadcast_dimensions"])] = x.shape
        return np.broadcast_to(x.reshape(input_shape), shape)
    if name == "transpose":
        return x.transpose(params["permutation"])
    if name == "split":
        ends = np.cumsum(params["sizes"])[:-1].tolist()
        return np.split(x, ends, params["axis"])[weight.index]
    if name == "slice":
        steps = params["strides"] or (1,) * x.ndim
        ends = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
        return x[tuple(slice(*limits) for limits in ends)]
    # These operations don't change the order of the elements, so they equal a reshape.
    reshapes = {"convert_element_type", "copy", "copy_p", "expand_dims", "reshape", "squeeze"}
    return x.reshape(shape) if name in reshapes or jaxprs.names_value(weight.eqn) else None


def _is_entry(weight: Weight) -> bool:
    """Whether a weight is a slice of a param by one or several scans."""
    sliced = isinstance(weight, Slice)
    while isinstance(weight, Slice):
        (weight,) = weight.inputs
    return sliced and isinstance(weight, Leaf)


def are_apart(weights: Sequence[Weight]) -> bool:
    """Whether it is provable that weights share no element of the params.

    Args:
        weights: The weights. The elements of each weight must be distinct.
    """
    shapes: dict[int, tuple[int, ...]] = {}
    for w in weights:
        if any(shapes.setdefault(i, s) != s for i, s in entry_shapes(w).items()):
            return False
    # NumPy views of placeholder arrays show which elements a weight selects. The arrays are never
    # read or written, so that the operating system allocates no memory for them.
    memory = {i: np.empty(shape, np.int8) for i, shape in shapes.items()}
    weight_views = [views for w in weights if (views := _views(w, memory)) is not None]
    pairs = itertools.combinations(weight_views, 2)
    return len(weight_views) == len(weights) and not any(
        np.shares_memory(x, y) for views, other_views in pairs for x in views for y in other_views
    )


def _views(weight: Weight, memory: Mapping[int, np.ndarray]) -> list[np.ndarray] | None:
    """Views of the params that cover the elements of a weight; `None` if this isn't possible."""
    # An equation that only reorders all elements of its inputs covers the same elements.
    if isinstance(weight, ComputedWeight) and weight.aval.size == sum(
        w.aval.size for w in weight.inputs
    ):
        views = [x for w in weight.inputs if (x := _views(w, memory)) is not None]
        return [x for xs in views for x in xs] if len(views) == len(weight.inputs) else None
    view = replace_params(weight, memory)
    if view is None or not any(np.shares_memory(view, x) for x in memory.values()):
        return None  # a copy shares no memory with a param
    return [view]
