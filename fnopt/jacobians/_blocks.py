"""Index arrays of the blocks of a Gram matrix and of its Cholesky factor."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fnopt.jacobians._pairs import row_pairs

Sizes = tuple[int, int]
"""The shape of a block: the size of the later group, then the size of the earlier group."""


class Level(NamedTuple):
    """The first groups of the order, which aren't coupled and are eliminated together."""

    size: int  # number of unknowns in a group
    groups: int
    blocks: dict[int, slice]  # by the size of the neighbor: the blocks below the diagonal
    products: dict[Sizes, tuple[np.ndarray, np.ndarray, np.ndarray]]
    """Pairs of blocks of a group, and the block from which their product is subtracted."""

    @property
    def stop(self) -> int:
        """Number of unknowns of the level."""
        return self.size * self.groups

    @property
    def multiplications(self) -> int:
        """Number of multiplications of the elimination."""
        s = self.size
        solves = sum((at.stop - at.start) * t * s * s for t, at in self.blocks.items())
        sums = sum(a.size * t * u * s for (t, u), (a, _, _) in self.products.items())
        return self.groups * s**3 // 3 + solves + sums


class Gram(NamedTuple):
    """Index arrays to assemble the blocks of the Gram matrix from the entries of the Jacobian."""

    # Per group size: indices of entries [rows, size]. An index past the end means 0.
    rows: dict[int, np.ndarray]
    products: dict[Sizes, tuple[np.ndarray, np.ndarray, np.ndarray]]


class BlockIndex:
    """The blocks of the factor, by shape; diagonal blocks come first, then blocks by columns.

    Args:
        size: The size of every group, in the order of elimination.
        later: The row group of every block below the diagonal.
        earlier: The column group of every block below the diagonal.
    """

    def __init__(self, size: np.ndarray, later: np.ndarray, earlier: np.ndarray) -> None:
        self.size = size
        self.start = np.r_[0, np.cumsum(size)]  # [groups + 1], the first unknown
        self.rank = np.zeros_like(size)  # index of each group among the groups of its size
        self.blocks: dict[Sizes, tuple[np.ndarray, np.ndarray]] = {}
        # Per shape: ascending keys of the blocks below the diagonal, number of diagonal blocks.
        self._keys: dict[Sizes, tuple[np.ndarray, int]] = {}
        by_column = np.lexsort((later, earlier))
        later, earlier = later[by_column], earlier[by_column]
        self._below = later, earlier
        sizes = np.unique(size).tolist()
        for s in sizes:
            same = np.flatnonzero(size == s)
            self.rank[same] = np.arange(same.size)
            for t in sizes:
                here = (size[later] == t) & (size[earlier] == s)
                row, col = later[here], earlier[here]
                diagonal = same if s == t else same[:0]
                if row.size + diagonal.size:
                    self._keys[t, s] = col * size.size + row, diagonal.size
                    row, col = np.r_[diagonal, row], np.r_[diagonal, col]
                    starts = self.start[row].astype(np.int32), self.start[col].astype(np.int32)
                    self.blocks[t, s] = starts

    def find(self, later: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Return the indices of blocks of one shape, among all blocks of this shape."""
        keys, diagonals = self._keys[int(self.size[later[0]]), int(self.size[earlier[0]])]
        below = diagonals + np.searchsorted(keys, earlier * self.size.size + later)
        return np.where(later == earlier, self.rank[later], below).astype(np.int32)

    def products(
        self, later: np.ndarray, earlier: np.ndarray, a: np.ndarray, b: np.ndarray
    ) -> dict[Sizes, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return the indices of products, by the shape of the block to which they belong.

        Args:
            later: The row group of every product.
            earlier: The column group of every product.
            a: The index of the left factor.
            b: The index of the right factor.

        Returns:
            For each shape: `a`, `b` and the index of the block, sorted by block.
        """
        t, u = self.size[later], self.size[earlier]
        found = {}
        for i, j in np.unique(np.stack([t, u]), axis=1).T.tolist():
            here = np.flatnonzero((t == i) & (u == j))
            target = self.find(later[here], earlier[here])
            here, target = here[np.argsort(target, kind="stable")], np.sort(target)
            found[i, j] = a[here].astype(np.int32), b[here].astype(np.int32), target
        return found

    def level(self, groups: int) -> Level:
        """Return the level of the first groups."""
        later, earlier = self._below
        stop = np.searchsorted(earlier, groups)
        later, earlier = later[:stop], earlier[:stop]
        blocks, local = {}, np.zeros_like(later)
        for t in np.unique(self.size[later]).tolist():
            here = self.size[later] == t
            at = self.find(later[here], earlier[here])
            blocks[t] = slice(int(at[0]), int(at[-1]) + 1)
            local[here] = np.arange(at.size)
        a, b = row_pairs(earlier)
        products = self.products(later[a], later[b], local[a], local[b])
        return Level(int(self.size[0]), groups, blocks, products)


def gram_indices(
    layout: BlockIndex, rows: np.ndarray, group: np.ndarray, position: np.ndarray
) -> Gram:
    """Return the index arrays for the Gram matrix.

    Args:
        layout: The blocks.
        rows: The row of every entry of the Jacobian.
        group: The group of every entry, by its position in the order of elimination.
        position: The position of the unknown of every entry in the order of elimination.
    """
    groups = layout.size.size
    keys, part = np.unique(rows.astype(np.int64) * groups + group, return_inverse=True)
    # A part consists of the entries of one row in one group.
    row, part_group = np.divmod(keys, groups)  # the row and the group of each part
    local, parts = np.zeros_like(part_group), {}  # local: index among the parts of its group size
    for s in np.unique(layout.size[part_group]).tolist():
        here = layout.size[part_group] == s
        local[here] = np.arange(int(here.sum()))
        parts[s] = np.full((int(here.sum()), s), rows.size, np.int32)
    for s, entries in parts.items():
        here = np.flatnonzero(layout.size[group] == s)
        at = local[part[here]], position[here] - layout.start[group[here]]
        entries[at] = here
    a, b = row_pairs(row)  # the groups of a row ascend, so that a is the later one
    return Gram(parts, layout.products(part_group[a], part_group[b], local[a], local[b]))
