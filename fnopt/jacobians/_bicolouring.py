"""Patterns with a few full rows or columns: these in one direction, the rest in the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fnopt.jacobians._colouring import Sparsity

_TRIED, _LOOKED_AT = 4, 64


class Bicolouring:
    """A partition of a pattern: entries found by columns, and entries found by rows.

    It is compared by identity, as :class:`Sparsity` is.

    Args:
        columns: The entries that sums of columns show, of shape `[m, n]`.
        rows: The transposes of those that sums of rows show, of shape `[n, m]`.
    """

    def __init__(self, columns: Sparsity, rows: Sparsity) -> None:
        self.columns, self.rows = columns, rows
        all_rows, all_cols = np.r_[columns.rows, rows.cols], np.r_[columns.cols, rows.rows]
        self.whole = Sparsity(all_rows, all_cols, columns.shape)
        self.order = np.lexsort((all_cols, all_rows))  # of the entries of both parts, row by row

    @property
    def colours(self) -> int:
        """The number of sums, of columns and of rows."""
        return self.columns.colours + self.rows.colours


def bicolouring(
    rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], most: int
) -> Bicolouring | None:
    """Takes the fullest rows by rows and the rest by columns, or the other way round.

    An arrow (a diagonal, a full row and a full column) has as many colours as columns, and as
    many as rows, but three so: the full row by itself, the full column, and the diagonal. A row
    that isn't summed shows nothing in the sums of rows, and in the sums of columns nobody looks at
    the full rows, so that both parts are coloured as if they were all.

    Args:
        rows: The row of every entry.
        cols: Its column.
        shape: The numbers of rows and of columns.
        most: How many colours are too many.

    Returns:
        The partition with the fewest colours that were found; None if all have too many.

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
        here = full[cols if by_columns else rows]  # which entries are of the full part
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
    """Which rows count as full, in some ways, and how many colours that takes at least."""
    degree = np.bincount(rows, minlength=shape[0])
    counts = np.unique(degree[degree > 0])[:-1]  # the fullest of the others
    for count in counts[:_LOOKED_AT].tolist():
        full = degree > count
        crossed = np.bincount(cols[full[rows]], minlength=1).max()
        yield int(count + crossed), full
