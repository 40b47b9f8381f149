"""Which vectors are added to the outputs of a product, entry by entry of its features."""

from __future__ import annotations

from typing import Any

import numpy as np

from fnopt.gradients.ghost import _conv, _dot
from fnopt.gradients.ghost._layout import FactorLayout
from fnopt.gradients.ghost._plan import Group
from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._weights import Leaf, Slice, Step, Weight
from fnopt.programs import jaxprs

_OUTPUTS: dict[str, Any] = {"dot": _dot.outputs, "conv": _conv.outputs}


def is_bias(bias: Group, product: Group, layout: FactorLayout) -> bool:
    """Whether a param is a further row of a weight, for an input that is always 1.

    Everywhere it enters it must be added to the output of a product with the weight: number `k` of
    it to feature `k`, at all positions alike.

    Args:
        bias: The param.
        product: The products with the weight.
        layout: How matrices make up the weight.
    """
    sites = {s.tap: s for s in product.sites if s.kind in _OUTPUTS}
    return bool(bias.sites) and all(
        s.eqn.primitive.name in {"add", "add_any"}
        and s.tap in sites
        and s.weight.axes == sites[s.tap].weight.axes == layout.weight.axes
        and _fits(s, sites[s.tap])
        for s in bias.sites
    )


def _fits(bias: Site, product: Site) -> bool:
    numbers = _numbers(bias.weight)
    if numbers is None:
        return False
    (rows,) = _OUTPUTS[product.kind](product, numbers).blocks
    t, _, k = rows.shape
    return bool(np.all(rows == np.arange(t * k).reshape(t, 1, k)))


def _numbers(weight: Weight) -> np.ndarray | None:
    """For every entry of a weight, which entry of the param it is; `None` if that isn't clear."""
    if isinstance(weight, Leaf) or (isinstance(weight, Slice) and _is_entry(weight)):
        return np.arange(weight.aval.size).reshape(weight.aval.shape)
    if not (isinstance(weight, Step) and len(weight.inputs) == 1):
        return None
    x, shape, params = _numbers(weight.inputs[0]), weight.aval.shape, weight.eqn.params
    if x is None:
        return None
    if weight.name == "broadcast_in_dim":
        own = np.ones(len(shape), int)
        own[list(params["broadcast_dimensions"])] = x.shape
        return np.broadcast_to(x.reshape(own), shape)
    if weight.name == "transpose":
        return x.transpose(params["permutation"])
    if weight.name == "reshape" and params.get("dimensions") is not None:
        return None
    moved = {"convert_element_type", "copy", "copy_p", "expand_dims", "reshape", "squeeze"}
    return x.reshape(shape) if weight.name in moved or jaxprs.is_name(weight.eqn) else None


def _is_entry(weight: Weight) -> bool:
    """Whether scans slice the param itself."""
    while isinstance(weight, Slice):
        (weight,) = weight.inputs
    return isinstance(weight, Leaf)
