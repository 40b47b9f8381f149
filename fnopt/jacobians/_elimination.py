"""Elimination orders for sparse normal equations, planned on the host."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from fnopt.jacobians._colouring import Sparsity
from fnopt.jacobians._pairs import (
    ManyPairsError,
    Shapes,
    coupled,
    distinct_edges,
    row_pairs,
    unknown_groups,
)

Sizes = tuple[int, int]
"""The shape of a block: the size of the later group, then the size of the earlier group."""

# Multiplications of the dense factor that cost as much as one level, which adds to compile time.
# On the pose graph M3500 1e6, 2e7 and 1e8 give 36, 16 and 10 levels: 22, 12 and 8 s to compile,
# 0.38, 0.32 and 0.45 s to solve (docs/performance.md, sparse problems).
_LEVEL = 5 * 10**7
# Largest number of neighbouring unknowns, relative to the mean, of a group that this level
# eliminates. On M3500 the values 1 to 3 give 36 to 40 levels if all unknowns are eliminated, and
# 1.3e7 to 1.9e7 multiplications.
_FAR = 2.0
_PATIENCE = 3  # consecutive levels without a lower cost, before planning stops
# Unknowns of the dense matrix. The Cholesky factor of a larger one takes over 2e10 multiplications.
_LEFT = 4096


class EliminationLevel(NamedTuple):
    """Uncoupled groups of one size, which are eliminated together."""

    size: int  # number of unknowns in a group
    start: int  # index of the first unknown
    stop: int  # index after the last unknown
    first: int  # index of the first group, among the groups of its size
    blocks: dict[int, slice]  # by the size of the neighbour: the blocks below the diagonal
    products: dict[Sizes, tuple[np.ndarray, np.ndarray, np.ndarray]]
    """Pairs of blocks of a group, and the block from which their product is subtracted."""


class Gram(NamedTuple):
    """Index arrays that sum the blocks of the Gram matrix from the entries of the Jacobian."""

    # Per group size: indices of entries [rows, size]. An index past the end means 0.
    rows: dict[int, np.ndarray]
    products: dict[Sizes, tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True, eq=False)
class Elimination:
    r"""Plan of a block Cholesky factorisation of :math:`J^T J`, from the pattern of `J`.

    Unknowns are grouped. Each level eliminates uncoupled groups together: for example the points of
    a bundle adjustment, or every second pose of a chain. The Schur complement after the last level
    is a dense matrix.

    Args:
        order: The unknowns in the order of elimination, of shape `[n]`.
        blocks: For every shape, the first row and the first column of each block.
        gram: Index arrays for the blocks of the Gram matrix.
        levels: The levels.
        residuals: The number of residuals.
        instead: The linear algebra that `least_squares` uses instead; empty if it eliminates.

    Example:
        >>> def seen(p):  # each of 400 points by four of 20 cameras
        ...     k = (jnp.arange(400) + jnp.arange(4)[:, None]) % 20
        ...     return jnp.sum(p["camera"][k], -1) + jnp.sum(p["point"], -1) ** 2
        >>> start = {"camera": jnp.ones((20, 4)), "point": jnp.ones((400, 3))}
        >>> print(fnopt.sparse_jacobian(seen).plan(start))
        elimination of 1280 unknowns from 1600 residuals
          level 1: 400 groups of 3
          left: 80 unknowns, dense Cholesky
          factor: 29,200 numbers, 423,866 multiplications

    Reference:
        Brown (1958), A solution to the general problem of multiple station analytical
        stereotriangulation; Liu (1985), Modification of the minimum-degree algorithm by multiple
        elimination; Triggs et al. (2000), Bundle adjustment: a modern synthesis, section 6.
    """

    order: np.ndarray
    blocks: dict[Sizes, tuple[np.ndarray, np.ndarray]]
    gram: Gram
    levels: list[EliminationLevel]
    residuals: int
    instead: str = ""

    @functools.cached_property
    def position(self) -> np.ndarray:
        """Position of each unknown in the elimination order."""
        return np.argsort(self.order)

    @property
    def eliminated(self) -> int:
        """Number of unknowns that the levels eliminate."""
        return self.levels[-1].stop if self.levels else 0

    @property
    def left(self) -> int:
        """Number of unknowns in the dense matrix after the last level."""
        return self.order.size - self.eliminated

    @property
    def is_affordable(self) -> bool:
        """Whether a CPU core can afford the factorisation; else use conjugate gradients."""
        return bool(self.blocks) and self.left <= _LEFT

    @property
    def widest(self) -> int:
        """Upper bound on the number of entries in a row of the factor."""
        return self.left + max((level.size for level in self.levels), default=0)

    @property
    def entries(self) -> int:
        """Number of entries of the factor."""
        stored = sum(
            int(np.sum(at[1] < self.eliminated)) * a * b for (a, b), at in self.blocks.items()
        )
        return stored + self.left**2

    @property
    def multiplications(self) -> int:
        """Number of multiplications of one factorisation."""
        return sum(map(_level_cost, self.levels)) + self.left**3 // 3

    def __str__(self) -> str:
        of = f"{self.order.size} unknowns from {self.residuals} residuals"
        if self.instead:
            return f"{of}: {self.instead}"
        lines = [f"elimination of {of}"]
        for k, level in enumerate(self.levels):
            groups = (level.stop - level.start) // level.size
            lines.append(f"  level {k + 1}: {groups} groups of {level.size}")
        how = "dense Cholesky" if self.is_affordable else "too many for a factor"
        lines.append(f"  left: {self.left} unknowns, {how}")
        if not self.is_affordable:
            return "\n".join([*lines, "  steps by conjugate gradients on all unknowns instead"])
        cost = f"{self.entries:,} numbers, {self.multiplications:,} multiplications"
        return "\n".join([*lines, f"  factor: {cost}"])


def _level_cost(level: EliminationLevel) -> int:
    s = level.size
    groups = (level.stop - level.start) // s
    solves = sum((at.stop - at.start) * t * s * s for t, at in level.blocks.items())
    sums = sum(a.size * t * u * s for (t, u), (a, _, _) in level.products.items())
    return groups * s**3 // 3 + solves + sums


@functools.lru_cache(maxsize=8)
def elimination(sparsity: Sparsity, by_rows: bool = False) -> Elimination:
    """Plan the elimination for a sparse Jacobian.

    Args:
        sparsity: The pattern of the Jacobian, or of its transpose.
        by_rows: Whether `sparsity` is the pattern of the transpose.

    Returns:
        The plan; it has no blocks if full rows couple too many unknowns.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians import Sparsity, elimination
        >>> i = np.arange(4)
        >>> elimination(Sparsity(i, i, (4, 4))).left
        4
    """
    rows, cols, (m, n) = sparsity.rows, sparsity.cols, sparsity.shape
    if by_rows:
        rows, cols, m, n = cols, rows, n, m
    try:
        return _planned(rows, cols, m, n, sparsity.leaves)
    except ManyPairsError:  # full rows couple too many unknowns
        return Elimination(np.arange(n), {}, Gram({}, {}), [], m)


def _planned(rows: np.ndarray, cols: np.ndarray, m: int, n: int, leaves: Shapes) -> Elimination:
    group = unknown_groups(rows, cols, n, leaves)
    size = np.bincount(group)
    levels, between = _levels(size, *coupled(rows, group[cols]))
    taken = np.concatenate([*levels, np.arange(0)])
    rest = np.setdiff1d(np.arange(size.size), taken)
    place = np.argsort(np.concatenate([taken, rest]))  # position of each group in the order
    order = np.lexsort((np.arange(n), place[group]))
    laid = _Layout(size[np.argsort(place)], *distinct_edges(*(place[part] for part in between)))
    of_level, first = [], 0
    for level in levels:
        of_level.append(laid.level(first, first + level.size))
        first += level.size
    gram = _gram(laid, rows, place[group[cols]], np.argsort(order)[cols])
    return Elimination(order, laid.blocks, gram, of_level, m)


def _levels(
    size: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[list[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the groups of every level, and all pairs of groups coupled before or after a level."""
    left, dense = np.ones(size.size, bool), int(size.sum())
    levels, now, everything = [], (a, b), [(a, b)]
    spent, best, kept = 0.0, dense**3 / 3, 0
    while dense and spent < best and len(levels) <= kept + _PATIENCE:
        taken, one, other = _next_level(size, left, *now)
        try:
            first, second = row_pairs(one)
        except ManyPairsError:
            break
        s = size[taken[0]]
        spent += _LEVEL + s**2 * float(size[other].sum())
        spent += s * float(size[other[first]] @ size[other[second]])
        left[taken] = False
        dense -= int(size[taken].sum())
        levels.append(taken)
        keep = left[now[0]] & left[now[1]]
        now = distinct_edges(np.r_[now[0][keep], other[first]], np.r_[now[1][keep], other[second]])
        everything.append(now)
        if spent + dense**3 / 3 < best:
            best, kept = spent + dense**3 / 3, len(levels)
    return levels[:kept], distinct_edges(
        *map(np.concatenate, zip(*everything[: kept + 1], strict=True))
    )


def _next_level(
    size: np.ndarray, left: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the groups to eliminate, and the pairs of these groups and their neighbours."""
    one, other = np.r_[a, b], np.r_[b, a]
    by_one = np.argsort(one, kind="stable")
    one, other = one[by_one], other[by_one]
    degree = np.bincount(one, size[other], size.size)
    starts = np.searchsorted(one, np.arange(size.size + 1)).tolist()
    near, blocked = other.tolist(), bytearray(size.size)
    few = _FAR * np.mean(degree[left])
    taken = []
    for g in np.lexsort((degree, ~left))[: int(left.sum())].tolist():
        if degree[g] > few:
            break
        if not blocked[g]:
            taken.append(g)
            for h in near[starts[g] : starts[g + 1]]:
                blocked[h] = 1
    found = np.sort(np.asarray(taken, np.int64))
    found = found[size[found] == np.argmax(np.bincount(size[found], size[found]))]
    mine = np.isin(one, found)
    return found, one[mine], other[mine]


class _Layout:
    """The blocks of the factor, by shape; diagonal blocks come first.

    Args:
        size: The size of every group, in the order of elimination.
        later, earlier: The pairs of different groups with a block in the factor.
    """

    def __init__(self, size: np.ndarray, later: np.ndarray, earlier: np.ndarray) -> None:
        self.size = size
        self.start = np.r_[0, np.cumsum(size)]
        self.rank = np.zeros_like(size)  # index of each group among the groups of its size
        self.blocks: dict[Sizes, tuple[np.ndarray, np.ndarray]] = {}
        self._keys: dict[Sizes, tuple[np.ndarray, int]] = {}
        by_column = np.lexsort((later, earlier))
        later, earlier = later[by_column], earlier[by_column]
        self._of = later, earlier
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
        """Return, for each shape, the factors `a` and `b` of products, and the target blocks."""
        t, u = self.size[later], self.size[earlier]
        found = {}
        for i, j in np.unique(np.stack([t, u]), axis=1).T.tolist():
            here = np.flatnonzero((t == i) & (u == j))
            target = self.find(later[here], earlier[here])
            here, target = here[np.argsort(target, kind="stable")], np.sort(target)
            found[i, j] = a[here].astype(np.int32), b[here].astype(np.int32), target
        return found

    def level(self, first: int, stop: int) -> EliminationLevel:
        """Return the level of the groups `first` to `stop - 1`."""
        later, earlier = self._of
        lo, hi = np.searchsorted(earlier, [first, stop])
        later, earlier = later[lo:hi], earlier[lo:hi]
        s = int(self.size[first])
        blocks, local = {}, np.zeros_like(later)
        for t in np.unique(self.size[later]).tolist():
            here = self.size[later] == t
            at = self.find(later[here], earlier[here])
            blocks[t] = slice(int(at[0]), int(at[-1]) + 1)
            local[here] = np.arange(at.size)
        a, b = row_pairs(earlier)
        products = self.products(later[a], later[b], local[a], local[b])
        return EliminationLevel(
            s,
            int(self.start[first]),
            int(self.start[stop]),
            int(self.rank[first]),
            blocks,
            products,
        )


def _gram(layout: _Layout, rows: np.ndarray, group: np.ndarray, position: np.ndarray) -> Gram:
    """Return the index arrays, from the row, group and order position of every entry."""
    groups = layout.size.size
    keys, part = np.unique(rows.astype(np.int64) * groups + group, return_inverse=True)
    row, of = np.divmod(keys, groups)  # one part per row and group: the row's entries in this group
    local, parts = np.zeros_like(of), {}
    for s in np.unique(layout.size[of]).tolist():
        here = layout.size[of] == s
        local[here] = np.arange(int(here.sum()))
        parts[s] = np.full((int(here.sum()), s), rows.size, np.int32)
    for s, entries in parts.items():
        here = np.flatnonzero(layout.size[group] == s)
        at = local[part[here]], position[here] - layout.start[group[here]]
        entries[at] = here
    a, b = row_pairs(row)  # the groups of a row ascend, so that a is the later one
    return Gram(parts, layout.products(of[a], of[b], local[a], local[b]))
