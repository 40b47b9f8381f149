"""Narrow bands of sparse normal equations: orders of unknowns and layouts in blocks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.jacobians._coloured import SparseJacobian
from fnopt.jacobians._colouring import Sparsity
from fnopt.jacobians._pairs import distinct_edges, row_pairs

_WIDEST = 128  # unknowns in a block; for wider bands, conjugate gradients may be faster
_LEAST_BLOCKS = 4  # a band of fewer blocks is nearly a dense matrix
_BLOCK = 16  # smaller blocks aren't faster, because time then depends on the number of blocks
_MOST_PAIRS = 2**24  # pairs of entries in a row; the indices of so many pairs take 200 MB


class BandLayout:
    r"""Layout of a block-tridiagonal :math:`J^T J`: its diagonal and subdiagonal blocks.

    The unknowns are ordered so that coupled unknowns are at most one bandwidth apart. With blocks
    as large as the bandwidth `b`, all entries are in the blocks `[i, i]` and `[i, i - 1]`. An array
    `[blocks, 2, size, size]` then stores the lower triangle, in :math:`2 n b` numbers.

    Args:
        order: The indices of the Jacobian's columns in the new order.
        size: The number of unknowns in a block.
        places: For every product of two entries of a row: the first entry, the second entry, and
            the index of their sum in the flattened array.
    """

    def __init__(
        self, order: np.ndarray, size: int, places: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> None:
        self.order = order
        self.size = size
        self.widest = 2 * size  # a row of the factor spans two blocks
        self.blocks = -(-order.size // size)
        self.position = np.argsort(order)
        self._left, self._right, self._target = places

    def __str__(self) -> str:
        return f"Cholesky factorization of a band, in {self.blocks} blocks of {self.size} unknowns"

    def gram(self, J: SparseJacobian) -> jax.Array:
        """The blocks of :math:`J^T J`."""
        _, _, values = J.entries
        shape = (self.blocks, 2, self.size, self.size)
        terms = values[self._left] * values[self._right]
        sums = jax.ops.segment_sum(
            terms, self._target, int(np.prod(shape)), indices_are_sorted=True
        )
        filled = np.arange(J.shape[1] - (self.blocks - 1) * self.size, self.size)
        # Ones on the padded diagonal keep the matrix nonsingular.
        return sums.reshape(shape).at[-1, 0, filled, filled].set(1)

    def scaled(self, G: jax.Array, scale: jax.Array) -> jax.Array:
        r"""The blocks of :math:`D^{-1} G D^{-1}`; the diagonal of `D` is in the columns' order."""
        d = self.blocked(scale, 1)
        before = jnp.concatenate([d[:1], d[:-1]])
        return G / d[:, None, :, None] / jnp.stack([d, before], 1)[:, :, None, :]

    def diagonal(self, G: jax.Array) -> jax.Array:
        """The diagonal in the columns' order, `[n]`."""
        return self.flat(jnp.diagonal(G[:, 0], axis1=1, axis2=2))

    def blocked(self, v: jax.Array, fill: float = 0) -> jax.Array:
        """Arrange a vector in the columns' order as blocks `[blocks, size]`, padded at the end."""
        rest = self.blocks * self.size - v.size
        return jnp.pad(v[self.order], (0, rest), constant_values=fill).reshape(-1, self.size)

    def flat(self, v: jax.Array) -> jax.Array:
        """The inverse of `blocked`."""
        return v.ravel()[self.position]


@functools.lru_cache(maxsize=8)
def band_of(
    sparsity: Sparsity, by_rows: bool = False, widest: int | None = None
) -> BandLayout | None:
    """Return the layout of a sparse Jacobian's banded Gram matrix; None if the band is too wide.

    Args:
        sparsity: The pattern of the Jacobian, or of its transpose if `by_rows`.
        by_rows: Whether `sparsity` is the pattern of the transpose.
        widest: The size of the largest block allowed; by default 128, or a quarter of the unknowns
            if they are fewer than 512.

    Returns:
        The layout, in Cuthill and McKee's order if its band is narrower than in the original order.
    """
    rows, cols = sparsity.rows, sparsity.cols
    m, n = sparsity.shape
    if by_rows:
        rows, cols, m, n = cols, rows, n, m
    widest = min(_WIDEST, n // _LEAST_BLOCKS) if widest is None else widest
    most = int(np.bincount(rows, minlength=1).max(initial=0))
    if most > widest or rows.size * most > _MOST_PAIRS:
        return None
    by_row = np.argsort(rows, kind="stable")
    left, right = (by_row[part] for part in row_pairs(rows[by_row], _MOST_PAIRS))
    a, b = cols[left], cols[right]
    order = np.arange(n)
    width = _width(order, a, b)
    if width > _BLOCK:
        high, low = distinct_edges(a, b)
        starts, ends = np.r_[high, low], np.r_[low, high]
        if np.bincount(starts, minlength=1).max() > 2 * widest:  # every order would be too wide
            return None
        order = min(
            order, reverse_cuthill_mckee(starts, ends, n), key=lambda order: _width(order, a, b)
        )
        width = _width(order, a, b)
    if width > widest:
        return None
    size = max(width, min(_BLOCK, n))
    return BandLayout(order, size, _placed(order, size, left, right, cols))


def _width(order: np.ndarray, a: np.ndarray, b: np.ndarray) -> int:
    position = np.argsort(order)
    return int(np.abs(position[a] - position[b]).max(initial=0))


def _placed(
    order: np.ndarray, size: int, left: np.ndarray, right: np.ndarray, cols: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    position = np.argsort(order)
    p, q = position[cols[left]], position[cols[right]]
    low, high = np.maximum(p, q), np.minimum(p, q)
    block, row = np.divmod(low, size)
    beside, col = np.divmod(high, size)
    target = ((block * 2 + (block - beside)) * size + row) * size + col
    by_target = np.argsort(target, kind="stable")
    parts = (part[by_target].astype(np.int32) for part in (left, right, target))
    first, second, third = parts
    return first, second, third


def reverse_cuthill_mckee(rows: np.ndarray, cols: np.ndarray, n: int) -> np.ndarray:
    r"""Order the nodes of a graph level by level, for a small bandwidth.

    The order starts at a peripheral node and numbers neighbors level by level, nodes with few
    neighbors first. An edge then connects nodes of the same level or of two adjacent levels, so
    the bandwidth is less than the size of two levels.

    Args:
        rows: One end of every edge, int array of shape `[k]`; edges may appear in both directions,
            and loops are allowed.
        cols: The other end of every edge.
        n: Number of nodes.

    Returns:
        The nodes in their new order, an int array of shape `[n]`.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians import reverse_cuthill_mckee
        >>> path = np.asarray([0, 3, 1, 4, 2])  # a chain whose nodes are badly numbered
        >>> a, b = np.r_[path[1:], path[:-1]], np.r_[path[:-1], path[1:]]
        >>> reverse_cuthill_mckee(a, b, 5).tolist()
        [0, 3, 1, 4, 2]

    Reference:
        Cuthill and McKee (1969), Reducing the bandwidth of sparse symmetric matrices; George and
        Liu (1979), An implementation of a pseudoperipheral node finder.
    """
    degree = np.bincount(rows, minlength=n)
    by_degree = np.lexsort((degree[cols], rows))
    ends = np.cumsum(degree)
    neighbours = [part.tolist() for part in np.split(cols[by_degree], ends[:-1])]
    order: list[int] = []
    seen = bytearray(n)
    for node in np.argsort(degree, kind="stable").tolist():
        if not seen[node]:
            order += _component(neighbours, node, seen)
    return np.asarray(order[::-1], np.int64)


def _component(neighbours: list[list[int]], node: int, seen: bytearray) -> list[int]:
    """Return the nodes of a connected component, in order from a peripheral node."""
    far, depth = _levels(neighbours, node, bytearray(seen))
    while True:
        last = min(far[-1], key=lambda k: len(neighbours[k]))
        again, deeper = _levels(neighbours, last, bytearray(seen))
        if deeper <= depth:
            break
        far, depth = again, deeper
    levels, _ = _levels(neighbours, last, seen)
    return [k for level in levels for k in level]


def _levels(neighbours: list[list[int]], node: int, seen: bytearray) -> tuple[list[list[int]], int]:
    """Return the nodes, grouped by their distance from a node, and mark them as seen."""
    levels, level = [], [node]
    seen[node] = True
    while level:
        levels.append(level)
        following = []
        for k in level:
            for j in neighbours[k]:
                if not seen[j]:
                    seen[j] = True
                    following.append(j)
        level = following
    return levels, len(levels)
