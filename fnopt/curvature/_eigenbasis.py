r"""Blocks of a Gauss-Newton matrix in the eigenbases of their Kronecker factors.

Let :math:`A = Q_A \Lambda_A Q_A^\top` and :math:`G = Q_G \Lambda_G Q_G^\top`. In the basis
:math:`Q_A \otimes Q_G`, the best diagonal matrix (in the Frobenius norm) contains the second
moments of the gradients `M`. These moments replace the products of eigenvalues (George et al.,
2018, arXiv:1806.03884):

.. math:: A \otimes G \to (Q_A \otimes Q_G) \operatorname{diag} S (Q_A \otimes Q_G)^\top,
    \qquad S = E[(Q_A^\top M Q_G)^2]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.curvature._kronecker_inverse import BlockStack, Factors
from fnopt.gradients.ghost import KroneckerBlock, rotate_rows, rotate_rows_back
from fnopt.numerics import HIGHEST
from fnopt.sharding import concatenate, replicate, sequential

_Blocks = KroneckerBlock | BlockStack


def is_corrected(block: _Blocks) -> bool:
    """Whether a block has two factors and thus an eigenbasis."""
    return len(block.sides) == 2


def basis_shapes(block: _Blocks) -> tuple[tuple[int, ...], ...]:
    """Shapes of the eigenbases; empty for a diagonal factor."""
    return tuple(
        (block.matrices, s.count, s.width, s.width) if s.count else (block.matrices, 0, 0, 0)
        for s in block.sides
    )


def moment_shape(block: _Blocks) -> tuple[int, ...]:
    """Shape of the second moments in the eigenbases, with dimensions padded to whole blocks."""
    return (block.matrices, *(s.count * s.width if s.count else s.size for s in block.sides))


def eigenbases(blocks: Sequence[BlockStack], factors: Sequence[Factors]) -> tuple[Factors, ...]:
    """Eigenvectors of the factors of every block with two factors; empty for other blocks."""
    # All factors of equal width form one batch `[n, width, width]`, so the program has one
    # eigendecomposition per width and not one per factor. A factor is keyed by block i and side j.
    bases: dict[tuple[int, int], jax.Array] = {}
    stacks: dict[int, list[tuple[int, int]]] = {}
    for i, block in enumerate(blocks):
        for j, side in enumerate(block.sides if is_corrected(block) else ()):
            if side.count:
                stacks.setdefault(side.width, []).append((i, j))
            else:
                bases[i, j] = jnp.zeros((block.matrices, 0, 0, 0), factors[i][j].dtype)
    # Batches run one after the other: on a CPU, concurrent batches of LAPACK calls can deadlock.
    vectors_of = sequential(lambda x: jnp.linalg.eigh(x)[1])
    for width, members in stacks.items():
        padded = [_pad_factor(factors[i][j], blocks[i].sides[j].size) for i, j in members]
        batches = [x.reshape(-1, width, width) for x in padded]
        vectors = vectors_of(concatenate([replicate(x) for x in batches]))
        ends = np.cumsum([len(x) for x in batches])[:-1].tolist()
        parts = jnp.split(vectors, ends)
        bases |= {
            member: part.reshape(x.shape)
            for member, part, x in zip(members, parts, padded, strict=True)
        }
    return tuple(
        (bases[i, 0], bases[i, 1]) if is_corrected(b) else () for i, b in enumerate(blocks)
    )


def _pad_factor(factor: jax.Array, size: int) -> jax.Array:
    """Pad the last block of a factor so that its padding has the smallest eigenvalues."""
    count, width = factor.shape[1:3]
    if count * width == size:
        return factor
    fill = (jnp.arange(count * width) >= size).astype(factor.dtype).reshape(count, width)
    # Minus the trace is below all eigenvalues and of similar magnitude. LAPACK's errors are
    # proportional to the largest eigenvalue, so a padding of -1 would swamp small eigenvalues.
    trace = jnp.trace(factor[:, -1], axis1=1, axis2=2)
    padding_value = -jnp.where(trace > 0, trace, jnp.ones_like(trace))
    return factor + padding_value[:, None, None, None] * jax.vmap(jnp.diag)(fill)


def rebase_moments(old: Factors, new: Factors, moments: jax.Array) -> jax.Array:
    r"""Transform the diagonal second moments from the old bases to the new bases.

    .. math:: S'_{ij} = \sum_{kl} (Q'^\top_A Q_A)_{ik}^2 \, S_{kl} \, (Q_G^\top Q'_G)_{lj}^2
    """

    def rebase_matrix(m: jax.Array, bases: tuple[Factors, Factors]) -> jax.Array:
        (a, b), (x, y) = bases
        m = _rebase_rows(m, b, y)
        return jnp.swapaxes(_rebase_rows(jnp.swapaxes(m, 1, 2), a, x), 1, 2)

    return _map_matrices(rebase_matrix, moments, (old, new))


def _map_matrices(fn: Callable[[jax.Array, Any], jax.Array], m: jax.Array, rest: Any) -> jax.Array:
    """Map `fn` over `[T, D, K]` with one matrix `[1, D, K]` in memory at a time."""
    if len(m) == 1:
        return fn(m, rest)
    return jax.lax.map(
        lambda arrays: fn(*jax.tree.map(lambda x: jnp.expand_dims(x, 0), arrays))[0], (m, rest)
    )


def _rebase_rows(m: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
    """Multiply `[T, R, D]` by the squared cosines between the vectors of two bases."""
    t, count, width = old.shape[:3]
    if not count:
        return m
    # The diagonal of Q^T diag(m) Q is an average of m with squared cosines as weights.
    cosines = jnp.einsum("tbki,tbkj->tbij", old, new, precision=HIGHEST)
    blocks = m.reshape(*m.shape[:2], count, width)
    rebased = jnp.einsum("trbi,tbij->trbj", blocks, cosines**2, precision=HIGHEST)
    return rebased.reshape(t, -1, count * width)


def times_corrected(
    bases: Factors, moments: jax.Array, damping: jax.Array, m: jax.Array
) -> jax.Array:
    """Multiply matrices `[T, D, K]` by the inverses of damped blocks.

    Transform to the eigenbases, divide by the damped second moments, and transform back.
    """

    def divide_matrix(m: jax.Array, rest: tuple[Factors, jax.Array]) -> jax.Array:
        (left, right), moments = rest
        d, k = m.shape[1:]
        m = rotate_rows(jnp.swapaxes(rotate_rows(m, right), 1, 2), left)
        m = m / (jnp.swapaxes(moments, 1, 2) + damping.astype(m.dtype))
        m = jnp.swapaxes(rotate_rows_back(m, left, d), 1, 2)
        return rotate_rows_back(m, right, k)

    return _map_matrices(divide_matrix, m, (bases, moments))
