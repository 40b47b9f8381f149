"""Outer products of a site over all iterations, and their layout in the weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from fnopt.gradients.ghost._factors import Pair
from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._weights import Weight


def site_pair(rule: Any, site: Site, x: jax.Array, g: jax.Array) -> Pair:
    """The factors of one example's gradient with respect to the site's stacked weight.

    Iterations that share the weight are further positions; those that have a slice of their own
    are further matrices.

    Args:
        rule: The module with the `pair` of one iteration.
        site: The site.
        x: The other operand, with a leading axis for every scan around the site.
        g: The cotangent of the output, likewise.
    """

    def pair_once(x: jax.Array, g: jax.Array) -> Pair:
        return rule.pair(site, x, g)

    for _ in site.axes:
        pair_once = jax.vmap(pair_once)
    return jax.tree.map(lambda a: _fold_scans(a, site), pair_once(x, g))


def _fold_scans(a: jax.Array, site: Site) -> jax.Array:
    """Reshape `[scans..., T, R, ...]` to `[slicing scans and T, other scans and R, ...]`."""
    n = len(site.axes)
    slicing = [i for i, number in enumerate(site.axes) if number in site.weight.axes]
    sharing = [i for i in range(n) if i not in slicing]
    rest = range(n + 2, a.ndim)
    t = math.prod(a.shape[i] for i in (*slicing, n))
    r = math.prod(a.shape[i] for i in (*sharing, n + 1))
    moved = a.transpose(*slicing, n, *sharing, n + 1, *rest)
    return moved.reshape(t, r, *(a.shape[i] for i in rest))


def pair_shapes(
    rule: Any,
    site: Site,
    nodes: Mapping[int, tuple[Any, tuple[int, ...]]],
    lengths: Mapping[int, int],
) -> Pair:
    """The shapes of a site's factors."""
    (other,) = site.others
    assert isinstance(other, int)

    def shape(number: int) -> jax.ShapeDtypeStruct:
        aval, axes = nodes[number]
        return jax.ShapeDtypeStruct((*(lengths[n] for n in axes), *aval.shape), aval.dtype)

    return jax.eval_shape(lambda x, g: site_pair(rule, site, x, g), shape(other), shape(site.tap))


class FactorLayout(NamedTuple):
    """The positions of the entries of `[T, D, K]` in the stacked value of a weight.

    Attributes:
        weight: The weight.
        split: The sizes of the axes of `T`, `D` and `K`, in this order.
        counts: How many axes `T`, `D` and `K` have.
        perm: Which of these axes come one after the other in the weight.
        shape: The shape of the weight's stacked value.
    """

    weight: Weight
    split: tuple[int, ...]
    counts: tuple[int, int, int]
    perm: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def key(self) -> Any:
        """Hashable key; gradients with equal keys can be added as matrices."""
        return (self.weight.key, self.split, self.counts, self.perm)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """`T`, `D` and `K`."""
        n, m, _ = self.counts
        cuts = self.split[:n], self.split[n : n + m], self.split[n + m :]
        t, d, k = map(math.prod, cuts)
        return t, d, k

    def array(self, matrices: jax.Array) -> jax.Array:
        """Reshape `[T, D, K]` to the stacked value of the weight."""
        return matrices.reshape(self.split).transpose(self.perm).reshape(self.shape)
