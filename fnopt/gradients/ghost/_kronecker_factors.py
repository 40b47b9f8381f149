"""Kronecker factors of the blocks of a Gauss-Newton matrix, from the tape of a batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from fnopt.gradients.ghost import _rows_gram, _tape
from fnopt.gradients.ghost._eigen import rotate_rows, squares_of_sites
from fnopt.gradients.ghost._factors import Factor, OneHot, site_pair, sum_of
from fnopt.gradients.ghost._kronecker import KroneckerBlock, Side, cotangents_left
from fnopt.gradients.ghost._plan import RULES
from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._tape import Tape
from fnopt.gradients.ghost._trace import Ghost
from fnopt.numerics import HIGHEST, per_row, widen
from fnopt.sharding import is_sharded, replicate, reshape

Factors = tuple[jax.Array, ...]


def block_factors(
    ghost: Ghost, blocks: Sequence[KroneckerBlock], tape: Tape, sharing: str
) -> tuple[Factors, ...]:
    """Kronecker factors of every block: means over the examples, float32 or wider.

    Args:
        ghost: A traced function of one example that returns a vector of residuals. The Gauss-Newton
            matrix is the mean of `J^T J`.
        blocks: The blocks of the function's params.
        tape: The tape of the examples, from `record_tape`.
        sharing: `'expand'` or `'reduce'` (K-FAC), for weights that are used at many positions.
    """
    flat = _rows_gram.flatten_tape(tape)
    formed: dict[int, Any] = {}
    factors: list[Factors] = []
    for block in blocks:
        if block.layout is not None:
            factors.append(_kronecker(block, tape, sharing))
        elif block.kind == "none":
            factors.append(())
        else:
            factors.append(
                _factors_of_rows(block, _formed_gradient(ghost, block, flat, formed), tape)
            )
    return tuple(factors)


def block_moments(
    ghost: Ghost,
    blocks: Sequence[KroneckerBlock],
    tape: Tape,
    bases: Sequence[Factors],
) -> tuple[Factors, ...]:
    r"""Second moments of the gradients `M` in two bases, :math:`E[(Q_A^\top M Q_G)^2]`.

    Args:
        ghost: A traced function as in `block_factors`.
        blocks: The blocks of the function's params.
        tape: The tape of the examples.
        bases: The bases `Q_A` and `Q_G` of every block with two sides; other entries are ignored.

    Returns:
        For every block with two sides, a tuple with one array `[T, D, K]`; for other blocks, an
        empty tuple. `D` and `K` are the widths of the bases.
    """
    flat, n = _rows_gram.flatten_tape(tape), tape.outputs[0].shape[0]
    formed: dict[int, Any] = {}
    moments: list[Factors] = []
    for block, pair in zip(blocks, bases, strict=True):
        if len(block.sides) < 2:
            moments.append(())
        elif block.layout is None:
            rows = _matrices(block, _formed_gradient(ghost, block, flat, formed))
            rotated = rotate_rows(jnp.swapaxes(rotate_rows(rows, pair[1]), 2, 3), pair[0])
            moments.append((jnp.sum(jnp.swapaxes(rotated, 2, 3) ** 2, 1) / n,))
        else:
            sites = [_Rows(block, site, tape) for site in block.group.sites]
            moments.append((squares_of_sites(sites, pair) / n,))
    return tuple(moments)


def _formed_gradient(
    ghost: Ghost, block: KroneckerBlock, flat: Tape, formed: dict[int, Any]
) -> jax.Array:
    """Formed rows of the first param of a block, `[n k, *param]`, cached in `formed`."""
    if block.leaves[0] not in formed:
        formed |= _tape.by_param(block.group, flat, dict(enumerate(ghost.params)))
    return formed[block.leaves[0]]


def _matrices(block: KroneckerBlock, rows: jax.Array) -> jax.Array:
    """Reshape formed gradients `[n k, *param]` to `[1, n k, D, K]`."""
    return widen(reshape(rows, 1, rows.shape[0], *(s.size for s in block.sides)))


def _factors_of_rows(block: KroneckerBlock, rows: jax.Array, tape: Tape) -> Factors:
    r"""Kronecker factors from formed gradients `M`, `[n k, *param]`.

    The product :math:`E[M M^\top] \otimes E[M^\top M] / E\|M\|^2` has the trace of the full second
    moment. The product is exact if the second moment is a Kronecker product.
    """
    n = tape.outputs[0].shape[0]
    rows = _matrices(block, rows)
    if len(block.sides) == 1:
        return (_moment(block.sides[0], rows) / n,)
    left, right = block.sides
    columns = _moment(left, reshape(jnp.swapaxes(rows, 2, 3), 1, -1, left.size)) / n
    moment = _moment(right, reshape(rows, 1, -1, right.size)) / n
    trace = factor_traces(moment)[:, None, None, None]
    return columns, _safe_ratio(moment, jnp.broadcast_to(trace, moment.shape))


def _kronecker(block: KroneckerBlock, tape: Tape, sharing: str) -> Factors:
    sites = [_Rows(block, site, tape) for site in block.group.sites]
    if len({site.swapped for site in sites}) > 1:
        # A weight and its transpose are both used, so their rows can't be concatenated.
        return _mix_factors([_order_sides(s, *_expand_positions([s])) for s in sites])
    # One-hot inputs aren't formed, so they can't be averaged over positions.
    moments = _expand_positions if sharing == "expand" or sites[0].lookup else _reduce_positions
    return _order_sides(sites[0], *moments(sites))


class _Rows:
    """Inputs `[n, T, R, d]` and cotangents `[n, k, T, R, d]` of a site.

    Attributes:
        swapped: Whether the cotangents are the left factor.
        sides: The sides of the inputs and of the cotangents.
        cotangents: The cotangents.
        inputs: The inputs, with the homogeneous coordinate; `None` for a lookup.
        index: The row indices of one-hot inputs, `[n, T, R]`.
        lookup: Whether the inputs are one-hot and aren't formed.
        n: Number of examples.
        positions: `R`.
    """

    def __init__(self, block: KroneckerBlock, site: Site, tape: Tape) -> None:
        self.swapped = cotangents_left(site)
        inputs, cotangents = _factors(site, tape)
        left, right = block.sides
        self.sides = (right, left) if self.swapped else (left, right)
        assert not isinstance(cotangents, OneHot)
        self.cotangents = widen(jnp.concatenate(cotangents.blocks, -1))
        self.n, _, _, self.positions, _ = self.cotangents.shape
        self.lookup = not self.sides[0].count
        if isinstance(inputs, OneHot):
            self.index = inputs.index
            classes = jnp.arange(self.sides[0].size, dtype=self.index.dtype)
            one_hot = self.index[..., None] == classes
            self.inputs = None if self.lookup else one_hot.astype(self.cotangents.dtype)
        else:
            self.inputs = widen(jnp.concatenate(inputs.blocks, -1))
        if block.biases:
            assert self.inputs is not None
            widths = [(0, 0)] * (self.inputs.ndim - 1) + [(0, 1)]
            one = jnp.asarray(site.tap in block.taps, self.inputs.dtype)
            self.inputs = jnp.pad(self.inputs, widths, constant_values=one)

    def input_moment(self) -> jax.Array:
        """Second moment of the inputs, summed over examples and positions."""
        if self.inputs is not None:
            return _moment(self.sides[0], _merge_rows(self.inputs))
        # One-hot inputs have a diagonal second moment: the number of lookups of each row.
        matrices = jnp.arange(self.index.shape[1])[None, :, None]
        zeros = jnp.zeros((self.index.shape[1], self.sides[0].size), self.cotangents.dtype)
        return zeros.at[matrices, replicate(self.index, 0)].add(1)


def _factors(site: Site, tape: Tape) -> tuple[Factor, Factor]:
    """Inputs `[n, T, R, d]` and cotangents `[n, k, T, R, d]` of a site as factors."""
    rule, (x, g) = RULES[site.kind], _tape.data_of(site, tape)

    pair = functools.partial(site_pair, rule, site)

    # All residuals of an example share the inputs, so inputs come from the first residual only.
    first = jax.vmap(pair)(x, g[:, 0])
    pairs = jax.vmap(jax.vmap(pair, (None, 0)))(x, g)
    return (first.right, pairs.left) if cotangents_left(site) else (first.left, pairs.right)


def _expand_positions(sites: Sequence[_Rows]) -> Factors:
    """Factors of K-FAC-expand (Eschenhagen et al., 2023): every position is an example."""
    n, positions = sites[0].n, sum(s.positions for s in sites)
    inputs = sum_of(s.input_moment() for s in sites) / (n * positions)
    return inputs, sum_of(_moment(s.sides[1], _merge_rows(s.cotangents)) for s in sites) / n


def _reduce_positions(sites: Sequence[_Rows]) -> Factors:
    """Factors of K-FAC-reduce (Eschenhagen et al., 2023): mean inputs and summed cotangents."""
    n, positions = sites[0].n, sum(s.positions for s in sites)
    summed = [jnp.sum(s.inputs, 2, keepdims=True) for s in sites if s.inputs is not None]
    inputs = sum_of(summed) / positions
    cotangents = sum_of(jnp.sum(s.cotangents, 3, keepdims=True) for s in sites)
    left, right = sites[0].sides
    return _moment(left, _merge_rows(inputs)) / n, _moment(right, _merge_rows(cotangents)) / n


def _order_sides(site: _Rows, inputs: jax.Array, cotangents: jax.Array) -> Factors:
    return (cotangents, inputs) if site.swapped else (inputs, cotangents)


def _mix_factors(pairs: Sequence[Factors]) -> Factors:
    r"""Approximate a sum of Kronecker products by one Kronecker product.

    .. math:: \sum_s w_s \hat A_s \otimes \hat G_s \approx
              \Big(\sum_s w_s \hat A_s\Big) \otimes \Big(\sum_s w_s \hat G_s\Big) / \sum_s w_s

    The factors :math:`\hat A_s` and :math:`\hat G_s` are scaled to trace 1. The approximation
    preserves the trace, and is exact if all terms have the same left factor or the same right
    factor.
    """
    traces = [(factor_traces(left), factor_traces(right)) for left, right in pairs]
    weights = [left * right for left, right in traces]
    root = jnp.sqrt(sum_of(weights))

    def mix_side(k: int) -> jax.Array:
        scales = [_safe_ratio(w, root * t[k]) for w, t in zip(weights, traces, strict=True)]
        terms = zip(scales, pairs, strict=True)
        return sum_of(per_row(s, p[k]) * p[k] for s, p in terms)

    return mix_side(0), mix_side(1)


def factor_traces(factor: jax.Array) -> jax.Array:
    """Traces `[T]` of factors `[T, size]` or `[T, blocks, width, width]`."""
    if factor.ndim > 2:
        factor = jnp.diagonal(factor, axis1=2, axis2=3)
    return jnp.sum(factor.reshape(factor.shape[0], -1), 1)


def _safe_ratio(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(y > 0, x / jnp.where(y > 0, y, jnp.ones_like(y)), jnp.zeros_like(x))


def _merge_rows(x: jax.Array) -> jax.Array:
    """Reshape `[..., T, R, d]` to `[T, rows, d]`."""
    x = jnp.moveaxis(x, -3, 0)
    return reshape(x, x.shape[0], -1, x.shape[-1])


def _moment(side: Side, rows: jax.Array) -> jax.Array:
    """Sum of `x x^T` over rows `[T, N, d]`, restricted to the diagonal blocks of a side."""
    t, n, d = rows.shape
    if not side.count:
        return jnp.sum(rows * rows, 1)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, side.count * side.width - d)))
    rows = rows.reshape(t, n, side.count, side.width)
    options: dict[str, Any] = {"precision": HIGHEST}
    if is_sharded(rows):  # the sum over sharded examples is replicated
        options["out_sharding"] = NamedSharding(jax.typeof(rows).sharding.mesh, PartitionSpec())
    return jnp.einsum("tnbi,tnbj->tbij", rows, rows, **options)
