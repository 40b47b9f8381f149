r"""Block of a Gauss-Newton matrix for each param: Kronecker product, dense or diagonal.

The gradient with respect to a weight is a sum of outer products of inputs and cotangents,
:math:`\sum_r a_r c_r^\top`, and its second moment is approximately
:math:`E[a a^\top] \otimes E[c c^\top]`. The kind of a param's block depends only on shapes. A bias
is treated as an additional row of its weight.
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

_OUTPUTS: dict[str, Any] = {"dot": _dot.outputs, "conv": _conv.outputs}


def bias_of(bias: Group, product: Group) -> tuple[int, ...]:
    """Return the bias params of a weight, its row for a constant input of 1; empty without a bias.

    Every use of the bias must be an addition to the output of a product with the weight. Element
    `k` of the concatenated biases must be added to feature `k` at all positions.

    Args:
        bias: The param, or the params that are concatenated.
        product: The products with the weight, with its layout.

    Returns:
        Indices of the params in the order of concatenation.
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


# A leaf without Kronecker form gets at most this many dense blocks, so that their memory is at most
# 16 max_side^2; a longer one gets a diagonal.
_DENSE_BLOCKS = 16


class Side(NamedTuple):
    """Shape of a Kronecker factor.

    Attributes:
        size: Number of rows, including the homogeneous coordinate.
        count: Number of dense diagonal blocks; 0 for a diagonal factor.
    """

    size: int
    count: int

    @property
    def width(self) -> int:
        """Size of a dense block; the last block is padded with zeros."""
        return -(-self.size // self.count)

    def shape(self, matrices: int) -> tuple[int, ...]:
        """Shape of the factors of a number of matrices."""
        if not self.count:
            return (matrices, self.size)
        return (matrices, self.count, self.width, self.width)

    def __str__(self) -> str:
        if not self.count:
            return f"diagonal {self.size}"
        return str(self.size) if self.count == 1 else f"{self.count} x {self.width}"


class KroneckerBlock(NamedTuple):
    """The block of a param, or of a weight and its bias.

    A weight may consist of several params that are concatenated before the product. It may also be
    a part of a param that is split before the product; the other parts then belong to other blocks.

    Attributes:
        kind: `'kronecker'`, `'dense'`, `'diagonal'` or `'none'`. A `'kronecker'` block without a
            layout has formed rows.
        leaves: Indices of the params of the weight, followed by the indices of its bias.
        biases: Indices of the bias params, in the order of the features.
        group: The sites of the weight.
        layout: The layout of the weight as matrices.
        taps: The sites that add the bias; at other sites the homogeneous coordinate is 0.
        matrices: Number of matrices: `T`.
        sizes: Rows and columns of each matrix; the number of entries for blocks with fewer than two
            factors.
        sides: The side of each factor; for a Kronecker product, left and right.
        why: The reason.
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
        """Whether the left factor belongs to the inputs and has the homogeneous coordinate."""
        return not cotangents_left(self.group.sites[0])

    def matrix(self, leaves: Sequence[Any]) -> jax.Array:
        """Params of the block as `[T, D, K]`, or `[T, D]` with fewer than two sides."""
        if self.layout is None:
            return leaves[self.leaves[0]].reshape(1, *self.sizes)
        layout, (t, d, k) = self.layout, self.layout.sizes
        stacked = evaluate(layout.weight, dict(enumerate(leaves)), wide=True)
        split = stacked.reshape([layout.split[i] for i in layout.perm])
        m = split.transpose([int(i) for i in np.argsort(layout.perm)]).reshape(t, d, k)
        if not self.biases:
            return m
        axis = 1 if self.bias_left else 2
        row = jnp.concatenate([leaves[i].reshape(t, -1) for i in self.biases], 1)
        return jnp.concatenate([m, jnp.expand_dims(row, axis)], axis)

    def leaves_of(self, m: jax.Array, like: Sequence[Any]) -> dict[int, jax.Array]:
        """Params of a matrix, keyed by index; entries of a param in other blocks are zero.

        Args:
            m: The result of `matrix`.
            like: The params.
        """
        if self.layout is None:
            return {i: m.reshape(like[i].shape) for i in self.leaves}
        found: dict[int, jax.Array] = {}
        if self.biases:
            axis = 1 if self.bias_left else 2
            m, row = jnp.split(m, [m.shape[axis] - 1], axis)
            t = self.matrices
            ends = np.cumsum([like[i].size // t for i in self.biases])[:-1].tolist()
            rows = jnp.split(row.reshape(t, -1), ends, 1)
            found = {i: x.reshape(like[i].shape) for i, x in zip(self.biases, rows, strict=True)}
        weight = {i: like[i] for i in self.layout.weight.leaves}
        return found | pull_back(self.layout.weight, self.layout.array(m), weight)


def plan_blocks(plan: Plan, max_side: int) -> tuple[KroneckerBlock, ...]:
    """Plan the blocks of all params.

    Args:
        plan: The plan for the gradients of the params.
        max_side: The largest side of a dense matrix; larger matrices are split into diagonal
            blocks.
    """
    blocks: list[KroneckerBlock] = []
    remaining = [g for g in plan.groups if g.form == "params"]  # candidates for biases
    for group in plan.groups:
        for product in _split_by_weight(group, plan):
            blocks.append(_block_of_product(product, remaining, max_side))
            remaining = [g for g in remaining if not {*g.leaves} & {*blocks[-1].leaves}]
    used = {i for b in blocks for i in b.leaves}
    rest = [(g, i) for g in plan.groups for i in g.leaves if i not in used]
    blocks += [_block_without_product(g, i, plan.params[i], max_side) for g, i in rest]
    return tuple(sorted(blocks, key=lambda b: b.leaves))


def cotangents_left(site: Site) -> bool:
    """Whether the left factor belongs to the cotangents, and the right factor to the inputs."""
    return site.kind == "dot" and _dot.cotangent_first(site)


def _split_by_weight(group: Group, plan: Plan) -> list[Group]:
    """Split a group by weight; empty if an element is used outside of products."""
    if group.form in {"vmap", "none"} or any(s.kind == "direct" for s in group.sites):
        return []
    layouts = [stacked_layout(s, plan.lengths) for s in group.sites]
    sites: dict[Any, list[Site]] = {}
    for layout, site in zip(layouts, group.sites, strict=True):
        sites.setdefault(layout.key, []).append(site)
    unique = {x.key: x for x in layouts}
    weights = [x.weight for x in unique.values()]
    numbers = sum(math.prod(x.shape) for x in unique.values())
    whole = numbers == sum(plan.params[i].size for i in group.leaves)
    alone = len(weights) == 1 or are_apart(weights)
    if not (whole and all(w.keeps_length for w in weights) and alone):
        return []
    return [
        Group(tuple(sorted(x.weight.leaves)), tuple(sites[k]), group.form, x, group.why)
        for k, x in unique.items()
    ]


def _block_of_product(group: Group, biases: Sequence[Group], max_side: int) -> KroneckerBlock:
    layout = group.layout
    assert layout is not None
    t, d, k = layout.sizes
    turned = {cotangents_left(s) for s in group.sites}
    bias: tuple[int, ...] = ()
    taps: frozenset[int] = frozenset()
    for other in biases if len(turned) == 1 else ():
        if bias := bias_of(other, group):
            taps = frozenset(s.tap for s in other.sites)
            d, k = (d, k + 1) if turned == {True} else (d + 1, k)
            break
    lookups = all(s.kind == "gather" for s in group.sites)
    sides = (Side(d, 0) if lookups else _side(d, max_side), _side(k, max_side))
    enters = ", ".join(dict.fromkeys(s.eqn.primitive.name for s in group.sites))
    many = f" at {len(group.sites)} places" if len(group.sites) > 1 else ""
    why = f"enters by {enters}{many}"
    return KroneckerBlock(
        "kronecker", (*group.leaves, *bias), bias, group, layout, taps, t, (d, k), sides, why
    )


def _block_without_product(group: Group, leaf: int, aval: Any, max_side: int) -> KroneckerBlock:
    size = aval.size
    why = (
        "its products don't use every element exactly once"
        if group.form in {"gram", "matrix"}
        else group.why
    )
    if group.form == "params":
        enters = ", ".join(dict.fromkeys(s.eqn.primitive.name for s in group.sites))
        why = f"no product with a matrix of its own (enters by {enters})"
    # The param becomes the matrix nearest to a square, without a permutation of axes: the split
    # with the smallest longer side.
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
