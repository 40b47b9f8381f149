"""Which columns of a sparse matrix have no row in common, so that one product shows them all."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


class ColumnColours:
    """Columns by colour; a subclass says which columns have which."""

    @functools.cached_property
    def colour(self) -> np.ndarray:
        """The colour of every column; -1 for one without entries."""
        raise NotImplementedError

    @functools.cached_property
    def colours(self) -> int:
        """The number of colours."""
        return int(self.colour.max(initial=0)) + 1

    def seeds(self, dtype: Any) -> np.ndarray:
        """The sums of the unit vectors of each colour, an array of shape `[colours, columns]`."""
        return (self.colour == np.arange(self.colours)[:, None]).astype(dtype)


class Sparsity(ColumnColours):
    """The sparsity pattern of a matrix, and a colouring of its columns.

    Columns of one colour have no row in common. So the sums of the columns of each colour, one
    column a colour, hold all entries: that of row `i` and column `j` is in row `i` of the sums,
    under the colour of `j`.

    It is compared by identity: one object belongs to one compiled program.

    Args:
        rows: The row of every entry, int array of shape `[entries]`.
        cols: Its column.
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
        unique = np.unique(np.asarray(rows, np.int64) * shape[1] + np.asarray(cols, np.int64))
        self.rows, self.cols = (part.astype(np.int32) for part in np.divmod(unique, shape[1]))
        self.shape = shape
        self.leaves = leaves

    @functools.cached_property
    def colour(self) -> np.ndarray:
        """The colour of every column; -1 for one without entries."""
        return _greedy(self.rows, self.cols, self.shape[1])

    @functools.cached_property
    def lists(self) -> tuple[np.ndarray, np.ndarray]:
        """For every row and colour its column (0 if none), and whether there is one."""
        column = np.zeros((self.shape[0], self.colours), np.int32)
        there = np.zeros(column.shape, bool)
        at = (self.rows, self.colour[self.cols])
        column[at], there[at] = self.cols, True
        return column, there

    @functools.cached_property
    def by_columns(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows and columns of all entries, those of a column together."""
        order = np.argsort(self.cols, kind="stable")
        return self.rows[order], self.cols[order]


def _greedy(rows: np.ndarray, cols: np.ndarray, columns: int) -> np.ndarray:
    """Gives every column the first colour that no column with a row in common has."""
    order = np.argsort(cols, kind="stable")
    starts = np.searchsorted(cols[order], np.arange(columns + 1))
    by_column = rows[order].tolist()
    taken: dict[int, int] = {}  # the colours that a row has, as bits
    colour = np.full(columns, -1, np.int32)
    for j, (lo, hi) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        if lo == hi:
            continue
        mask = 0
        for i in by_column[lo:hi]:
            mask |= taken.get(i, 0)
        free = ~mask & (mask + 1)  # the lowest bit that isn't set
        colour[j] = free.bit_length() - 1
        for i in by_column[lo:hi]:
            taken[i] = taken.get(i, 0) | free
    return colour
