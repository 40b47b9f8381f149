r"""Inverses of the blocks of a Gauss-Newton matrix with factored damping, on all devices of a mesh.

.. math:: (A \otimes G + \lambda I)^{-1} \approx
    \Big(A + \pi \sqrt\lambda I\Big)^{-1} \otimes \Big(G + \tfrac{\sqrt\lambda}{\pi} I\Big)^{-1},
    \qquad \pi^2 = \frac{\operatorname{tr}(A) / \dim A}{\operatorname{tr}(G) / \dim G}
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from fnopt.gradients.ghost import KroneckerBlock, Side, factor_traces
from fnopt.numerics import matmul
from fnopt.sharding import all_gather, concatenate, psum, pvary_like, replicate, sequential


def invert_batches(stacks: Sequence[jax.Array], axis_name: Any = None) -> list[jax.Array]:
    """Inverses of several batches of positive definite matrices, each `[k, n, n]`.

    Matrices of equal size are inverted in one batch. On a mesh, or along a named axis, every device
    inverts a share of about equal cost, where an `n` by `n` matrix costs `n^3`. One all-gather then
    distributes the inverses.
    """
    sizes = sorted({x.shape[-1] for x in stacks}, reverse=True)
    by_size = [[i for i, x in enumerate(stacks) if x.shape[-1] == n] for n in sizes]
    batches = [concatenate([replicate(stacks[i]) for i in indices]) for indices in by_size]
    has_several = sum(map(len, batches)) > 1  # a single matrix isn't worth a collective
    mesh = jax.typeof(batches[0]).sharding.mesh if has_several else None
    if axis_name is not None and has_several and psum(1, axis_name) > 1:
        inverses = _share_over_axis(batches, axis_name)
    elif mesh is not None and mesh.size > 1 and AxisType.Manual not in mesh.axis_types:
        inverses = _share_over_mesh(batches, mesh)
    else:
        inverses = _invert_in_turn(batches)
    results: dict[int, jax.Array] = {}
    for indices, inverse in zip(by_size, inverses, strict=True):
        ends = np.cumsum([stacks[i].shape[0] for i in indices])[:-1].tolist()
        results |= dict(zip(indices, jnp.split(inverse, ends), strict=True))
    return [results[i] for i in range(len(stacks))]


def _invert_in_turn(stacks: Sequence[jax.Array]) -> list[jax.Array]:
    # On a CPU, concurrent batches of LAPACK calls can deadlock.
    return [*map(sequential(_inverse), stacks)]


def _inverse(A: jax.Array) -> jax.Array:
    L = jnp.linalg.cholesky(A)
    eyes = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    # A^-1 = L^-T L^-1 is symmetric bit for bit; an inverse by LU isn't.
    root_inverse = jax.lax.linalg.triangular_solve(L, eyes, left_side=True, lower=True)
    return matmul(jnp.swapaxes(root_inverse, -1, -2), root_inverse)


def divide_work(counts: Sequence[int], sizes: Sequence[int], devices: int) -> list[list[list[int]]]:
    """Indices of the matrices that each device inverts.

    In order of decreasing size, each matrix is assigned to the device with the least work so far.
    The maximum work is at most 4/3 of the optimum (longest processing time first; Graham, 1969).
    """
    work, indices = [0] * devices, [[[] for _ in sizes] for _ in range(devices)]
    for group in sorted(range(len(sizes)), key=lambda j: -sizes[j]):
        for i in range(counts[group]):
            device = min(range(devices), key=work.__getitem__)
            work[device] += sizes[group] ** 3
            indices[device][group].append(i)
    return indices


def _share_over_mesh(stacks: list[jax.Array], mesh: Any) -> list[jax.Array]:
    axes, assignment = tuple(mesh.axis_names), _assign(stacks, mesh.size)

    gathered = jax.shard_map(
        lambda stacks: jax.lax.all_gather(_own_inverses(stacks, assignment, axes), axes),
        mesh=mesh,
        in_specs=P(),
        out_specs=P(),
        check_vma=False,  # JAX can't infer that all devices have the same result
    )(stacks)
    return _restore_order(gathered, assignment, stacks)


def _share_over_axis(stacks: list[jax.Array], axis_name: Any) -> list[jax.Array]:
    assignment = _assign(stacks, psum(1, axis_name))
    varying = pvary_like(stacks, jax.lax.axis_index(axis_name))
    return _restore_order(
        all_gather(_own_inverses(varying, assignment, axis_name), axis_name), assignment, stacks
    )


def _assign(stacks: list[jax.Array], devices: int) -> list[list[list[int]]]:
    return divide_work([len(x) for x in stacks], [x.shape[-1] for x in stacks], devices)


def _own_inverses(
    stacks: list[jax.Array], assignment: list[list[list[int]]], axes: Any
) -> jax.Array:
    """This device's inverses, flattened and concatenated."""
    sizes = [x.shape[-1] for x in stacks]
    lengths = [sum(len(g) * n * n for g, n in zip(own, sizes, strict=True)) for own in assignment]
    longest = max(lengths)  # all branches of a `switch` must return the same shape

    def inverses_in_row(own: list[list[int]], length: int, stacks: list[jax.Array]) -> jax.Array:
        selected = [(x, jnp.asarray(i)) for x, i in zip(stacks, own, strict=True) if i]
        matrices = [jnp.take(x, i, axis=0, mode="clip") for x, i in selected]
        rows = [x.reshape(-1) for x in _invert_in_turn(matrices)]
        padding = pvary_like(jnp.zeros(longest - length, stacks[0].dtype), stacks)
        return jnp.concatenate([*rows, padding])

    pairs = zip(assignment, lengths, strict=True)
    branches = [functools.partial(inverses_in_row, own, length) for own, length in pairs]
    return jax.lax.switch(jax.lax.axis_index(axes), branches, stacks)


def _restore_order(
    gathered: jax.Array, assignment: list[list[list[int]]], stacks: list[jax.Array]
) -> list[jax.Array]:
    """Reorder the inverses of all devices, `[devices, length]`, like their matrices."""
    sizes = [x.shape[-1] for x in stacks]
    pieces = [[] for _ in stacks]
    for i, own in enumerate(assignment):
        row, start = gathered[i], 0
        for group, n in enumerate(sizes):
            stop = start + len(own[group]) * n * n
            pieces[group].append(row[start:stop].reshape(-1, n, n))
            start = stop
    order = [[i for own in assignment for i in own[j]] for j in range(len(sizes))]
    # `order` lists the matrices of each group device by device; `argsort` inverts this permutation.
    order = [np.argsort(i, kind="stable") for i in order]
    return [
        jnp.take(jnp.concatenate(parts), jnp.asarray(i), axis=0, mode="clip")
        for parts, i in zip(pieces, order, strict=True)
    ]


class BlockStack(NamedTuple):
    """Blocks of equal shape, to invert and multiply in one batch.

    With stacks, the program size grows with the number of distinct sides instead of the number of
    layers.

    Attributes:
        numbers: Indices of the blocks.
        blocks: The blocks.
    """

    numbers: tuple[int, ...]
    blocks: tuple[KroneckerBlock, ...]

    @property
    def sides(self) -> tuple[Side, ...]:
        """Sides of each matrix."""
        return self.blocks[0].sides

    @property
    def matrices(self) -> int:
        """Total number of matrices in the blocks, `T`."""
        return sum(b.matrices for b in self.blocks)

    def matrix(self, leaves: Sequence[Any]) -> jax.Array:
        """Params of the blocks as `[T, D, K]`, or `[T, D]` with fewer than two sides."""
        return concatenate([b.matrix(leaves) for b in self.blocks])

    def split_by_block(self, x: jax.Array) -> list[jax.Array]:
        """Split an array along `T` into one array per block."""
        ends = np.cumsum([b.matrices for b in self.blocks])[:-1].tolist()
        return jnp.split(x, ends) if ends else [x]

    def leaves_of(self, m: jax.Array, like: Sequence[Any]) -> list[dict[int, jax.Array]]:
        """Convert matrices to params: for each block, a dict from leaf index to leaf.

        The leaf of a split param is the contribution of one block.
        """
        parts = zip(self.blocks, self.split_by_block(m), strict=True)
        return [block.leaves_of(part, like) for block, part in parts]


def stacked_blocks(blocks: Sequence[KroneckerBlock]) -> tuple[BlockStack, ...]:
    """Group blocks by their sides, in the order of first occurrence."""
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
    r"""Inverses of the damped factors of all blocks, with the shapes of the factors.

    Factors of equal width are inverted in one batch. If the factors are on a mesh, each device
    inverts a share of the factors.

    Args:
        stacks: The blocks.
        factors: `[T, blocks, width, width]` each, `[T, size]` if diagonal.
        damping: :math:`\lambda`, a scalar.
        axis_name: The named axis of devices that share the work, if any.
    """
    numbers = [_shifts(b, f, damping) for b, f in zip(stacks, factors, strict=True)]
    leaves, treedef = jax.tree.flatten(tuple(factors))
    shifts = jax.tree.leaves(numbers)
    results = [
        1 / (x + s[:, None]) if x.ndim == 2 else None for x, s in zip(leaves, shifts, strict=True)
    ]
    dense = [i for i, x in enumerate(results) if x is None]
    damped = {}
    for i in dense:
        # The rounding error of a factor is at most eps tr(A) in norm; twice this bound keeps the
        # damped factor positive definite.
        min_shift = 2 * jnp.finfo(leaves[i].dtype).eps * factor_traces(leaves[i])
        shift = jnp.maximum(shifts[i], min_shift)[:, None, None, None]
        damped[i] = leaves[i] + shift * jnp.eye(leaves[i].shape[-1], dtype=leaves[i].dtype)
    inverses = invert_batches([x.reshape(-1, *x.shape[2:]) for x in damped.values()], axis_name)
    for (i, x), inverse in zip(damped.items(), inverses, strict=True):
        results[i] = inverse.reshape(x.shape)
    return jax.tree.unflatten(treedef, results)


def _shifts(block: BlockStack, factors: Factors, damping: jax.Array) -> Factors:
    """Damping to add to the diagonal of each factor, `[T]`."""
    if len(factors) == 1:
        return (jnp.broadcast_to(damping, factors[0].shape[:1]),)
    if not factors:
        return ()
    means = [factor_traces(x) / s.size for x, s in zip(factors, block.sides, strict=True)]
    is_nonzero = (means[0] > 0) & (means[1] > 0)
    means_or_one = [jnp.where(is_nonzero, m, jnp.ones_like(m)) for m in means]
    # Pi is a quotient of roots, because the quotient of the means may overflow.
    pi = jnp.sqrt(means_or_one[0]) / jnp.sqrt(means_or_one[1])
    root = jnp.sqrt(damping)
    return pi * root, root / pi


def times_inverse(inverses: Factors, damping: jax.Array, m: jax.Array) -> jax.Array:
    """Multiply matrices by the inverses of blocks.

    Args:
        inverses: The result of `inverse_factors` for one stack.
        damping: The divisor of blocks without curvature.
        m: The matrices, `[T, D, K]`, or `[T, D]` with fewer than two factors.
    """
    if not inverses:
        return m / damping.astype(m.dtype)
    if len(inverses) == 1:
        return _multiply_left(inverses[0], m[..., None])[..., 0]
    m = _multiply_left(inverses[0], m)
    if inverses[1].ndim > 2 and inverses[1].shape[1] == 1:
        return matmul(m, inverses[1][:, 0])  # the inverse is symmetric
    return jnp.swapaxes(_multiply_left(inverses[1], jnp.swapaxes(m, 1, 2)), 1, 2)


def _multiply_left(inverse: jax.Array, m: jax.Array) -> jax.Array:
    """Multiply matrices `[T, D, K]` from the left by inverse factors, diagonal or in blocks."""
    if inverse.ndim == 2:
        return inverse[..., None] * m
    t, d, k = m.shape
    count, width = inverse.shape[1:3]
    m = jnp.pad(m, ((0, 0), (0, count * width - d), (0, 0))).reshape(t, count, width, k)
    return matmul(inverse, m).reshape(t, count * width, k)[:, :d]
