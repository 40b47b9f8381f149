"""Inner products between the gradients of the examples of two tapes."""

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
    sum_of,
)
from fnopt.gradients.ghost._plan import Group
from fnopt.gradients.ghost._tape import Tape
from fnopt.numerics import HIGHEST, compute_dtype
from fnopt.sharding import pvary_like

# Maximum bytes of intermediate arrays: inner products of positions, or slices of gradients. For 64
# examples with 64 positions of width 64, the similarity takes 28, 13, 11 and 14 ms with 1, 8, 32
# and 256 MB (CPU time).
BLOCK_BYTES = 32 * 2**20


class GradientPart(NamedTuple):
    """Gradients of a group of leaves, as factors or as formed arrays.

    Attributes:
        formed: The formed gradients, or None.
        tape: The factors of the gradients.
        factors: Scale factors of the examples' gradients, `[n]`, which formed gradients already
            include; `None` for 1.
    """

    formed: _tape.Formed
    tape: Tape
    factors: jax.Array | None


def inner_matrix(group: Group, part: GradientPart, other: GradientPart) -> jax.Array | None:
    """Inner products of the gradients of all examples of two tapes, `[n, m]`.

    The result is `None` if all inner products are zero. From factors, an inner product takes
    `D + K` multiplications for each of the `R R'` pairs of positions. From formed gradients, it
    takes `D K` multiplications; if this is cheaper, slices of the gradients are formed.
    """
    if group.form == "none":
        return None
    if part.formed is not None and other.formed is not None:
        pairs = zip(jax.tree.leaves(part.formed), jax.tree.leaves(other.formed), strict=True)
        return sum_of(inner_products(x, y) for x, y in pairs)
    assert group.layout is not None
    p, q = _pairs(group, part), _pairs(group, other)
    _, d, k = group.layout.sizes
    dense = len(p) == 1 and all(isinstance(f, Dense) for f in p[0])
    if dense and _positions(p[0]) * _positions(q[0]) * (d + k) > d * k:
        return by_slices(p[0], q[0], d, k)
    return _gram_of_positions(p, q)


def _pairs(group: Group, part: GradientPart) -> list[Pair]:
    """Factors of the gradients of all examples, with a leading example axis."""

    def factor_example(data: list[tuple[Any, jax.Array]], factor: jax.Array | None) -> list[Pair]:
        pairs = _tape.pairs_of(group, data)
        pairs = pairs if factor is None else [scale_pair(pair, factor) for pair in pairs]
        return list(merge_pairs(pairs))

    data = [_tape.data_of(site, part.tape) for site in group.sites]
    return jax.vmap(factor_example)(data, part.factors)


def _positions(pair: Pair) -> int:
    return jax.tree.leaves(pair.left)[0].shape[2]


def _gram_of_positions(p: list[Pair], q: list[Pair]) -> jax.Array:
    """Inner products over all pairs of positions, in chunks of examples that fit in memory."""

    def products_of_example(row: list[Pair]) -> jax.Array:
        return jax.vmap(lambda column: sum_of(inner(a, b) for a in row for b in column))(q)

    n = jax.tree.leaves(p)[0].shape[0]
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), p)
    products = sum(_positions(a) for a in p) * sum(_positions(b) for b in q)
    m, t = jax.tree.leaves(q)[0].shape[0], jax.tree.leaves(example)[0].shape[0]
    chunk_size = max(1, BLOCK_BYTES // max(1, 4 * products * m * t))
    return (
        jax.vmap(products_of_example)(p)
        if chunk_size >= n
        else jax.lax.map(products_of_example, p, batch_size=chunk_size)
    )


def by_slices(p: Pair, q: Pair, d: int, k: int) -> jax.Array:
    """Inner products of gradients, of which a slice of the `D` rows is formed at a time."""
    x, y = _join_vectors(p.left), _join_vectors(q.left)
    per_row = 4 * x.shape[1] * k * (x.shape[0] + y.shape[0])
    count = math.ceil(d / min(d, max(1, BLOCK_BYTES // per_row)))
    width = math.ceil(d / count)

    def slice_rows(z: jax.Array) -> jax.Array:
        # Zero padding doesn't change inner products.
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
    return jax.lax.scan(add, zero, (slice_rows(x), slice_rows(y)))[0]


def _join_vectors(factor: Any) -> jax.Array:
    """Concatenate the blocks of a dense factor."""
    return jnp.concatenate(factor.blocks, axis=-1)
