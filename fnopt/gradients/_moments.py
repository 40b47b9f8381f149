"""The first two moments of the gradients of a batch, in one pass over its chunks."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype, real_dtype, scan_chunks, sum_of_squares
from fnopt.gradients._loss import BoundLoss
from fnopt.gradients._measure import Measurements, measure
from fnopt.gradients._methods import Strategy
from fnopt.gradients._sums import zero_sums
from fnopt.sharding import reshard_like


class Moments(NamedTuple):
    """The first two moments of some gradients.

    Attributes:
        count: How many gradients, int32.
        mean: Their mean, like the params, at least float32; zero of none.
        spread: By leaf: the sum of the squared distances from the mean.
    """

    count: jax.Array
    mean: Any
    spread: list[jax.Array]


class Totals(NamedTuple):
    """Sums over the examples that count, and the figures of every example.

    Attributes:
        moments: Of the gradients that count.
        counts: Which examples count, bool `[n]`; `None` for all.
        loss: The loss of every example, `[n]`.
        norm: The norm of every example's gradient, `[n]`.
        aux: The auxiliary output of the loss.
    """

    moments: Moments
    counts: jax.Array | None
    loss: jax.Array
    norm: jax.Array
    aux: Any


def totals(
    bound: BoundLoss,
    strategy: Strategy,
    wanted: jax.Array | None,
    skip_nonfinite: bool,
    axis_name: Any,
) -> Totals:
    """The moments of the gradients of a batch, of all devices of a named axis if there is one."""
    take, leaves = measure(bound, strategy), jax.tree.leaves(bound.params)

    def body(moments: Moments, chunk: tuple[Any, jax.Array | None]) -> tuple[Moments, Any]:
        seen, counts = take(chunk[0], range(len(leaves))), chunk[1]
        (loss, aux), norm = seen.loss_and_aux, seen.norms()[0]
        if skip_nonfinite:
            finite = jnp.isfinite(norm) & jnp.isfinite(loss)
            counts = finite if counts is None else counts & finite
        return _merge_moments(moments, _moments(seen, counts, loss.shape[0])), (
            counts,
            loss,
            norm,
            aux,
        )

    none = [jnp.zeros((), real_dtype(compute_dtype(jnp.result_type(p)))) for p in leaves]
    carry = Moments(jnp.zeros((), jnp.int32), zero_sums(bound.params), none)
    moments, outputs = scan_chunks(
        body, carry, (bound.batch, wanted), bound.size, strategy.chunk_size
    )
    if axis_name is not None:
        moments = _combine_devices(moments, axis_name)
    return Totals(moments, *outputs)


def _moments(seen: Measurements, counts: jax.Array | None, size: int) -> Moments:
    """The moments of a chunk."""
    if counts is not None:
        seen = seen.only(counts)
    counts = jnp.ones(size, jnp.bool_) if counts is None else counts
    return Moments(jnp.sum(counts, dtype=jnp.int32), *seen.moments(counts.astype(jnp.float32)))


def _merge_moments(a: Moments, b: Moments) -> Moments:
    """The moments of two sets of gradients together (Chan, Golub and LeVeque)."""
    count = a.count + b.count
    # Of the first chunk nothing changes: a share of 1, no gap to what was before.
    share = b.count.astype(jnp.float32) / jnp.maximum(count, 1).astype(jnp.float32)
    apart = a.count.astype(jnp.float32) * share

    def moved(x: jax.Array, y: jax.Array) -> jax.Array:
        y = reshard_like(y, x)
        return jnp.where(a.count == 0, y, x + (y - x) * share.astype(x.dtype))

    pairs = zip(*map(jax.tree.leaves, (a.mean, b.mean)), strict=True)
    gaps = [sum_of_squares(x - y.astype(x.dtype)) for x, y in pairs]
    # An infinite square isn't to be NaN for want of a gap.
    gaps = [jnp.where(apart == 0, jnp.zeros_like(g), g * apart.astype(g.dtype)) for g in gaps]
    spread = [s + t + g for s, t, g in zip(a.spread, b.spread, gaps, strict=True)]
    return Moments(count, jax.tree.map(moved, a.mean, b.mean), spread)


def _combine_devices(mine: Moments, axis_name: Any) -> Moments:
    """Combine the moments of the gradients of all devices."""
    count, weighted = jax.lax.psum(
        (mine.count, jax.tree.map(lambda m: m * mine.count.astype(m.dtype), mine.mean)), axis_name
    )
    mean = jax.tree.map(lambda total: total / jnp.maximum(count, 1).astype(total.dtype), weighted)
    pairs = zip(*map(jax.tree.leaves, (mine.mean, mean)), strict=True)
    gaps = [sum_of_squares(x - y.astype(x.dtype)) for x, y in pairs]
    spread = [s + g * mine.count.astype(g.dtype) for s, g in zip(mine.spread, gaps, strict=True)]
    return Moments(count, mean, jax.lax.psum(spread, axis_name))
