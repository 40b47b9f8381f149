"""Colorings of sparsity patterns: of columns, of columns and rows, and of symmetric patterns."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from fnopt.jacobians._pairs import distinct


class ColumnColours:
    """Base class of column colorings."""

    @functools.cached_property
    def colour(self) -> np.ndarray:
        """Color of every column; -1 for a column without entries."""
        raise NotImplementedError

    @functools.cached_property
    def colours(self) -> int:
        """The number of colors."""
        return int(self.colour.max(initial=0)) + 1

    def seeds(self, dtype: Any) -> np.ndarray:
        """Seed matrix `[colors, columns]`: the sum of the unit vectors of each color."""
        return (self.colour == np.arange(self.colours)[:, None]).astype(dtype)


class Sparsity(ColumnColours):
    """The sparsity pattern of a matrix, and a coloring of its columns.

    Columns of one color have no row in common. The sums of the columns of each color therefore
    contain all entries. The entry in row `i` and column `j` is in row `i` of the sum for the color
    of `j`.

    Patterns are compared by identity, so each object has its own compiled program.

    Args:
        rows: The row of every entry, int array of shape `[entries]`.
        cols: The column of every entry.
        shape: The numbers of rows and of columns.
        leaves: The shapes of the params' leaves, whose rows are eliminated together.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians import Sparsity
        >>> i = np.arange(5)
        >>> band = Sparsity(np.r_[i, i[1:], i[:-1]], np.r_[i, i[:-1], i[1:]], (5, 5))
        >>> band.colours, band.colour.tolist()
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
        keys = distinct(np.asarray(rows, np.int64) * shape[1] + np.asarray(cols, np.int64))
        self.rows, self.cols = (part.astype(np.int32) for part in np.divmod(keys, shape[1]))
        self.shape = shape
        self.leaves = leaves

    @functools.cached_property
    def colour(self) -> np.ndarray:
        """Color of every column; -1 for a column without entries."""
        return _greedy(self.rows, self.cols, self.shape[1])

    @functools.cached_property
    def lists(self) -> tuple[np.ndarray, np.ndarray]:
        """For every row and color the column (0 if none), and a mask of the entries."""
        column = np.zeros((self.shape[0], self.colours), np.int32)
        exists = np.zeros(column.shape, bool)
        index = (self.rows, self.colour[self.cols])
        column[index], exists[index] = self.cols, True
        return column, exists

    @functools.cached_property
    def places(self) -> np.ndarray:
        """Index of every entry in the transposed sums, `[colors, rows]`, as one vector."""
        return self.colour[self.cols].astype(np.int64) * self.shape[0] + self.rows


def _greedy(rows: np.ndarray, cols: np.ndarray, columns: int) -> np.ndarray:
    """Greedy coloring: columns that share a row get different colors."""
    order = np.argsort(cols, kind="stable")
    starts = np.searchsorted(cols[order], np.arange(columns + 1))
    by_column = rows[order].tolist()
    used: dict[int, int] = {}  # the colors used in each row, as a bit mask
    colour = np.full(columns, -1, np.int32)
    for j, (lo, hi) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        if lo == hi:
            continue
        mask = 0
        for i in by_column[lo:hi]:
            mask |= used.get(i, 0)
        free = ~mask & (mask + 1)  # the lowest bit that isn't set
        colour[j] = free.bit_length() - 1
        for i in by_column[lo:hi]:
            used[i] = used.get(i, 0) | free
    return colour


class SymmetricSparsity(ColumnColours):
    """The sparsity pattern of a symmetric matrix, and a star coloring of its columns.

    An entry appears twice in the matrix, so it is sufficient if it is alone in one of two sums: in
    row `i` of the sum for `j`'s color, or in row `j` of the sum for `i`'s color. A star coloring
    has this property: columns with an entry in common have different colors, and a path of four
    connected columns has at least three colors.

    Patterns are compared by identity, so each object has its own compiled program.

    Args:
        rows: The row of every entry, int array of shape `[entries]`; one of the two triangles is
            sufficient.
        cols: The column of every entry.
        size: The number of rows and of columns.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians import SymmetricSparsity
        >>> i = np.arange(5)
        >>> arrow = SymmetricSparsity(np.r_[i, np.full(4, 4)], np.r_[i, i[:-1]], 5)
        >>> arrow.colours, arrow.colour.tolist()
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
    def colour(self) -> np.ndarray:
        """Color of every column; -1 for a column without entries."""
        neighbours = self._neighbours()
        natural = range(self.shape[0])
        fullest = sorted(natural, key=lambda v: -len(neighbours[v]))
        found = [_star(neighbours, order) for order in (natural, fullest)]
        # A coloring of columns without a common row is a star coloring too, sometimes with fewer
        # colors.
        found.append(Sparsity(self.rows, self.cols, self.shape).colour)
        colour = min(found, key=lambda colour: int(colour.max(initial=0)))
        colour[np.setdiff1d(np.arange(self.shape[0]), self.rows)] = -1
        return colour

    @functools.cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """For every entry, the row and the color of a sum in which it is alone."""
        i, j = np.minimum(self.rows, self.cols), np.maximum(self.rows, self.cols)
        # Sums that contain entry (i, j), and its transpose.
        place = np.stack([self._place(i, j), self._place(j, i)])
        sums, count = np.unique(self._place(self.rows, self.cols), return_counts=True)
        alone = count[np.searchsorted(sums, place[0])] == 1
        found = np.where(alone, *place)  # the same choice for (i, j) and (j, i)
        rows, colours = np.divmod(found, self.colours)
        return rows.astype(np.int32), colours.astype(np.int32)

    def _place(self, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        return rows.astype(np.int64) * self.colours + self.colour[cols]

    def _neighbours(self) -> list[list[int]]:
        off = self.rows != self.cols
        rows, cols = self.rows[off], self.cols[off]
        starts = np.searchsorted(rows, np.arange(self.shape[0] + 1)).tolist()
        listed = cols.tolist()
        return [listed[a:b] for a, b in itertools.pairwise(starts)]


def _star(neighbours: list[list[int]], order: Any) -> np.ndarray:
    """Greedy star coloring: every path of four vertices has at least three colors."""
    colour = np.full(len(neighbours), -1, np.int32)
    known = [-1] * len(neighbours)
    # Per vertex: counts of its neighbors' colors.
    seen: list[dict[int, int]] = [{} for _ in neighbours]
    near = [0] * len(neighbours)  # per vertex: its neighbors' colors as a bit mask
    for v in order:
        used = near[v]
        for w in neighbours[v]:
            if known[w] < 0:
                continue
            if seen[v][known[w]] > 1:  # v in the middle, between w and another of its color
                used |= near[w]
                continue
            for x in neighbours[w]:  # v at the end of v - w - x - y, with y of w's color
                if known[x] >= 0 and seen[x][known[w]] > 1:
                    used |= 1 << known[x]
        free = ~used & (used + 1)  # the lowest bit that isn't set
        known[v] = free.bit_length() - 1
        for w in neighbours[v]:
            seen[w][known[v]] = seen[w].get(known[v], 0) + 1
            near[w] |= free
    colour[:] = known
    return colour


_TRIED, _LOOKED_AT = 4, 64


class Bicolouring:
    """Partition of a pattern into entries from sums of columns and entries from sums of rows.

    Partitions are compared by identity, as :class:`Sparsity` is.

    Args:
        columns: The pattern of the entries from sums of columns, of shape `[m, n]`.
        rows: The transposed pattern of the entries from sums of rows, of shape `[n, m]`.
    """

    def __init__(self, columns: Sparsity, rows: Sparsity) -> None:
        self.columns, self.rows = columns, rows
        all_rows, all_cols = np.r_[columns.rows, rows.cols], np.r_[columns.cols, rows.rows]
        self.whole = Sparsity(all_rows, all_cols, columns.shape)
        self.order = np.lexsort((all_cols, all_rows))  # sorts the entries of both parts row by row

    @property
    def colours(self) -> int:
        """Number of sums of columns and sums of rows together."""
        return self.columns.colours + self.rows.colours


def bicolouring(
    rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], most: int
) -> Bicolouring | None:
    """Choose the partition into rows and columns with the fewest sums.

    An arrow (a diagonal, a full row and a full column) has as many colors as columns, and as
    many as rows, but only three with a partition: the full row alone, the full column alone, and
    the diagonal. Entries of a row that isn't summed don't appear in sums of rows, and full rows are
    ignored in sums of columns. Each part is therefore colored on its own.

    Args:
        rows: The row of every entry.
        cols: The column of every entry.
        shape: The numbers of rows and of columns.
        most: The partition must have fewer colors than this number.

    Returns:
        The partition with the fewest colors; None if all partitions have too many.

    Reference:
        Coleman and Verma (1998), The efficient computation of sparse Jacobian matrices using
        automatic differentiation.
    """
    transposed = shape[1], shape[0]
    splits = [(bound, full, False) for bound, full in _splits(rows, cols, shape)]
    splits += [(bound, full, True) for bound, full in _splits(cols, rows, transposed)]
    best = None
    for bound, full, by_columns in sorted(splits, key=lambda split: split[0])[:_TRIED]:
        if bound >= (most if best is None else best.colours):
            break
        here = full[cols if by_columns else rows]  # mask of the entries in full rows or columns
        columns = here if by_columns else ~here
        found = Bicolouring(
            Sparsity(rows[columns], cols[columns], shape),
            Sparsity(cols[~columns], rows[~columns], transposed),
        )
        if found.colours < (most if best is None else best.colours):
            best = found
    return best


def _splits(
    rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield candidate sets of full rows, each with a lower bound on the number of colors."""
    degree = np.bincount(rows, minlength=shape[0])
    # The rows that aren't full have at most this degree.
    counts = np.unique(degree[degree > 0])[:-1]
    for count in counts[-_LOOKED_AT:].tolist():
        full = degree > count
        crossed = np.bincount(cols[full[rows]], minlength=1).max()
        yield int(count + crossed), full
