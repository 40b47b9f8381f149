r"""Inverses of the blocks of a Gauss-Newton matrix with factored damping, in stacks by shape.

.. math:: (A \otimes G + \lambda I)^{-1} \approx
    \Big(A + \pi \sqrt\lambda I\Big)^{-1} \otimes \Big(G + \tfrac{\sqrt\lambda}{\pi} I\Big)^{-1},
    \qquad \pi^2 = \frac{\operatorname{tr}(A) / \dim A}{\operatorname{tr}(G) / \dim G}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import matmul
from fnopt.curvature._shared_inverses import inverses_of_all
from fnopt.gradients.ghost import KroneckerBlock, Side, factor_traces
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


Factors = tuple[jax.Array, ...]


def inverse_factors(
    stacks: Sequence[BlockStack],
    factors: Sequence[Factors],
    damping: jax.Array,
    axis_name: Any = None,
) -> tuple[Factors, ...]:
    """The inverses of the damped factors of all blocks, of the same shapes.

    Those of one width are inverted together; where the factors are on a mesh, each of its devices
    inverts some.

    Args:
        stacks: The blocks.
        factors: `[T, blocks, width, width]` each, `[T, size]` if diagonal.
        damping: A number.
        axis_name: The named axis of devices that each invert some, if there is one.
    """
    numbers = [_shifts(b, f, damping) for b, f in zip(stacks, factors, strict=True)]
    leaves, treedef = jax.tree.flatten(tuple(factors))
    shifts = jax.tree.leaves(numbers)
    found = [
        1 / (x + s[:, None]) if x.ndim == 2 else None for x, s in zip(leaves, shifts, strict=True)
    ]
    dense = [i for i, x in enumerate(found) if x is None]
    damped = {}
    for i in dense:
        # The rounding of the factor must not make it indefinite.
        least = 2 * jnp.finfo(leaves[i].dtype).eps * factor_traces(leaves[i])
        shift = jnp.maximum(shifts[i], least)[:, None, None, None]
        damped[i] = leaves[i] + shift * jnp.eye(leaves[i].shape[-1], dtype=leaves[i].dtype)
    inverses = inverses_of_all([x.reshape(-1, *x.shape[2:]) for x in damped.values()], axis_name)
    for (i, x), inverse in zip(damped.items(), inverses, strict=True):
        found[i] = inverse.reshape(x.shape)
    return jax.tree.unflatten(treedef, found)


def _shifts(block: BlockStack, factors: Factors, damping: jax.Array) -> Factors:
    """Damping of the diagonals, `[T]` for each factor."""
    if len(factors) == 1:
        return (jnp.broadcast_to(damping, factors[0].shape[:1]),)
    if not factors:
        return ()
    means = [factor_traces(x) / s.size for x, s in zip(factors, block.sides, strict=True)]
    some = (means[0] > 0) & (means[1] > 0)
    safe = [jnp.where(some, m, jnp.ones_like(m)) for m in means]
    # The quotient of the roots, because that of the means may overflow.
    pi = jnp.sqrt(safe[0]) / jnp.sqrt(safe[1])
    root = jnp.sqrt(damping)
    return pi * root, root / pi


def times_inverse(inverses: Factors, damping: jax.Array, m: jax.Array) -> jax.Array:
    """The product with the inverses of blocks.

    Args:
        inverses: Of one stack, what `inverse_factors` returns.
        damping: What is divided by where a block has no curvature.
        m: The matrices, `[T, D, K]`, or `[T, D]` with less than two factors.
    """
    if not inverses:
        return m / damping.astype(m.dtype)
    if len(inverses) == 1:
        return _multiply_left(inverses[0], m[..., None])[..., 0]
    m = _multiply_left(inverses[0], m)
    if inverses[1].ndim > 2 and inverses[1].shape[1] == 1:
        return matmul(m, inverses[1][:, 0])  # it is symmetric
    return jnp.swapaxes(_multiply_left(inverses[1], jnp.swapaxes(m, 1, 2)), 1, 2)


def _multiply_left(inverse: jax.Array, m: jax.Array) -> jax.Array:
    """The product of factors with matrices `[T, D, K]`, on the left."""
    if inverse.ndim == 2:
        return inverse[..., None] * m
    t, d, k = m.shape
    count, width = inverse.shape[1:3]
    m = jnp.pad(m, ((0, 0), (0, count * width - d), (0, 0))).reshape(t, count, width, k)
    return matmul(inverse, m).reshape(t, count * width, k)[:, :d]
