r"""Differences of gradients as sums of outer products.

.. math:: \sum_r a_r c_r^\top - \sum_r b_r d_r^\top
          = \sum_r (a_r - b_r) c_r^\top + \sum_r b_r (c_r - d_r)^\top

The second form has small factors where the gradients are close: in float32 the inner products of
the first would cancel, and nothing be left of a spread that is a thousandth of the mean.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import HIGHEST, compute_dtype, gathered, sum_of_squares
from fnopt.gradients._lengths import number, spread_of
from fnopt.gradients._sums import only_where
from fnopt.gradients.ghost import _reduce
from fnopt.gradients.ghost._factors import (
    Dense,
    OneHot,
    Pair,
    accumulated,
    length_squared,
    outer,
    sum_of,
)
from fnopt.gradients.ghost._plan import Group
from fnopt.gradients.ghost._record import Tape


def spread(
    group: Group, formed: _reduce.Formed, tape: Tape, counts: jax.Array
) -> dict[int, jax.Array]:
    """The sum of the squared distances of the gradients that count from their mean."""
    if isinstance(formed, dict):
        return {i: spread_of(x, counts) for i, x in formed.items()}
    if formed is not None:
        return {group.leaves[0]: spread_of(formed, counts)}
    return {} if group.form == "none" else {group.leaves[0]: _spread(group, tape, counts)}


def _spread(group: Group, tape: Tape, counts: jax.Array) -> jax.Array:
    assert group.layout is not None
    _, *shape = group.layout.sizes
    data = [_reduce.data_of(site, tape) for site in group.sites]
    first = jnp.argmax(gathered(counts))
    origin = _reduce.pairs_of(group, jax.tree.map(lambda x: gathered(x, 0)[first], data))

    def from_first(data: list[tuple[Any, jax.Array]]) -> tuple[jax.Array, list[Pair]]:
        pairs = _reduce.pairs_of(group, data)
        apart = [difference(p, q) for p, q in zip(pairs, origin, strict=True)]
        return length_squared(apart), apart

    squares, pairs = jax.vmap(from_first)(data)
    gap = sum_of(_total(p, counts, (shape[0], shape[1])) for p in pairs)
    n = number(counts, squares.dtype)
    near = jnp.sum(only_where(counts > 0, squares))
    # Rounding may leave less than nothing of gradients that are all the same.
    return jnp.maximum(near - sum_of_squares(gap / n.astype(gap.dtype)) * n, jnp.zeros_like(near))


def _total(pairs: Pair, counts: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """The sum of the gradients that count, `[T, D, K]`, from their factors."""

    def kept(x: jax.Array) -> jax.Array:
        x = x if jnp.issubdtype(x.dtype, jnp.integer) else only_where(counts > 0, x)
        return _reduce.examples_as_positions(x)

    return outer(jax.tree.map(kept, pairs), shape, HIGHEST)


def difference(one: Pair, other: Pair) -> Pair:
    """The factors of a difference of two gradients from those of the gradients."""
    if isinstance(one.right, OneHot):
        turned = difference(Pair(one.right, one.left), Pair(other.right, other.left))
        return Pair(turned.right, turned.left)
    assert isinstance(other.right, Dense)
    if isinstance(one.left, OneHot):
        assert isinstance(other.left, OneHot)
        return _one_hot(one.left, one.right, other.left, other.right)
    assert isinstance(other.left, Dense)
    return Pair(
        jax.tree.map(lambda a, b: _joined(_minus(a, b), b), one.left, other.left),
        jax.tree.map(lambda c, d: _joined(_wide(c), _minus(c, d)), one.right, other.right),
    )


def _one_hot(a: OneHot, c: Dense, b: OneHot, d: Dense) -> Pair:
    # Where both have their one at the same place, the difference is a single product.
    same = (a.index == b.index)[..., None]

    def joined(c: jax.Array, d: jax.Array) -> jax.Array:
        c, d = _wide(c), _wide(d)
        return _joined(jnp.where(same, c - d, c), jnp.where(same, jnp.zeros_like(d), -d))

    return Pair(OneHot(_joined(a.index, b.index)), Dense(jax.tree.map(joined, c.blocks, d.blocks)))


def _minus(a: jax.Array, b: jax.Array) -> jax.Array:
    return _wide(a) - _wide(b)


def _joined(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.concatenate([a, b.astype(a.dtype)], axis=1)


def _wide(x: jax.Array) -> jax.Array:
    x = accumulated(x)
    return x.astype(compute_dtype(x.dtype))
