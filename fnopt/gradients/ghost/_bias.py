"""Biases: vectors that are added to the outputs of a product, feature by feature."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fnopt.gradients.ghost import _conv, _dot
from fnopt.gradients.ghost._parts import entry_shapes, replace_params
from fnopt.gradients.ghost._plan import Group
from fnopt.gradients.ghost._sites import Site

_OUTPUTS: dict[str, Any] = {"dot": _dot.outputs, "conv": _conv.outputs}


def bias_of(bias: Group, product: Group) -> tuple[int, ...]:
    """The bias params of a weight: its row for an input that is always 1; none without.

    Wherever they enter they must be added to the output of a product with the weight. Element `k`
    of all of them, concatenated, is added to feature `k` at all positions.

    Args:
        bias: The param, or those that enter joined.
        product: The products with the weight, and how matrices make it up.

    Returns:
        Their numbers in the order in which they are joined.
    """
    orders = {tuple(entry_shapes(s.weight)) for s in bias.sites}
    return orders.pop() if len(orders) == 1 and _is_row(bias, product) else ()


def _is_row(bias: Group, product: Group) -> bool:
    assert product.layout is not None
    axes = product.layout.weight.axes
    sites = {s.tap: s for s in product.sites if s.kind in _OUTPUTS}
    return all(
        s.eqn.primitive.name in {"add", "add_any"}
        and s.tap in sites
        and s.weight.axes == sites[s.tap].weight.axes == axes
        and _fits(s, sites[s.tap])
        for s in bias.sites
    )


def _fits(bias: Site, product: Site) -> bool:
    shapes = entry_shapes(bias.weight)
    ends = np.cumsum([0, *map(math.prod, shapes.values())])
    own = {
        i: start + np.arange(math.prod(shape)).reshape(shape)
        for (i, shape), start in zip(shapes.items(), ends[:-1].tolist(), strict=True)
    }
    numbers = replace_params(bias.weight, own)
    if numbers is None:
        return False
    (rows,) = _OUTPUTS[product.kind](product, numbers).blocks
    t, _, k = rows.shape
    return bool(t * k == ends[-1] and np.all(rows == np.arange(t * k).reshape(t, 1, k)))
