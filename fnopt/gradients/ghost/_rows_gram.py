"""Inner products between the rows of two Jacobians, from two tapes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.gradients._sums import inner_products
from fnopt.gradients.ghost import _gram, _tape
from fnopt.gradients.ghost._factors import Dense, Pair, inner, site_pair, sum_of
from fnopt.gradients.ghost._kronecker import cotangents_left
from fnopt.gradients.ghost._plan import RULES, Group
from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._tape import Tape
from fnopt.sharding import reshape


class RowsPart(NamedTuple):
    """Jacobian with respect to a group of leaves, as factors or as formed arrays.

    Attributes:
        formed: The formed rows, `[n k, ...]`, or None.
        tape: The factors of the rows; cotangents are `[n, k, ...]`.
    """

    formed: _tape.Formed
    tape: Tape


class Factors(NamedTuple):
    """Factors of the rows of one site.

    Attributes:
        pair: Records `[n, T, R, d]` and cotangents `[n, k, T, R, d]`, on either side.
        axes: The residual axis of one example's left and right factor: `None` for records, 0 for
            cotangents.
    """

    pair: Pair
    axes: tuple[int | None, int | None]

    @property
    def is_single(self) -> bool:
        """Whether the site has one matrix, one position and one block per factor."""
        blocks = [f.blocks for f in self.pair if isinstance(f, Dense)]
        single = all(len(b) == 1 and b[0].shape[-3:-1] == (1, 1) for b in blocks)
        return len(blocks) == 2 and single

    @property
    def residual_axes(self) -> Any:
        """Axes of the residuals, for `jax.vmap`."""
        return Pair(*self.axes)  # pyright: ignore[reportArgumentType]


def have_same_layout(group: Group, other: Group) -> bool:
    """Whether two groups have the same params, with rows of the same form."""
    if group.leaves != other.leaves:
        return False
    if group.layout is None or other.layout is None:
        return False
    return group.layout.key == other.layout.key


def inner_matrix(rows: tuple[Group, RowsPart], other_rows: tuple[Group, RowsPart]) -> jax.Array:
    """Inner products of the rows of two groups with equal layout, `[n k, m l]`."""
    (group, p), (_, q) = rows, other_rows
    if p.formed is not None and q.formed is not None:
        assert not isinstance(p.formed, dict)
        assert not isinstance(q.formed, dict)
        return inner_products(p.formed, q.formed)
    assert group.layout is not None
    _, d, k = group.layout.sizes
    left, right = _factors(*rows), _factors(*other_rows)
    if len(left) == len(right) == 1 and _are_dense([*left, *right]):
        # The cost of both forms as in `_gram.inner_matrix`.
        positions = _dense_block(left[0].pair).shape[-2] * _dense_block(right[0].pair).shape[-2]
        if positions * (d + k) > d * k:
            return _gram.by_slices(_flat_pair(left[0]), _flat_pair(right[0]), d, k)
        if left[0].is_single and right[0].is_single and left[0].axes == right[0].axes:
            return _gram_of_examples(left[0], right[0])
    return _gram_of_positions(left, right)


def _gram_of_examples(p: Factors, q: Factors) -> jax.Array:
    """Inner products of rows with one position: the elementwise product of two Gram matrices."""
    # The Gram matrix of the cotangents is computed like the inner products of a bias, so that XLA
    # eliminates the common subexpression.
    total = None
    for x, y, axis in zip(p.pair, q.pair, p.axes, strict=True):
        assert isinstance(x, Dense)
        assert isinstance(y, Dense)
        leading = 1 if axis is None else 2
        a, b = (z.blocks[0].reshape(*z.blocks[0].shape[:leading], -1) for z in (x, y))
        gram = inner_products(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]))
        n, m = a.shape[0], b.shape[0]
        k, width = (1, 1) if axis is None else (a.shape[1], b.shape[1])
        gram = reshape(gram, n, k, m, width)
        total = gram if total is None else total * gram.astype(total.dtype)
    assert total is not None
    n, k, m, width = total.shape
    return reshape(total, n * k, m * width)


def by_leaf(leaves: Mapping[int, jax.Array], other: Mapping[int, jax.Array]) -> jax.Array:
    """Inner products of formed rows over the params of both arguments."""
    return sum_of(inner_products(leaves[i], other[i]) for i in sorted({*leaves} & {*other}))


def flatten_tape(tape: Tape) -> Tape:
    """Flatten a tape, so that every residual is treated as an example."""
    k = tape.outputs[0].shape[1]
    return Tape(
        [tape.outputs[0].reshape(-1)],
        jax.tree.map(lambda x: _repeat_rows(x, k), tape.records),
        jax.tree.map(_join_axes, tape.cotangents),
        jax.tree.map(_join_axes, tape.grads),
    )


def _repeat_rows(x: jax.Array, k: int) -> jax.Array:
    return _join_axes(jnp.broadcast_to(x[:, None], (x.shape[0], k, *x.shape[1:])))


def _join_axes(x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _factors(group: Group, part: RowsPart) -> list[Factors]:
    """Factors of the rows of a group, one entry per site, or one entry if they can be merged."""
    factors = [_site_factors(site, part.tape) for site in group.sites]
    if len(factors) == 1 or not _are_dense(factors) or len({f.axes for f in factors}) > 1:
        return factors
    structures = {jax.tree.structure(f.pair) for f in factors}
    if len(structures) > 1:
        return factors
    # Several uses of a matrix are treated as further positions.
    merged = jax.tree.map(lambda *x: jnp.concatenate(x, axis=-2), *(f.pair for f in factors))
    return [Factors(merged, factors[0].axes)]


def _site_factors(site: Site, tape: Tape) -> Factors:
    axes = (0, None) if cotangents_left(site) else (None, 0)

    # Only the cotangents have an axis of residuals; all residuals share the records.
    pair = functools.partial(site_pair, RULES[site.kind], site)
    example_pair = jax.vmap(pair, (None, 0), Pair(*axes))  # pyright: ignore[reportArgumentType]
    return Factors(jax.vmap(example_pair)(*_tape.data_of(site, tape)), axes)


def _are_dense(factors: list[Factors]) -> bool:
    return all(isinstance(factor, Dense) for f in factors for factor in f.pair)


def _dense_block(pair: Pair) -> jax.Array:
    """First block of a dense factor of the pair, whose shape ends in `[T, R, d]`."""
    return next(f for f in pair if isinstance(f, Dense)).blocks[0]


def _flat_pair(factors: Factors) -> Pair:
    """Factors with one row per residual of every example: `[n k, T, R, d]` on both sides."""
    cotangents = factors.pair.left if factors.axes[0] == 0 else factors.pair.right
    k = jax.tree.leaves(cotangents)[0].shape[1]
    sides = zip(factors.pair, factors.axes, strict=True)
    return Pair(
        *(
            jax.tree.map(_join_axes if axis == 0 else lambda x: _repeat_rows(x, k), side)
            for side, axis in sides
        )
    )


def _gram_of_positions(p: list[Factors], q: list[Factors]) -> jax.Array:
    """Inner products over all pairs of positions, in chunks of examples that fit in memory."""

    def products_of_factors(a: Factors, b: Factors) -> jax.Array:
        # Records have no residual axis, so they are multiplied once for all residuals.
        over_columns = jax.vmap(inner, (None, b.residual_axes))
        return jax.vmap(over_columns, (a.residual_axes, None))(a.pair, b.pair)

    def products_of_example(row: list[Pair]) -> jax.Array:
        def products_of_pair(column: list[Pair]) -> jax.Array:
            pairs = [
                (Factors(x, a.axes), Factors(y, b.axes))
                for x, a in zip(row, p, strict=True)
                for y, b in zip(column, q, strict=True)
            ]
            return sum_of(products_of_factors(a, b) for a, b in pairs)

        return jax.vmap(products_of_pair)([f.pair for f in q])

    pairs = [f.pair for f in p]
    n, m = (jax.tree.leaves(pairs_)[0].shape[0] for pairs_ in (pairs, [f.pair for f in q]))
    shape = jax.eval_shape(
        products_of_example,
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), pairs),
    )
    position_pairs = math.prod(sum(_dense_block(f.pair).shape[-2] for f in fs) for fs in (p, q))
    matrices = _dense_block(p[0].pair).shape[-3]
    # The intermediate products of one example have this many float32 entries.
    entries = position_pairs * matrices * shape.size
    chunk_size = max(1, _gram.BLOCK_BYTES // max(1, 4 * entries))
    products = (
        jax.vmap(products_of_example)(pairs)
        if chunk_size >= n
        else jax.lax.map(products_of_example, pairs, batch_size=chunk_size)
    )
    k, width = products.shape[2:]
    return jnp.swapaxes(products, 1, 2).reshape(n * k, m * width)
