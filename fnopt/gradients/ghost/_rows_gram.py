"""Inner products between the rows of two Jacobians, from their tapes."""

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
    """Rows of the Jacobian of a group of leaves, as factors or as formed arrays.

    Attributes:
        formed: The formed rows, `[n k, ...]`, or None.
        tape: The factors of the rows; cotangents are `[n, k, ...]`.
    """

    formed: _tape.Formed
    tape: Tape


class Factors(NamedTuple):
    """The rows of one site.

    Attributes:
        pair: Records `[n, T, R, d]`, and cotangents `[n, k, T, R, d]`.
        axes: The residual axis of each side of the pair: `None` for records, 0 for cotangents.
    """

    pair: Pair
    axes: tuple[int | None, int | None]

    @property
    def is_single(self) -> bool:
        """Whether the site has one matrix that is used at one position, in one block."""
        blocks = [f.blocks for f in self.pair if isinstance(f, Dense)]
        single = all(len(b) == 1 and b[0].shape[-3:-1] == (1, 1) for b in blocks)
        return len(blocks) == 2 and single

    @property
    def outputs(self) -> Any:
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
    """Compute the Gram block of two groups of rows with equal layout, `[n k, m l]`."""
    (group, p), (_, q) = rows, other_rows
    if p.formed is not None and q.formed is not None:
        assert not isinstance(p.formed, dict)
        assert not isinstance(q.formed, dict)
        return inner_products(p.formed, q.formed)
    assert group.layout is not None
    _, d, k = group.layout.sizes
    mine, theirs = _factors(*rows), _factors(*other_rows)
    if len(mine) == len(theirs) == 1 and _are_dense([*mine, *theirs]):
        positions = _dense_blocks(mine[0].pair).shape[-2] * _dense_blocks(theirs[0].pair).shape[-2]
        if positions * (d + k) > d * k:
            return _gram.by_slices(_flat_pair(mine[0]), _flat_pair(theirs[0]), d, k)
        if mine[0].is_single and theirs[0].is_single and mine[0].axes == theirs[0].axes:
            return _gram_of_examples(mine[0], theirs[0])
    return _gram_of_positions(mine, theirs)


def _gram_of_examples(p: Factors, q: Factors) -> jax.Array:
    """Inner products of rows with one position, by the elementwise product of two Gram matrices.

    The product of cotangents is written like the inner product of biases, so that the compiler
    eliminates the common subexpression.
    """
    total = None
    for x, y, axis in zip(p.pair, q.pair, p.axes, strict=True):
        assert isinstance(x, Dense)
        assert isinstance(y, Dense)
        leading = 1 if axis is None else 2
        a, b = (z.blocks[0].reshape(*z.blocks[0].shape[:leading], -1) for z in (x, y))
        found = inner_products(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]))
        n, m = a.shape[0], b.shape[0]
        k, width = (1, 1) if axis is None else (a.shape[1], b.shape[1])
        found = reshape(found, n, k, m, width)
        total = found if total is None else total * found.astype(total.dtype)
    assert total is not None
    n, k, m, width = total.shape
    return reshape(total, n * k, m * width)


def by_leaf(leaves: Mapping[int, jax.Array], other: Mapping[int, jax.Array]) -> jax.Array:
    """Compute inner products of rows over the params that both groups share."""
    return sum_of(inner_products(leaves[i], other[i]) for i in sorted({*leaves} & {*other}))


def flat(tape: Tape) -> Tape:
    """Flatten the tape, so that every residual is treated as an example."""
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
    found = [_site_factors(site, part.tape) for site in group.sites]
    if len(found) == 1 or not _are_dense(found) or len({f.axes for f in found}) > 1:
        return found
    shapes = {jax.tree.structure(f.pair) for f in found}
    if len(shapes) > 1:
        return found
    # Several uses of a matrix count as further positions.
    joined = jax.tree.map(lambda *x: jnp.concatenate(x, axis=-2), *(f.pair for f in found))
    return [Factors(joined, found[0].axes)]


def _site_factors(site: Site, tape: Tape) -> Factors:
    axes = (0, None) if cotangents_left(site) else (None, 0)

    # Only the cotangents have an axis of residuals; all residuals share the records.
    pair = functools.partial(site_pair, RULES[site.kind], site)
    of_example = jax.vmap(pair, (None, 0), Pair(*axes))  # pyright: ignore[reportArgumentType]
    return Factors(jax.vmap(of_example)(*_tape.data_of(site, tape)), axes)


def _are_dense(found: list[Factors]) -> bool:
    return all(isinstance(factor, Dense) for f in found for factor in f.pair)


def _dense_blocks(pair: Pair) -> jax.Array:
    """Block of a dense factor, whose shape ends in `[T, R, d]`."""
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

    def products_of_factors(mine: Factors, theirs: Factors) -> jax.Array:
        # The records of two examples are multiplied once for all residuals.
        over_theirs = jax.vmap(inner, (None, theirs.outputs))
        return jax.vmap(over_theirs, (mine.outputs, None))(mine.pair, theirs.pair)

    def products_of_example(mine: list[Pair]) -> jax.Array:
        def products_of_pair(theirs: list[Pair]) -> jax.Array:
            pairs = [
                (Factors(x, a.axes), Factors(y, b.axes))
                for x, a in zip(mine, p, strict=True)
                for y, b in zip(theirs, q, strict=True)
            ]
            return sum_of(products_of_factors(a, b) for a, b in pairs)

        return jax.vmap(products_of_pair)([f.pair for f in q])

    pairs = [f.pair for f in p]
    n, m = (jax.tree.leaves(pairs_)[0].shape[0] for pairs_ in (pairs, [f.pair for f in q]))
    shape = jax.eval_shape(
        products_of_example,
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), pairs),
    )
    products = math.prod(sum(_dense_blocks(f.pair).shape[-2] for f in fs) for fs in (p, q))
    matrices = _dense_blocks(p[0].pair).shape[-3]
    fitting = max(1, _gram.BLOCK_BYTES // max(1, 4 * products * matrices * shape.size))
    found = (
        jax.vmap(products_of_example)(pairs)
        if fitting >= n
        else jax.lax.map(products_of_example, pairs, batch_size=fitting)
    )
    k, width = found.shape[2:]
    return jnp.swapaxes(found, 1, 2).reshape(n * k, m * width)
