"""Which columns of a symmetric sparse matrix one product can show, of every entry once."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from fnopt.jacobians._colouring import ColumnColours, Sparsity


class SymmetricSparsity(ColumnColours):
    """The sparsity pattern of a symmetric matrix, and a star colouring of its columns.

    An entry stands in the matrix twice, so one place where it is alone is enough: in row `i` of the
    sum of the columns of `j`'s colour, or in row `j` of the sum of those of `i`'s. In a star
    colouring each has such a place: columns with an entry in common differ, and so does one of
    every four in a row that are connected one after the other.

    It is compared by identity: one object belongs to one compiled program.

    Args:
        rows: The row of every entry, int array of shape `[entries]`; one of the two triangles is
            enough.
        cols: Its column.
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
        unique = np.unique(np.r_[i * size + j, j * size + i])
        self.rows, self.cols = (part.astype(np.int32) for part in np.divmod(unique, size))
        self.shape = (size, size)

    @functools.cached_property
    def colour(self) -> np.ndarray:
        """The colour of every column; -1 for one without entries."""
        neighbours = self._neighbours()
        natural = range(self.shape[0])
        fullest = sorted(natural, key=lambda v: -len(neighbours[v]))
        found = [_star(neighbours, order) for order in (natural, fullest)]
        # Columns without a row in common are a star colouring too, now and then one of fewer.
        found.append(Sparsity(self.rows, self.cols, self.shape).colour)
        colour = min(found, key=lambda colour: int(colour.max(initial=0)))
        colour[np.setdiff1d(np.arange(self.shape[0]), self.rows)] = -1
        return colour

    @functools.cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """For every entry the row and the colour of the sums in which it is alone."""
        i, j = np.minimum(self.rows, self.cols), np.maximum(self.rows, self.cols)
        place = np.stack([self._place(i, j), self._place(j, i)])  # both of each
        taken, count = np.unique(self._place(self.rows, self.cols), return_counts=True)
        alone = count[np.searchsorted(taken, place[0])] == 1
        found = np.where(alone, *place)  # the same one for both
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
    """Gives every column the first colour that leaves no path of four with two colours only."""
    colour = np.full(len(neighbours), -1, np.int32)
    known = [-1] * len(neighbours)
    seen: list[dict[int, int]] = [{} for _ in neighbours]  # by vertex: how often a colour is near
    near = [0] * len(neighbours)  # by vertex: the colours that are near, as bits
    for v in order:
        taken = near[v]
        for w in neighbours[v]:
            if known[w] < 0:
                continue
            if seen[v][known[w]] > 1:  # v in the middle, between w and another of its colour
                taken |= near[w]
                continue
            for x in neighbours[w]:  # v at the end of v - w - x - y, with y of w's colour
                if known[x] >= 0 and seen[x][known[w]] > 1:
                    taken |= 1 << known[x]
        free = ~taken & (taken + 1)  # the lowest bit that isn't set
        known[v] = free.bit_length() - 1
        for w in neighbours[v]:
            seen[w][known[v]] = seen[w].get(known[v], 0) + 1
            near[w] |= free
    colour[:] = known
    return colour
