"""First and second moments of the gradients of a batch, computed chunk by chunk."""

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
    formed_norms,
    formed_squared_norms,
    inner_products,
    scaled_rows,
    squared_deviations,
    weighted_total,
    zero_excluded,
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
        recompute: Function that recomputes the gradients; `None` if `grads` were changed.
    """

    grads: Any
    loss_and_aux: tuple[jax.Array, Any]
    recompute: Callable[[], Any] | None = None

    @property
    def leaves(self) -> list[jax.Array]:
        """Per-example gradients of each leaf."""
        return jax.tree.leaves(self.grads)

    def norms(self, blocks: Sequence[int] | None = None, count: int = 1) -> jax.Array:
        """Norms per block of leaves, `[blocks, n]`; by default one block with all leaves."""
        if not self.leaves:
            return jnp.zeros((count, *self.loss_and_aux[0].shape), jnp.float32)
        blocks = [0] * len(self.leaves) if blocks is None else blocks

        def compute_scaled() -> list[jax.Array]:
            # A branch of `cond` stores its operands in memory. Recomputing the gradients inside the
            # rare branch lets XLA fuse the common sum of squares with the backward pass.
            leaves = self.leaves if self.recompute is None else jax.tree.leaves(self.recompute())
            return _promote([formed_norms(x) for x in leaves])

        squares = _promote([formed_squared_norms(x) for x in self.leaves])
        return block_norms(squares, compute_scaled, blocks, count)

    def moments(self, mask: jax.Array) -> tuple[Any, list[jax.Array]]:
        """Mean gradient, and for every leaf the sum of squared deviations from the mean.

        Args:
            mask: 1 for selected examples, 0 for all other examples, whose gradients are zero.
        """
        pairs = [squared_deviations(x, mask) for x in self.leaves]
        mean = jax.tree.unflatten(jax.tree.structure(self.grads), [m for m, _ in pairs])
        return mean, [deviations for _, deviations in pairs]

    def zero_excluded(self, mask: jax.Array) -> Formed:
        """Set the gradients of excluded examples to zero, even if they are NaN."""
        grads = jax.tree.map(lambda g: zero_excluded(mask, g), self.grads)
        return self._replace(grads=grads, recompute=None)

    def scaled(self, factors: jax.Array) -> Formed:
        """Multiply the gradients by factors `[n]`, for inner products."""
        grads = jax.tree.map(lambda g: scaled_rows(factors, g), self.grads)
        return self._replace(grads=grads, recompute=None)

    def weighted_sum(self, weights: Sequence[jax.Array]) -> Any:
        """Sum of the gradients over the examples, with weights `[n]` per leaf."""
        sums = [weighted_total(w, g) for w, g in zip(weights, self.leaves, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(self.grads), sums)

    def inner_products(self, other: Formed) -> jax.Array:
        """Inner products of these gradients with the gradients of other examples, `[n, m]`."""
        pairs = zip(self.leaves, other.leaves, strict=True)
        return functools.reduce(jnp.add, _promote([inner_products(x, y) for x, y in pairs]))


def _promote(arrays: list[jax.Array]) -> list[jax.Array]:
    dtype = real_dtype(compute_dtype(*(x.dtype for x in arrays)))
    return [x.astype(dtype) for x in arrays]


Measurements = Formed | GhostMeasurements
"""Gradients of a chunk of examples: formed, or as the tape of a backward pass."""

Measure = Callable[..., Measurements]
"""Function `(chunk, blocks=None)` that returns the gradients of a chunk.

`blocks` is the block index of every leaf for the gradients' norms.
"""


def measure(bound: BoundLoss, strategy: Strategy) -> Measure:
    """Function that computes the gradients of a chunk in one forward and one backward pass."""
    if strategy.ghost is not None:
        return strategy.ghost.measure

    # Formed gradients support any blocks, because their norms are computed leaf by leaf.
    def form(chunk: Any, blocks: Sequence[int] | None = None) -> Formed:
        del blocks
        grad = jax.vmap(jax.value_and_grad(bound.loss, has_aux=True), (None, 0))
        loss_and_aux, grads = grad(bound.params, chunk)
        return Formed(grads, loss_and_aux, lambda: grad(bound.params, chunk)[1])

    return form


class Moments(NamedTuple):
    """Number, mean and squared deviations of gradients.

    Attributes:
        count: Number of gradients, int32.
        mean: The mean gradient, a tree like the params, at least float32; zero if `count` is 0.
        deviations: For every leaf, the sum of the squared distances from the mean.
    """

    count: jax.Array
    mean: Any
    deviations: list[jax.Array]


class Totals(NamedTuple):
    """Moments of the gradients, and the loss and the gradient norm of every example.

    Attributes:
        moments: Moments of the gradients of selected examples.
        mask: Mask of the selected examples, bool `[n]`; `None` for all.
        loss: The loss of every example, `[n]`.
        norm: The norm of every example's gradient, `[n]`.
        aux: The auxiliary output of the loss.
    """

    moments: Moments
    mask: jax.Array | None
    loss: jax.Array
    norm: jax.Array
    aux: Any


def totals(
    bound: BoundLoss,
    strategy: Strategy,
    where: jax.Array | None,
    skip_nonfinite: bool,
    axis_name: Any,
) -> Totals:
    """Compute the moments of a batch's gradients, over all devices of `axis_name`."""
    measure_chunk, leaves = measure(bound, strategy), jax.tree.leaves(bound.params)

    def merge_chunk(moments: Moments, chunk: tuple[Any, jax.Array | None]) -> tuple[Moments, Any]:
        gradients, mask = measure_chunk(chunk[0], range(len(leaves))), chunk[1]
        (loss, aux), norm = gradients.loss_and_aux, gradients.norms()[0]
        if skip_nonfinite:
            finite = jnp.isfinite(norm) & jnp.isfinite(loss)
            mask = finite if mask is None else mask & finite
        if mask is not None:
            gradients = gradients.zero_excluded(mask)
        selection = jnp.ones(loss.shape[0], jnp.bool_) if mask is None else mask
        count = jnp.sum(selection, dtype=jnp.int32)
        chunk_moments = Moments(count, *gradients.moments(selection.astype(jnp.float32)))
        return _merge_moments(moments, chunk_moments), (mask, loss, norm, aux)

    zeros = [jnp.zeros((), real_dtype(compute_dtype(jnp.result_type(p)))) for p in leaves]
    carry = Moments(jnp.zeros((), jnp.int32), zero_sums(bound.params), zeros)
    moments, outputs = scan_chunks(
        merge_chunk, carry, (bound.batch, where), bound.size, strategy.chunk_size
    )
    if axis_name is not None:
        moments = _combine_devices(moments, axis_name)
    return Totals(moments, *outputs)


def _merge_moments(a: Moments, b: Moments) -> Moments:
    """Merge the moments of two sets of gradients (Chan, Golub and LeVeque, 1983)."""
    # The alternative, a difference of sums of squares, would suffer from cancellation.
    count = a.count + b.count
    # For the first chunk, a.count is 0, so the share is 1 and the weight is 0.
    share = b.count.astype(jnp.float32) / jnp.maximum(count, 1).astype(jnp.float32)
    weight = a.count.astype(jnp.float32) * share

    def move_mean(x: jax.Array, y: jax.Array) -> jax.Array:
        y = reshard_like(y, x)
        # A select, because an infinite complex number times a share of 1 is NaN.
        return jnp.where(a.count == 0, y, x + (y - x) * share.astype(x.dtype))

    pairs = zip(*map(jax.tree.leaves, (a.mean, b.mean)), strict=True)
    gaps = [sum_of_squares(x - y.astype(x.dtype)) for x, y in pairs]
    # A select, because a weight of zero times an infinite square would be NaN.
    gaps = [jnp.where(weight == 0, jnp.zeros_like(g), g * weight.astype(g.dtype)) for g in gaps]
    deviations = [s + t + g for s, t, g in zip(a.deviations, b.deviations, gaps, strict=True)]
    return Moments(count, jax.tree.map(move_mean, a.mean, b.mean), deviations)


def _combine_devices(local: Moments, axis_name: Any) -> Moments:
    """Sum the moments of the gradients over the devices of a named axis."""
    # Two all-reduces, first of the mean and then of the deviations from the mean: a difference of
    # sums of squares would suffer from cancellation.
    count, weighted = jax.lax.psum(
        (local.count, jax.tree.map(lambda m: m * local.count.astype(m.dtype), local.mean)),
        axis_name,
    )
    mean = jax.tree.map(lambda total: total / jnp.maximum(count, 1).astype(total.dtype), weighted)
    pairs = zip(*map(jax.tree.leaves, (local.mean, mean)), strict=True)
    gaps = [sum_of_squares(x - y.astype(x.dtype)) for x, y in pairs]
    deviations = [
        s + g * local.count.astype(g.dtype) for s, g in zip(local.deviations, gaps, strict=True)
    ]
    return Moments(count, mean, jax.lax.psum(deviations, axis_name))
