"""Blocks whose factors have the same sides, as one block with the matrices of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.gradients.ghost import KroneckerBlock, Side
from fnopt.sharding import concatenate


class BlockStack(NamedTuple):
    """Blocks that are inverted and multiplied together.

    A program grows by this with the number of different sides, and not with that of layers.

    Attributes:
        numbers: Which blocks they are.
        blocks: The blocks.
    """

    numbers: tuple[int, ...]
    blocks: tuple[KroneckerBlock, ...]

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides of each."""
        return self.blocks[0].sides

    @property
    def matrices(self) -> int:
        """Number of matrices of all blocks: `T`."""
        return sum(b.matrices for b in self.blocks)

    def matrix(self, leaves: Sequence[Any]) -> jax.Array:
        """The params of the blocks as `[T, D, K]`, or `[T, D]` with less than two sides."""
        return concatenate([b.matrix(leaves) for b in self.blocks])

    def parts(self, x: jax.Array) -> list[jax.Array]:
        """Split an array along `T` into the parts of the blocks."""
        ends = np.cumsum([b.matrices for b in self.blocks])[:-1].tolist()
        return jnp.split(x, ends) if ends else [x]

    def leaves_of(self, m: jax.Array, like: Sequence[Any]) -> list[dict[int, jax.Array]]:
        """Parameters of the matrices, by block and number; a cut parameter's part."""
        parts = zip(self.blocks, self.parts(m), strict=True)
        return [block.leaves_of(part, like) for block, part in parts]


def stacked_blocks(blocks: Sequence[KroneckerBlock]) -> tuple[BlockStack, ...]:
    """The blocks by their sides, in the order of the first ones."""
    stacks: dict[Any, list[int]] = {}
    for i, block in enumerate(blocks):
        stacks.setdefault((block.sides, block.sizes), []).append(i)
    return tuple(BlockStack(tuple(n), tuple(blocks[i] for i in n)) for n in stacks.values())
