"""Band layout of sparse normal equations, and bandwidth-reducing orders of the unknowns."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import count_text
from fnopt.jacobians._colored import SparseJacobian
from fnopt.jacobians._coloring import Sparsity
from fnopt.jacobians._pairs import distinct_edges, row_pairs

# Largest number of unknowns in a block. For 4,096 unknowns, a factorization takes 14, 39 and 115 ms
# with blocks of 128, 256 and 512. 100 iterations of conjugate gradients take 47 ms if a row has 8
# entries (CPU time).
_WIDEST = 128
_LEAST_BLOCKS = 4  # the layout of fewer blocks stores more than half as many numbers as the matrix
# Smallest block. With blocks of 4, 8, 16, 32 and 64, a narrow band of 4,096 unknowns takes 2.4,
# 1.9, 1.8, 2.0 and 5.3 ms (CPU time).
_BLOCK = 16
_MOST_PAIRS = 2**24  # pairs of entries in a row; the indices of so many pairs take 200 MB


class BandLayout:
    r"""Layout of a banded matrix :math:`J^T J` as a block-tridiagonal matrix.

    The unknowns are ordered so that coupled unknowns are at most one bandwidth apart. With blocks
    as large as the bandwidth `b`, all entries of the lower triangle are in the blocks `[i, i]` and
    `[i, i - 1]`. An array `[blocks, 2, size, size]` stores these blocks in :math:`2 n b` numbers.

    Args:
        order: The indices of the Jacobian's columns in the new order.
        size: The number of unknowns in a block.
        places: Three index arrays with an element for every product of two entries of a row: the
            first entry, the second entry, and the element of the flattened array to which the
            product is added.
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
        blocks, size = count_text(self.blocks, "block"), count_text(self.size, "unknown")
        return f"Cholesky factorization of a band, in {blocks} of {size}"

    def gram(self, J: SparseJacobian) -> jax.Array:
        """Compute the blocks of :math:`J^T J`."""
        _, _, values = J.entries
        shape = (self.blocks, 2, self.size, self.size)
        terms = values[self._left] * values[self._right]
        sums = jax.ops.segment_sum(
            terms, self._target, int(np.prod(shape)), indices_are_sorted=True
        )
        padding = np.arange(J.shape[1] - (self.blocks - 1) * self.size, self.size)
        # Ones on the diagonal of the padding keep the matrix nonsingular.
        return sums.reshape(shape).at[-1, 0, padding, padding].set(1)

    def scaled(self, G: jax.Array, scale: jax.Array) -> jax.Array:
        r"""Compute the blocks of :math:`D^{-1} G D^{-1}`.

        Args:
            G: The blocks of the matrix.
            scale: The diagonal of `D` in the order of the Jacobian's columns, `[n]`.
        """
        d = self.blocked(scale, 1)
        previous = jnp.concatenate([d[:1], d[:-1]])
        return G / d[:, None, :, None] / jnp.stack([d, previous], 1)[:, :, None, :]

    def diagonal(self, G: jax.Array) -> jax.Array:
        """Extract the diagonal in the order of the Jacobian's columns, `[n]`."""
        return self.flat(jnp.diagonal(G[:, 0], axis1=1, axis2=2))

    def blocked(self, v: jax.Array, fill: float = 0) -> jax.Array:
        """Reorder a vector of the Jacobian's columns, and pad it to blocks `[blocks, size]`."""
        padding = self.blocks * self.size - v.size
        return jnp.pad(v[self.order], (0, padding), constant_values=fill).reshape(-1, self.size)

    def flat(self, v: jax.Array) -> jax.Array:
        """Undo `blocked`."""
        return v.ravel()[self.position]


@functools.lru_cache(maxsize=8)
def band_of(
    sparsity: Sparsity, by_rows: bool = False, widest: int | None = None
) -> BandLayout | None:
    """Find a band layout for the Gram matrix of a sparse Jacobian.

    Args:
        sparsity: The pattern of the Jacobian, or of its transpose if `by_rows` is True.
        by_rows: Whether `sparsity` is the pattern of the transpose.
        widest: The largest block size allowed; by default 128, or a quarter of the unknowns if
            there are fewer than 512.

    Returns:
        The layout; None if the band is too wide. The unknowns are in the original order, or in
        reverse Cuthill-McKee order if its band is narrower.
    """
    rows, cols = sparsity.rows, sparsity.cols
    m, n = sparsity.shape
    if by_rows:
        rows, cols, m, n = cols, rows, n, m
    widest = min(_WIDEST, n // _LEAST_BLOCKS) if widest is None else widest
    # A row with k entries couples k unknowns, so the bandwidth is at least k - 1.
    longest = int(np.bincount(rows, minlength=1).max(initial=0))
    if longest > widest or rows.size * longest > _MOST_PAIRS:
        return None
    by_row = np.argsort(rows, kind="stable")
    left, right = (by_row[part] for part in row_pairs(rows[by_row], _MOST_PAIRS))
    a, b = cols[left], cols[right]
    order = np.arange(n)
    width = _width(order, a, b)
    if width > _BLOCK:
        high, low = distinct_edges(a, b)
        starts, ends = np.r_[high, low], np.r_[low, high]
        # A node with k neighbors has one at a distance of at least k / 2, in every order.
        if np.bincount(starts, minlength=1).max() > 2 * widest:
            return None
        order = min(
            order, reverse_cuthill_mckee(starts, ends, n), key=lambda order: _width(order, a, b)
        )
        width = _width(order, a, b)
    if width > widest:
        return None
    size = max(width, min(_BLOCK, n))
    return BandLayout(order, size, _product_indices(order, size, left, right, cols))


def _width(order: np.ndarray, a: np.ndarray, b: np.ndarray) -> int:
    """Bandwidth of a matrix with entries `(a, b)` in a new order."""
    position = np.argsort(order)
    return int(np.abs(position[a] - position[b]).max(initial=0))


def _product_indices(
    order: np.ndarray, size: int, left: np.ndarray, right: np.ndarray, cols: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index arrays of :class:`BandLayout`, sorted by the element to which a product is added."""
    position = np.argsort(order)
    p, q = position[cols[left]], position[cols[right]]
    later, earlier = np.maximum(p, q), np.minimum(p, q)  # an element of the lower triangle
    block, row = np.divmod(later, size)
    column_block, col = np.divmod(earlier, size)
    target = ((block * 2 + (block - column_block)) * size + row) * size + col
    by_target = np.argsort(target, kind="stable")
    first, second, third = (part[by_target].astype(np.int32) for part in (left, right, target))
    return first, second, third


def reverse_cuthill_mckee(rows: np.ndarray, cols: np.ndarray, n: int) -> np.ndarray:
    r"""Order the nodes of a graph by the reverse Cuthill-McKee algorithm, for a small bandwidth.

    The order starts at a peripheral node and continues level by level. A level contains all nodes
    at the same distance from the first node. New neighbors of a node are numbered by increasing
    degree. An edge connects nodes of the same level or of adjacent levels, so the bandwidth is less
    than the size of two levels.

    Args:
        rows: The first node of every edge, int array of shape `[k]`. Every edge appears in both
            directions. Self-loops are allowed.
        cols: The second node of every edge, int array of shape `[k]`.
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
    neighbors = [part.tolist() for part in np.split(cols[by_degree], ends[:-1])]
    order: list[int] = []
    visited = bytearray(n)
    for node in np.argsort(degree, kind="stable").tolist():
        if not visited[node]:
            order += _component(neighbors, node, visited)
    return np.asarray(order[::-1], np.int64)


def _component(neighbors: list[list[int]], node: int, visited: bytearray) -> list[int]:
    """Order the nodes of a connected component level by level, from a peripheral node.

    The node of smallest degree in the last level becomes the new first node. This is repeated as
    long as the number of levels increases (George and Liu 1979).
    """
    levels = _levels(neighbors, node, bytearray(visited))
    while True:
        peripheral = min(levels[-1], key=lambda k: len(neighbors[k]))
        new_levels = _levels(neighbors, peripheral, bytearray(visited))
        if len(new_levels) <= len(levels):
            break
        levels = new_levels
    levels = _levels(neighbors, peripheral, visited)
    return [k for level in levels for k in level]


def _levels(neighbors: list[list[int]], node: int, visited: bytearray) -> list[list[int]]:
    """Group the unvisited nodes by their distance from a node, and mark them as visited."""
    levels, level = [], [node]
    visited[node] = True
    while level:
        levels.append(level)
        next_level = []
        for k in level:
            for j in neighbors[k]:
                if not visited[j]:
                    visited[j] = True
                    next_level.append(j)
        level = next_level
    return levels
