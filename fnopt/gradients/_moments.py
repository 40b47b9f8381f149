"""Moments of the gradients of a batch, computed chunk by chunk."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.gradients._loss import BoundLoss
from fnopt.gradients._strategy import Strategy
from fnopt.gradients._sums import (
    block_norms,
    inner_products,
    lengths_of,
    only_where,
    scaled_rows,
    squared_deviations,
    squares_of,
    weighted_total,
    zero_sums,
)
from fnopt.gradients.ghost import GhostMeasurements
from fnopt.numerics import compute_dtype, real_dtype, scan_chunks, sum_of_squares
from fnopt.sharding import reshard_like


class Formed(NamedTuple):
    """Per-example gradients in memory, computed by `jax.vmap(jax.grad)`.

    Attributes:
        grads: A tree like the params with a leading example axis.
        loss_and_aux: The results of the loss, with a leading example axis.
        again: Function that recomputes the gradients; `None` if `grads` were changed.
    """

    grads: Any
    loss_and_aux: tuple[jax.Array, Any]
    again: Callable[[], Any] | None = None

    @property
    def leaves(self) -> list[jax.Array]:
        """The gradients of each leaf."""
        return jax.tree.leaves(self.grads)

    def norms(self, blocks: Sequence[int] | None = None, count: int = 1) -> jax.Array:
        """Norms per block of leaves, `[blocks, n]`; by default over all leaves."""
        if not self.leaves:
            return jnp.zeros((count, *self.loss_and_aux[0].shape), jnp.float32)
        blocks = [0] * len(self.leaves) if blocks is None else blocks

        def careful() -> list[jax.Array]:
            # Gradients are recomputed in the rare branch that needs them. Operands of a branch must
            # be stored in memory, but squares are summed while the gradients are computed.
            leaves = self.leaves if self.again is None else jax.tree.leaves(self.again())
            return _promote([lengths_of(x) for x in leaves])

        squares = _promote([squares_of(x) for x in self.leaves])
        return block_norms(squares, careful, blocks, count)

    def moments(self, counts: jax.Array) -> tuple[Any, list[jax.Array]]:
        """The mean gradient, and for every leaf the sum of squared deviations from the mean.

        Args:
            counts: 1 for selected examples, 0 for all other examples, whose gradients are zero.
        """
        found = [squared_deviations(x, counts) for x in self.leaves]
        mean = jax.tree.unflatten(jax.tree.structure(self.grads), [m for m, _ in found])
        return mean, [deviations for _, deviations in found]

    def only(self, wanted: jax.Array) -> Formed:
        """Return a copy with zero gradients for excluded examples, even if they were NaN."""
        grads = jax.tree.map(lambda g: only_where(wanted, g), self.grads)
        return self._replace(grads=grads, again=None)

    def scaled(self, factors: jax.Array) -> Formed:
        """The gradients times factors `[n]`, for inner products."""
        grads = jax.tree.map(lambda g: scaled_rows(factors, g), self.grads)
        return self._replace(grads=grads, again=None)

    def weighted_sum(self, weights: Sequence[jax.Array]) -> Any:
        """Sum of the gradients times weights `[n]`, given for each leaf."""
        sums = [weighted_total(w, g) for w, g in zip(weights, self.leaves, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(self.grads), sums)

    def inner_products(self, other: Formed) -> jax.Array:
        """The inner products of these gradients with the gradients of other examples, `[n, m]`."""
        pairs = zip(self.leaves, other.leaves, strict=True)
        return functools.reduce(jnp.add, _promote([inner_products(x, y) for x, y in pairs]))


def _promote(found: list[jax.Array]) -> list[jax.Array]:
    dtype = real_dtype(compute_dtype(*(x.dtype for x in found)))
    return [x.astype(dtype) for x in found]


Measurements = Formed | GhostMeasurements
"""Gradients of a chunk of examples: formed, or as the tape of a backward pass."""

Measure = Callable[..., Measurements]
"""`(chunk, blocks=None)` -> the gradients of a chunk, whose norms are computed per block."""


def measure(bound: BoundLoss, strategy: Strategy) -> Measure:
    """Reduce the gradients of a chunk in one forward and one backward pass."""
    if strategy.ghost is not None:
        return strategy.ghost.measure

    # Formed gradients support any blocks, because their norms are computed leaf by leaf.
    def formed(chunk: Any, blocks: Sequence[int] | None = None) -> Formed:
        del blocks
        grad = jax.vmap(jax.value_and_grad(bound.loss, has_aux=True), (None, 0))
        loss_and_aux, grads = grad(bound.params, chunk)
        return Formed(grads, loss_and_aux, lambda: grad(bound.params, chunk)[1])

    return formed


class Moments(NamedTuple):
    """The first two moments of gradients.

    Attributes:
        count: Number of gradients, int32.
        mean: The mean gradient, like the params, at least float32; zero for an empty set.
        deviations: For every leaf, the sum of the squared distances from the mean.
    """

    count: jax.Array
    mean: Any
    deviations: list[jax.Array]


class Totals(NamedTuple):
    """Moments of the gradients, and the loss and the gradient norm of every example.

    Attributes:
        moments: Moments of the gradients of selected examples.
        counts: Mask of the selected examples, bool `[n]`; `None` for all.
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
    """Moments of the gradients of a batch; with a named axis, over all devices of the axis."""
    take, leaves = measure(bound, strategy), jax.tree.leaves(bound.params)

    def merge_chunk(moments: Moments, chunk: tuple[Any, jax.Array | None]) -> tuple[Moments, Any]:
        seen, counts = take(chunk[0], range(len(leaves))), chunk[1]
        (loss, aux), norm = seen.loss_and_aux, seen.norms()[0]
        if skip_nonfinite:
            finite = jnp.isfinite(norm) & jnp.isfinite(loss)
            counts = finite if counts is None else counts & finite
        if counts is not None:
            seen = seen.only(counts)
        ones = jnp.ones(loss.shape[0], jnp.bool_) if counts is None else counts
        number = jnp.sum(ones, dtype=jnp.int32)
        found = Moments(number, *seen.moments(ones.astype(jnp.float32)))
        return _merge_moments(moments, found), (counts, loss, norm, aux)

    none = [jnp.zeros((), real_dtype(compute_dtype(jnp.result_type(p)))) for p in leaves]
    carry = Moments(jnp.zeros((), jnp.int32), zero_sums(bound.params), none)
    moments, outputs = scan_chunks(
        merge_chunk, carry, (bound.batch, wanted), bound.size, strategy.chunk_size
    )
    if axis_name is not None:
        moments = _combine_devices(moments, axis_name)
    return Totals(moments, *outputs)


def _merge_moments(a: Moments, b: Moments) -> Moments:
    """Merge the moments of two sets of gradients (Chan, Golub and LeVeque, 1983)."""
    # Deviations from the means are merged, because a difference of sums of squares would cancel.
    count = a.count + b.count
    # For the first chunk the share is 1 and the difference of means is zero.
    share = b.count.astype(jnp.float32) / jnp.maximum(count, 1).astype(jnp.float32)
    weight = a.count.astype(jnp.float32) * share

    def move_mean(x: jax.Array, y: jax.Array) -> jax.Array:
        y = reshard_like(y, x)
        # Select instead of multiplying: zero times an infinite difference of means would be NaN.
        return jnp.where(a.count == 0, y, x + (y - x) * share.astype(x.dtype))

    pairs = zip(*map(jax.tree.leaves, (a.mean, b.mean)), strict=True)
    gaps = [sum_of_squares(x - y.astype(x.dtype)) for x, y in pairs]
    # An infinite sum of squares must not become NaN if the difference of means is zero.
    gaps = [jnp.where(weight == 0, jnp.zeros_like(g), g * weight.astype(g.dtype)) for g in gaps]
    deviations = [s + t + g for s, t, g in zip(a.deviations, b.deviations, gaps, strict=True)]
    return Moments(count, jax.tree.map(move_mean, a.mean, b.mean), deviations)


def _combine_devices(mine: Moments, axis_name: Any) -> Moments:
    """Combine the moments of the gradients of all devices."""
    # One pass of sums for the mean, one for deviations from it: a difference of squares cancels.
    count, weighted = jax.lax.psum(
        (mine.count, jax.tree.map(lambda m: m * mine.count.astype(m.dtype), mine.mean)), axis_name
    )
    mean = jax.tree.map(lambda total: total / jnp.maximum(count, 1).astype(total.dtype), weighted)
    pairs = zip(*map(jax.tree.leaves, (mine.mean, mean)), strict=True)
    gaps = [sum_of_squares(x - y.astype(x.dtype)) for x, y in pairs]
    deviations = [
        s + g * mine.count.astype(g.dtype) for s, g in zip(mine.deviations, gaps, strict=True)
    ]
    return Moments(count, mean, jax.lax.psum(deviations, axis_name))
