r"""Blocks of an approximate Gauss-Newton matrix: Kronecker products, dense or diagonal.

The gradient with respect to a weight is a sum of outer products of inputs and cotangents,
:math:`\sum_r a_r c_r^\top`. The second moment of this gradient is approximately
:math:`E[a a^\top] \otimes E[c c^\top]`. The kind of a param's block depends only on the program and
on shapes. A bias is treated as an additional row of its weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.gradients.ghost import _conv, _dot
from fnopt.gradients.ghost._factors import FactorLayout
from fnopt.gradients.ghost._parts import are_apart, entry_shapes, replace_params
from fnopt.gradients.ghost._plan import Group, Plan, stacked_layout
from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._weights import evaluate, pull_back

_OUTPUTS: dict[str, Any] = {"dot": _dot.output_rows, "conv": _conv.output_rows}


def bias_of(bias: Group, product: Group) -> tuple[int, ...]:
    """Find the bias of a weight, which is the weight's row for a constant input of 1.

    Every use of the bias must be an addition to the output of a product with the weight. Element
    `k` of the concatenated biases must be added to feature `k` at all positions.

    Args:
        bias: The candidate: one param, or several params that are concatenated.
        product: The products with the weight, with the weight's layout.

    Returns:
        Indices of the bias params in the order of concatenation; empty if `bias` isn't a bias of
        the weight.
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
        and _is_added_to_features(s, sites[s.tap])
        for s in bias.sites
    )


def _is_added_to_features(bias: Site, product: Site) -> bool:
    """Whether element `k` of the bias is added to feature `k` of a product, at all positions."""
    shapes = entry_shapes(bias.weight)
    ends = np.cumsum([0, *map(math.prod, shapes.values())])
    # The bias params are replaced by the indices of their elements. The operand of the addition
    # then shows which element is added to which entry of the output.
    element_indices = {
        i: start + np.arange(math.prod(shape)).reshape(shape)
        for (i, shape), start in zip(shapes.items(), ends[:-1].tolist(), strict=True)
    }
    operand = replace_params(bias.weight, element_indices)
    if operand is None:
        return False
    (rows,) = _OUTPUTS[product.kind](product, operand).blocks
    t, _, k = rows.shape
    return bool(t * k == ends[-1] and np.all(rows == np.arange(t * k).reshape(t, 1, k)))


# A leaf without Kronecker form has at most this many dense blocks, so that their memory is at most
# 16 max_side^2. A longer leaf has a diagonal block.
_DENSE_BLOCKS = 16


class Side(NamedTuple):
    """Shape of a Kronecker factor.

    Attributes:
        size: Number of rows, including the row of a bias (homogeneous coordinate).
        count: Number of dense diagonal blocks; 0 for a diagonal factor.
    """

    size: int
    count: int

    @property
    def width(self) -> int:
        """Size of a dense block; the last block is padded with zeros."""
        return -(-self.size // self.count)

    def shape(self, matrices: int) -> tuple[int, ...]:
        """Shape of the Kronecker factors of this many matrices."""
        if not self.count:
            return (matrices, self.size)
        return (matrices, self.count, self.width, self.width)

    def __str__(self) -> str:
        if not self.count:
            return f"diagonal {self.size}"
        return str(self.size) if self.count == 1 else f"{self.count} x {self.width}"


class KroneckerBlock(NamedTuple):
    """Diagonal block of the Gauss-Newton matrix for a param, or for a weight and its bias.

    A weight may consist of several params that are concatenated before the product. A weight may
    also be a part of a param that is split before the product. Other parts of this param then
    belong to other blocks.

    Attributes:
        kind: `'kronecker'`, `'dense'`, `'diagonal'` or `'none'`. For a `'kronecker'` block without
            a layout, the rows of the Jacobian are formed.
        leaves: Indices of the params of the weight, followed by the indices of its bias.
        biases: Indices of the bias params, in the order of the features.
        group: The sites of the weight.
        layout: The layout of the weight as matrices.
        taps: The sites that add the bias; at other sites the homogeneous coordinate is 0.
        matrices: Number of matrices, `T`.
        sizes: Rows and columns of each matrix; for blocks with fewer than two factors, the number
            of entries.
        sides: The shape of each factor; for a Kronecker product, left and right.
        why: The reason for the kind.
    """

    kind: str
    leaves: tuple[int, ...]
    biases: tuple[int, ...]
    group: Group
    layout: FactorLayout | None
    taps: frozenset[int]
    matrices: int
    sizes: tuple[int, ...]
    sides: tuple[Side, ...]
    why: str

    @property
    def bias_left(self) -> bool:
        """Whether the left factor, which then belongs to the inputs, has the row of the bias."""
        return not cotangents_left(self.group.sites[0])

    def matrix(self, leaves: Sequence[Any]) -> jax.Array:
        """Arrange the params of the block as `[T, D, K]`, or as `[T, D]` with one side."""
        if self.layout is None:
            return leaves[self.leaves[0]].reshape(1, *self.sizes)
        layout, (t, d, k) = self.layout, self.layout.sizes
        stacked = evaluate(layout.weight, dict(enumerate(leaves)), wide=True)
        # The inverse of `FactorLayout.array`.
        axes = stacked.reshape([layout.split[i] for i in layout.perm])
        m = axes.transpose([int(i) for i in np.argsort(layout.perm)]).reshape(t, d, k)
        if not self.biases:
            return m
        axis = 1 if self.bias_left else 2
        row = jnp.concatenate([leaves[i].reshape(t, -1) for i in self.biases], 1)
        return jnp.concatenate([m, jnp.expand_dims(row, axis)], axis)

    def leaves_of(self, m: jax.Array, like: Sequence[Any]) -> dict[int, jax.Array]:
        """Invert `matrix`: params keyed by index, with zeros for entries of other blocks.

        Args:
            m: A result of `matrix`.
            like: The params, for their shapes.
        """
        if self.layout is None:
            return {i: m.reshape(like[i].shape) for i in self.leaves}
        biases: dict[int, jax.Array] = {}
        if self.biases:
            axis = 1 if self.bias_left else 2
            m, row = jnp.split(m, [m.shape[axis] - 1], axis)
            t = self.matrices
            ends = np.cumsum([like[i].size // t for i in self.biases])[:-1].tolist()
            rows = jnp.split(row.reshape(t, -1), ends, 1)
            biases = {i: x.reshape(like[i].shape) for i, x in zip(self.biases, rows, strict=True)}
        weight = {i: like[i] for i in self.layout.weight.leaves}
        return biases | pull_back(self.layout.weight, self.layout.array(m), weight)


def plan_blocks(plan: Plan, max_side: int) -> tuple[KroneckerBlock, ...]:
    """Plan the blocks of all params.

    Args:
        plan: The plan for the gradients of the params.
        max_side: The largest side of a dense block. Larger factors are approximated by several
            diagonal blocks.
    """
    blocks: list[KroneckerBlock] = []
    remaining = [g for g in plan.groups if g.form == "params"]  # candidates for biases
    for group in plan.groups:
        for product in _split_by_weight(group, plan):
            blocks.append(_block_of_product(product, remaining, max_side))
            remaining = [g for g in remaining if not {*g.leaves} & {*blocks[-1].leaves}]
    planned = {i for b in blocks for i in b.leaves}
    rest = [(g, i) for g in plan.groups for i in g.leaves if i not in planned]
    blocks += [_block_without_product(g, i, plan.params[i], max_side) for g, i in rest]
    return tuple(sorted(blocks, key=lambda b: b.leaves))


def cotangents_left(site: Site) -> bool:
    """Whether the left factor belongs to the cotangents instead of the inputs."""
    return site.kind == "dot" and _dot.cotangent_first(site)


def _split_by_weight(group: Group, plan: Plan) -> list[Group]:
    """Split a group into one group per weight; empty if products don't use every element once."""
    if group.form in {"vmap", "none"} or any(s.kind == "direct" for s in group.sites):
        return []
    layouts = [stacked_layout(s, plan.lengths) for s in group.sites]
    sites: dict[Any, list[Site]] = {}
    for layout, site in zip(layouts, group.sites, strict=True):
        sites.setdefault(layout.key, []).append(site)
    unique = {x.key: x for x in layouts}
    weights = [x.weight for x in unique.values()]
    # The blocks must partition the params: no element is missing, repeated or in two weights.
    entries = sum(math.prod(x.shape) for x in unique.values())
    covers_params = entries == sum(plan.params[i].size for i in group.leaves)
    are_disjoint = len(weights) == 1 or are_apart(weights)
    if not (covers_params and all(w.preserves_norm for w in weights) and are_disjoint):
        return []
    return [
        Group(tuple(sorted(x.weight.leaves)), tuple(sites[k]), group.form, x, group.why)
        for k, x in unique.items()
    ]


def _block_of_product(group: Group, biases: Sequence[Group], max_side: int) -> KroneckerBlock:
    layout = group.layout
    assert layout is not None
    t, d, k = layout.sizes
    swapped = {cotangents_left(s) for s in group.sites}
    bias: tuple[int, ...] = ()
    taps: frozenset[int] = frozenset()
    # If a weight and its transpose are both used, no side belongs to the inputs of all sites.
    for candidate in biases if len(swapped) == 1 else ():
        if bias := bias_of(candidate, group):
            taps = frozenset(s.tap for s in candidate.sites)
            d, k = (d, k + 1) if swapped == {True} else (d + 1, k)
            break
    lookups = all(s.kind == "gather" for s in group.sites)
    # One-hot inputs have a diagonal second moment.
    sides = (Side(d, 0) if lookups else _side(d, max_side), _side(k, max_side))
    operations = ", ".join(dict.fromkeys(s.eqn.primitive.name for s in group.sites))
    repeats = f" in {len(group.sites)} operations" if len(group.sites) > 1 else ""
    why = f"enters by {operations}{repeats}"
    return KroneckerBlock(
        "kronecker", (*group.leaves, *bias), bias, group, layout, taps, t, (d, k), sides, why
    )


def _block_without_product(group: Group, leaf: int, aval: Any, max_side: int) -> KroneckerBlock:
    size = aval.size
    why = (
        "its matrix products don't use every entry exactly once"
        if group.form in {"gram", "matrix"}
        else group.why
    )
    if group.form == "params":
        operations = ", ".join(dict.fromkeys(s.eqn.primitive.name for s in group.sites))
        why = f"not used in a matrix product (enters by {operations})"
    # Reshape the param to a matrix that is as square as possible: the smallest longer side.
    cuts = [
        (math.prod(aval.shape[:i]), math.prod(aval.shape[i:])) for i in range(len(aval.shape) + 1)
    ]
    d, k = min(cuts, key=max)
    sizes = (size,)
    if group.form == "none" or not size:
        kind, sides = "none", ()
    elif size > max_side and min(d, k) > 1:
        kind, sizes = "kronecker", (d, k)
        sides = (_side(d, max_side), _side(k, max_side))
        why += "; moments of rows and columns"
    elif size <= _DENSE_BLOCKS * max_side:
        kind, sides = "dense", (_side(size, max_side),)
    else:
        kind, sides = "diagonal", (Side(size, 0),)
    return KroneckerBlock(kind, (leaf,), (), group, None, frozenset(), 1, sizes, sides, why)


def _side(size: int, max_side: int) -> Side:
    return Side(size, max(1, -(-size // max_side)))
