"""The layout of the matrices of a site in its weight."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax

from fnopt.gradients.ghost._weights import Weight


class FactorLayout(NamedTuple):
    """The positions of the entries of `[T, D, K]` in the stacked value of a weight.

    Attributes:
        weight: The weight.
        split: The sizes of the axes of `T`, `D` and `K`, in this order.
        counts: How many axes `T`, `D` and `K` have.
        perm: Which of these axes come one after the other in the weight.
        shape: The shape of the weight's stacked value.
    """

    weight: Weight
    split: tuple[int, ...]
    counts: tuple[int, int, int]
    perm: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def key(self) -> Any:
        """Equal where gradients may be added as matrices."""
        return (self.weight.key, self.split, self.counts, self.perm)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """`T`, `D` and `K`."""
        n, m, _ = self.counts
        cuts = self.split[:n], self.split[n : n + m], self.split[n + m :]
        t, d, k = map(math.prod, cuts)
        return t, d, k

    def array(self, matrices: jax.Array) -> jax.Array:
        """Reshape `[T, D, K]` to the stacked value of the weight."""
        return matrices.reshape(self.split).transpose(self.perm).reshape(self.shape)
