"""Sparsity patterns, and colorings of their columns, of columns and rows, and star colorings."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from fnopt.jacobians._pairs import distinct


class ColumnColors:
    """Base class of column colorings."""

    @functools.cached_property
    def color(self) -> np.ndarray:
        """Color of every column; -1 for a column without entries."""
        raise NotImplementedError

    @functools.cached_property
    def colors(self) -> int:
        """The number of colors."""
        return int(self.color.max(initial=0)) + 1

    def seeds(self, dtype: Any) -> np.ndarray:
        """Seed matrix `[colors, columns]`, whose rows are sums of the unit vectors of a color."""
        return (self.color == np.arange(self.colors)[:, None]).astype(dtype)


class Sparsity(ColumnColors):
    """Sparsity pattern of a matrix, with a coloring of its columns.

    Two columns of the same color have no entry in the same row. The columns of each color are
    summed, and the sums contain all entries of the matrix. The entry in row `i` and column `j` is
    in row `i` of the sum for the color of `j`.

    Patterns are compared by identity. A program that was compiled for one object isn't reused for
    another object, even if the patterns are equal.

    Args:
        rows: The row of every entry, int array of shape `[entries]`.
        cols: The column of every entry, int array of shape `[entries]`.
        shape: The numbers of rows and of columns.
        leaves: The shapes of the params' leaves. If known, the slices of a leaf along its first
            axis may be eliminated as blocks.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians import Sparsity
        >>> i = np.arange(5)
        >>> band = Sparsity(np.r_[i, i[1:], i[:-1]], np.r_[i, i[:-1], i[1:]], (5, 5))
        >>> band.colors, band.color.tolist()
        (3, [0, 1, 2, 0, 1])

    Reference:
        Curtis, Powell and Reid (1974), On the estimation of sparse Jacobian matrices.
    """

    def __init__(
        self,
        rows: np.ndarray,
        cols: np.ndarray,
        shape: tuple[int, int],
        leaves: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        # One int64 key per entry; an int32 product of two indices could overflow.
        keys = distinct(np.asarray(rows, np.int64) * shape[1] + np.asarray(cols, np.int64))
        self.rows, self.cols = (part.astype(np.int32) for part in np.divmod(keys, shape[1]))
        self.shape = shape
        self.leaves = leaves

    @functools.cached_property
    def color(self) -> np.ndarray:
        """Color of every column; -1 for a column without entries."""
        return _greedy(self.rows, self.cols, self.shape[1])

    @functools.cached_property
    def lists(self) -> tuple[np.ndarray, np.ndarray]:
        """For every row and color, the column of the entry, and whether there is an entry.

        Both arrays have shape `[rows, colors]`. The column is 0 if there is no entry.
        """
        column = np.zeros((self.shape[0], self.colors), np.int32)
        exists = np.zeros(column.shape, bool)
        index = (self.rows, self.color[self.cols])
        column[index], exists[index] = self.cols, True
        return column, exists

    @functools.cached_property
    def places(self) -> np.ndarray:
        """Index of every entry in the transposed sums, `[colors, rows]`, as one vector."""
        small = self.shape[0] * self.colors < 2**31
        first = self.color[self.cols].astype(np.int32 if small else np.int64) * self.shape[0]
        return first + self.rows


def _greedy(rows: np.ndarray, cols: np.ndarray, columns: int) -> np.ndarray:
    """Color the columns greedily, so that columns with a common row have different colors."""
    order = np.argsort(cols, kind="stable")
    starts = np.searchsorted(cols[order], np.arange(columns + 1))
    by_column = rows[order].tolist()
    row_colors: dict[int, int] = {}  # the colors in each row, as the bits of a Python integer
    color = np.full(columns, -1, np.int32)
    for j, (lo, hi) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        if lo == hi:
            continue
        mask = 0
        for i in by_column[lo:hi]:
            mask |= row_colors.get(i, 0)
        lowest = ~mask & (mask + 1)  # the lowest bit that isn't set
        color[j] = lowest.bit_length() - 1
        for i in by_column[lo:hi]:
            row_colors[i] = row_colors.get(i, 0) | lowest
    return color


class SymmetricSparsity(ColumnColors):
    """Sparsity pattern of a symmetric matrix, with a star coloring of its columns.

    The entries `(i, j)` and `(j, i)` are equal. The first is in row `i` of the sum for the color of
    `j`, the second is in row `j` of the sum for the color of `i`. One of these two sums must have
    no other entry in this row. A star coloring guarantees this property. It has different colors
    for columns `i` and `j` with an entry `(i, j)`, and at least three colors on every path of four
    columns.

    Patterns are compared by identity, as in :class:`Sparsity`.

    Args:
        rows: The row of every entry, int array of shape `[entries]`; one triangle is sufficient.
        cols: The column of every entry, int array of shape `[entries]`.
        size: The number of rows and of columns.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians import SymmetricSparsity
        >>> i = np.arange(5)
        >>> arrow = SymmetricSparsity(np.r_[i, np.full(4, 4)], np.r_[i, i[:-1]], 5)
        >>> arrow.colors, arrow.color.tolist()
        (2, [0, 0, 0, 0, 1])

    Reference:
        Coleman and Moré (1984), Estimation of sparse Hessian matrices and graph coloring problems;
        Gebremedhin, Tarafdar, Manne and Pothen (2007), New acyclic and star coloring algorithms
        with application to computing Hessians.
    """

    def __init__(self, rows: np.ndarray, cols: np.ndarray, size: int) -> None:
        i, j = np.asarray(rows, np.int64), np.asarray(cols, np.int64)
        keys = distinct(np.r_[i * size + j, j * size + i])
        self.rows, self.cols = (part.astype(np.int32) for part in np.divmod(keys, size))
        self.shape = (size, size)

    @functools.cached_property
    def color(self) -> np.ndarray:
        """Color of every column; -1 for a column without entries."""
        neighbors = self._neighbors()
        natural = range(self.shape[0])
        largest_degree_first = sorted(natural, key=lambda v: -len(neighbors[v]))
        colorings = [_star(neighbors, order) for order in (natural, largest_degree_first)]
        # A coloring of columns without a common row is also a star coloring. It sometimes has
        # fewer colors than the greedy star colorings.
        colorings.append(Sparsity(self.rows, self.cols, self.shape).color)
        color = min(colorings, key=lambda color: int(color.max(initial=0)))
        color[np.setdiff1d(np.arange(self.shape[0]), self.rows)] = -1
        return color

    @functools.cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and color of the sum that contains no other entry, for every entry."""
        # With i < j, the entries (i, j) and (j, i) read the same sum, so the Hessian is symmetric.
        i, j = np.minimum(self.rows, self.cols), np.maximum(self.rows, self.cols)
        upper, lower = self._sum_index(i, j), self._sum_index(j, i)
        sums, count = np.unique(self._sum_index(self.rows, self.cols), return_counts=True)
        is_single = count[np.searchsorted(sums, upper)] == 1
        rows, colors = np.divmod(np.where(is_single, upper, lower), self.colors)
        return rows.astype(np.int32), colors.astype(np.int32)

    def _sum_index(self, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        """Index of the sum that contains an entry, in the flattened array `[rows, colors]`."""
        return rows.astype(np.int64) * self.colors + self.color[cols]

    def _neighbors(self) -> list[list[int]]:
        """The columns that have an entry in each row, without the diagonal."""
        off_diagonal = self.rows != self.cols
        rows, cols = self.rows[off_diagonal], self.cols[off_diagonal].tolist()
        starts = np.searchsorted(rows, np.arange(self.shape[0] + 1)).tolist()
        return [cols[a:b] for a, b in itertools.pairwise(starts)]


def _star(neighbors: list[list[int]], order: Any) -> np.ndarray:
    """Color the vertices of a graph greedily, by a star coloring.

    Each vertex gets the smallest allowed color. The colors of the neighbors of `v` are forbidden
    for `v`. A color is also forbidden if a path of four vertices would then have only two colors.
    `v` may be the second vertex or the first vertex of such a path.
    """
    # Python lists and integers, because NumPy is slow for single elements.
    color = [-1] * len(neighbors)
    # For each vertex, how many of its neighbors have each color.
    counts: list[dict[int, int]] = [{} for _ in neighbors]
    neighbor_colors = [0] * len(neighbors)  # the keys of `counts`, as bits
    for v in order:
        forbidden = neighbor_colors[v]
        for w in neighbors[v]:
            if color[w] < 0:
                continue
            if counts[v][color[w]] > 1:  # v is the second vertex: x - v - w - y with equal x and w
                forbidden |= neighbor_colors[w]
                continue
            for x in neighbors[w]:  # v is the first vertex: v - w - x - y with equal w and y
                if color[x] >= 0 and counts[x][color[w]] > 1:
                    forbidden |= 1 << color[x]
        lowest = ~forbidden & (forbidden + 1)  # the lowest bit that isn't set
        color[v] = lowest.bit_length() - 1
        for w in neighbors[v]:
            counts[w][color[v]] = counts[w].get(color[v], 0) + 1
            neighbor_colors[w] |= lowest
    return np.asarray(color, np.int32)


# Largest number of thresholds for full rows; each takes two histograms. With 8 instead of 64, one
# of five measured patterns needs one more color. With 1,000, none needs fewer.
_BOUNDED = 64


class Bicoloring:
    """Partition of a pattern into entries from sums of columns and entries from sums of rows.

    Partitions are compared by identity, as in :class:`Sparsity`.

    Args:
        columns: The pattern of the entries that are read from sums of columns, of shape `[m, n]`.
        rows: The transposed pattern of the other entries, of shape `[n, m]`.
    """

    def __init__(self, columns: Sparsity, rows: Sparsity) -> None:
        self.columns, self.rows = columns, rows
        all_rows, all_cols = np.r_[columns.rows, rows.cols], np.r_[columns.cols, rows.rows]
        self.whole = Sparsity(all_rows, all_cols, columns.shape)
        self.order = np.lexsort((all_cols, all_rows))  # sorts the entries of both parts row by row

    @property
    def colors(self) -> int:
        """Total number of sums of columns and sums of rows."""
        return self.columns.colors + self.rows.colors


def bicoloring(
    rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], most: int
) -> Bicoloring | None:
    """Partition a pattern so that few sums of columns and sums of rows contain all entries.

    An arrow matrix (a diagonal, a full row and a full column) needs one color per column, or one
    per row. With a partition it needs three sums, which contain the full row, the full column and
    the diagonal. The two parts are colored independently. Sums of rows contain only the full rows.
    In sums of columns, the entries of full rows are ignored.

    Args:
        rows: The row of every entry.
        cols: The column of every entry.
        shape: The numbers of rows and of columns.
        most: The number of colors that a partition must fall below.

    Returns:
        The partition with the smallest lower bound on its colors; None if it has `most` colors or
        more.

    Reference:
        Coleman and Verma (1998), The efficient computation of sparse Jacobian matrices using
        automatic differentiation.
    """
    transposed = shape[1], shape[0]
    splits = [(bound, full, False) for bound, full in _splits(rows, cols, shape)]
    splits += [(bound, full, True) for bound, full in _splits(cols, rows, transposed)]
    best = min(splits, key=lambda split: split[0], default=None)
    if best is None or best[0] >= most:
        return None
    _, full, are_columns = best
    in_full = full[cols if are_columns else rows]  # mask of the entries
    columns = in_full if are_columns else ~in_full
    partition = Bicoloring(
        Sparsity(rows[columns], cols[columns], shape),
        Sparsity(cols[~columns], rows[~columns], transposed),
    )
    return partition if partition.colors < most else None


def _splits(
    rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield masks of full rows, each with a lower bound on the number of colors.

    A row is full if it has more entries than a threshold. The other rows need at least as many
    colors as the largest number of entries in one of them, which is the threshold. The full rows
    need at least as many sums of rows as there are full rows with an entry in the same column.
    """
    degree = np.bincount(rows, minlength=shape[0])
    thresholds = np.unique(degree[degree > 0])[:-1]
    for threshold in thresholds[-_BOUNDED:].tolist():
        is_full = degree > threshold
        overlap = np.bincount(cols[is_full[rows]], minlength=1).max()
        yield int(threshold + overlap), is_full
