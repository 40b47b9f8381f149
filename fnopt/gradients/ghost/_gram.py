"""Inner products between the gradients of different examples, from two tapes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.gradients._sums import inner_products
from fnopt.gradients.ghost import _tape
from fnopt.gradients.ghost._factors import (
    Dense,
    Pair,
    inner,
    merge_pairs,
    outer,
    scale_pair,
    site_pair,
    sum_of,
)
from fnopt.gradients.ghost._plan import RULES, Group
from fnopt.gradients.ghost._tape import Tape
from fnopt.numerics import HIGHEST, compute_dtype
from fnopt.sharding import pvary_like

# Maximum bytes of the inner products of positions, or of the slices of gradients, at a time.
BLOCK_BYTES = 32 * 2**20


class GradientPart(NamedTuple):
    """Gradients of a group of leaves, as factors or as formed arrays.

    Attributes:
        formed: The formed gradients, or None.
        tape: The factors of the gradients.
        factors: Scale factors of the examples' gradients, `[n]`; formed gradients already include
            them.
    """

    formed: _tape.Formed
    tape: Tape
    factors: jax.Array | None


def inner_matrix(group: Group, part: GradientPart, other: GradientPart) -> jax.Array | None:
    """The inner products of the gradients of all examples of two tapes, `[n, m]`.

    Returns `None` if all inner products are zero. An inner product of two gradients takes `D + K`
    multiplications for each of the `R^2` pairs of positions. If forming the `D x K` gradients is
    cheaper, slices of them are formed.
    """
    if group.form == "none":
        return None
    if part.formed is not None and other.formed is not None:
        pairs = zip(jax.tree.leaves(part.formed), jax.tree.leaves(other.formed), strict=True)
        return sum_of(inner_products(x, y) for x, y in pairs)
    assert group.layout is not None
    p, q = _pairs(group, part), _pairs(group, other)
    _, d, k = group.layout.sizes
    # FLOPs of a pair of examples: R R' (D + K) by positions, about D K by formed gradients.
    dense = len(p) == 1 and all(isinstance(f, Dense) for f in p[0])
    if dense and _positions(p[0]) * _positions(q[0]) * (d + k) > d * k:
        return by_slices(p[0], q[0], d, k)
    return _gram_of_positions(p, q)


def _pairs(group: Group, part: GradientPart) -> list[Pair]:
    """Factors of the gradients of all examples, with a leading example axis."""

    def factor_example(data: list[tuple[Any, jax.Array]], factor: jax.Array | None) -> list[Pair]:
        found = [
            site_pair(RULES[s.kind], s, x, g) for s, (x, g) in zip(group.sites, data, strict=True)
        ]
        found = found if factor is None else [scale_pair(pair, factor) for pair in found]
        return list(merge_pairs(found))

    data = [_tape.data_of(site, part.tape) for site in group.sites]
    return jax.vmap(factor_example)(data, part.factors)


def _positions(pair: Pair) -> int:
    return jax.tree.leaves(pair.left)[0].shape[2]


def _gram_of_positions(p: list[Pair], q: list[Pair]) -> jax.Array:
    """Inner products over all pairs of positions, in chunks of examples that fit in memory."""

    def products_of_example(mine: list[Pair]) -> jax.Array:
        return jax.vmap(lambda theirs: sum_of(inner(a, b) for a in mine for b in theirs))(q)

    n = jax.tree.leaves(p)[0].shape[0]
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), p)
    products = sum(_positions(a) for a in p) * sum(_positions(b) for b in q)
    m, t = jax.tree.leaves(q)[0].shape[0], jax.tree.leaves(example)[0].shape[0]
    fitting = max(1, BLOCK_BYTES // max(1, 4 * products * m * t))
    return (
        jax.vmap(products_of_example)(p)
        if fitting >= n
        else jax.lax.map(products_of_example, p, batch_size=fitting)
    )


def by_slices(p: Pair, q: Pair, d: int, k: int) -> jax.Array:
    """Inner products of gradients, formed for a slice of the `D` rows at a time."""
    x, y = _join_vectors(p.left), _join_vectors(q.left)
    per_row = 4 * x.shape[1] * k * (x.shape[0] + y.shape[0])
    count = math.ceil(d / min(d, max(1, BLOCK_BYTES // per_row)))
    width = math.ceil(d / count)

    def cut(z: jax.Array) -> jax.Array:
        # Rows of zeros at the end add nothing to an inner product.
        z = jnp.pad(z, (*[(0, 0)] * (z.ndim - 1), (0, count * width - d)))
        return jnp.moveaxis(z.reshape(*z.shape[:-1], count, width), -2, 0)

    def form(left: jax.Array, right: Any) -> jax.Array:
        pair = Pair(Dense((left,)), Dense((_join_vectors(right),)))
        return jax.vmap(lambda example: outer(example, (width, k), HIGHEST))(pair)

    def add(total: jax.Array, part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + inner_products(form(part[0], p.right), form(part[1], q.right)), None

    dtype = compute_dtype(*(z.dtype for z in jax.tree.leaves((p, q))))
    # Inside shard_map, the initial carry of a scan must vary like its result.
    zero = pvary_like(jnp.zeros((x.shape[0], y.shape[0]), dtype), (x, y))
    return jax.lax.scan(add, zero, (cut(x), cut(y)))[0]


def _join_vectors(factor: Any) -> jax.Array:
    """Concatenate the blocks of vectors."""
    return jnp.concatenate(factor.blocks, axis=-1)
