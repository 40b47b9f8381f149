"""Measurements of the gradients of a chunk of examples, formed or not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype, real_dtype
from fnopt.gradients._lengths import block_norms, lengths_of, spread_around, squares_of
from fnopt.gradients._loss import BoundLoss
from fnopt.gradients._methods import Strategy
from fnopt.gradients._sums import inner_products, only_where, scaled_rows, weighted_total
from fnopt.gradients.ghost import GhostMeasurements


class Formed(NamedTuple):
    """Gradients that `jax.vmap(jax.grad)` has formed.

    Attributes:
        grads: A tree like the params with a leading example axis.
        loss_and_aux: The loss's results, with a leading example axis.
        again: Forms the gradients once more; `None` if they have changed since.
    """

    grads: Any
    loss_and_aux: tuple[jax.Array, Any]
    again: Callable[[], Any] | None = None

    @property
    def leaves(self) -> list[jax.Array]:
        """The gradients by leaf."""
        return jax.tree.leaves(self.grads)

    def norms(self, blocks: Sequence[int] | None = None, count: int = 1) -> jax.Array:
        """The norms by block of leaves, `[blocks, n]`; of all leaves together if `None`."""
        if not self.leaves:
            return jnp.zeros((count, *self.loss_and_aux[0].shape), jnp.float32)
        blocks = [0] * len(self.leaves) if blocks is None else blocks

        def careful() -> list[jax.Array]:
            # Formed anew where it is needed, which is rare: what a branch takes from outside has
            # to be in memory, while squares are summed as the gradients arise.
            leaves = self.leaves if self.again is None else jax.tree.leaves(self.again())
            return _promote([lengths_of(x) for x in leaves])

        squares = _promote([squares_of(x) for x in self.leaves])
        return block_norms(squares, careful, blocks, count)

    def moments(self, counts: jax.Array) -> tuple[Any, list[jax.Array]]:
        """The mean gradient, and by leaf the sum of the squared distances from it.

        Args:
            counts: 1 for the examples that count, 0 for others, which have gradients of zero.
        """
        found = [spread_around(x, counts) for x in self.leaves]
        mean = jax.tree.unflatten(jax.tree.structure(self.grads), [m for m, _ in found])
        return mean, [spread for _, spread in found]

    def only(self, wanted: jax.Array) -> Formed:
        """A copy with gradients of zero for all other examples, whatever they were."""
        grads = jax.tree.map(lambda g: only_where(wanted, g), self.grads)
        return self._replace(grads=grads, again=None)

    def scaled(self, factors: jax.Array) -> Formed:
        """The gradients times a factor each, `[n]`: for inner products."""
        grads = jax.tree.map(lambda g: scaled_rows(factors, g), self.grads)
        return self._replace(grads=grads, again=None)

    def weighted_sum(self, weights: Sequence[jax.Array]) -> Any:
        """The sum of the gradients times weights; by leaf the weights, `[n]`."""
        sums = [weighted_total(w, g) for w, g in zip(weights, self.leaves, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(self.grads), sums)

    def inner_products(self, other: Formed) -> jax.Array:
        """The inner products of these gradients with those of other examples, `[n, m]`."""
        pairs = zip(self.leaves, other.leaves, strict=True)
        return functools.reduce(jnp.add, _promote([inner_products(x, y) for x, y in pairs]))


def _promote(found: list[jax.Array]) -> list[jax.Array]:
    dtype = real_dtype(compute_dtype(*(x.dtype for x in found)))
    return [x.astype(dtype) for x in found]


Measurements = Formed | GhostMeasurements
"""Gradients of a chunk of examples: formed, or as the tape of a backward pass."""

Measure = Callable[..., Measurements]
"""`(chunk, blocks=None)` -> the gradients of a chunk, which can be measured by these blocks."""


def measure(bound: BoundLoss, strategy: Strategy) -> Measure:
    """The function that measures the gradients of a chunk, by one forward and one backward pass."""
    if strategy.ghost is not None:
        return strategy.ghost.measure

    def formed(chunk: Any, blocks: Sequence[int] | None = None) -> Formed:
        del blocks
        grad = jax.vmap(jax.value_and_grad(bound.loss, has_aux=True), (None, 0))
        loss_and_aux, grads = grad(bound.params, chunk)
        return Formed(grads, loss_and_aux, lambda: grad(bound.params, chunk)[1])

    return formed
