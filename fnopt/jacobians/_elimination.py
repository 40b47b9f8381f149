"""Elimination orders for sparse normal equations, planned on the host."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from fnopt.jacobians._colouring import Sparsity
from fnopt.jacobians._minimum_degree import SparseOrder, minimum_degree
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

# Cost of a multiplication of SuperLU, relative to dense Cholesky factorization: 1.7e9 against 1e10
# multiplications a second, for the sphere of docs/performance.md (one CPU core, SciPy 1.17).
_SPARSE_COST = 6
# Most multiplications of a dense factorization: 2 s on a CPU core, as many multiplications as 200
# products with a Jacobian of 1e8 entries.
_MOST = 2e10


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
    """Index arrays that sum the blocks of the Gram matrix from the entries of the Jacobian."""

    # Per group size: indices of entries [rows, size]. An index past the end means 0.
    rows: dict[int, np.ndarray]
    products: dict[Sizes, tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True, eq=False)
class Elimination:
    r"""Plan of a block Cholesky factorization of :math:`J^T J`, from the pattern of `J`.

    Unknowns are grouped. A level eliminates uncoupled groups together, for example the points of a
    bundle adjustment, and the Schur complement is a dense matrix. If a sparse factorization of all
    unknowns is cheaper, as for a graph of poses, the host makes it.

    Args:
        order: The unknowns in the order of elimination, of shape `[n]`.
        blocks: For every shape, the first row and the first column of each block.
        gram: Index arrays for the blocks of the Gram matrix.
        level: The level, or None.
        sparse: The order and the cost of the sparse factorization; None for a dense one.
        residuals: The number of residuals.
        instead: The linear solver that `least_squares` uses instead; empty if it eliminates.

    Example:
        >>> def seen(p):  # each of 400 points by four of 20 cameras
        ...     k = (jnp.arange(400) + jnp.arange(4)[:, None]) % 20
        ...     return jnp.sum(p["camera"][k], -1) + jnp.sum(p["point"], -1) ** 2
        >>> start = {"camera": jnp.ones((20, 4)), "point": jnp.ones((400, 3))}
        >>> print(fnopt.sparse_jacobian(seen).plan(start))
        elimination of 1280 unknowns from 1600 residuals
          first: 400 groups of 3
          left: 80 unknowns, dense Cholesky
          factor: 29,200 numbers, 423,866 multiplications

    Reference:
        Brown (1958), A solution to the general problem of multiple station analytical
        stereotriangulation; Triggs et al. (2000), Bundle adjustment: a modern synthesis, section 6.
    """

    order: np.ndarray
    blocks: dict[Sizes, tuple[np.ndarray, np.ndarray]]
    gram: Gram
    level: Level | None
    sparse: SparseOrder | None
    residuals: int
    instead: str = ""

    @functools.cached_property
    def position(self) -> np.ndarray:
        """Position of each unknown in the elimination order."""
        return np.argsort(self.order)

    @property
    def eliminated(self) -> int:
        """Number of unknowns that the level eliminates."""
        return self.level.stop if self.level else 0

    @property
    def left(self) -> int:
        """Number of unknowns after the level."""
        return self.order.size - self.eliminated

    @property
    def is_affordable(self) -> bool:
        """Whether a CPU core can afford the factorization; else use conjugate gradients."""
        return bool(self.blocks) and (self.sparse is not None or self.left**3 / 3 <= _MOST)

    @property
    def widest(self) -> int:
        """Upper bound on the number of entries in a row of the factor."""
        if self.sparse:
            return self.sparse.widest
        return self.left + (self.level.size if self.level else 0)

    @property
    def entries(self) -> int:
        """Number of entries of the factor."""
        if self.sparse:
            return self.sparse.entries
        stored = sum(
            int(np.sum(at[1] < self.eliminated)) * a * b for (a, b), at in self.blocks.items()
        )
        return stored + self.left**2

    @property
    def multiplications(self) -> int:
        """Number of multiplications of one factorization."""
        if self.sparse:
            return self.sparse.multiplications
        return (self.level.multiplications if self.level else 0) + self.left**3 // 3

    def __str__(self) -> str:
        of = f"{self.order.size} unknowns from {self.residuals} residuals"
        if self.instead:
            return f"{of}: {self.instead}"
        lines = [f"elimination of {of}"]
        if self.level:
            lines.append(f"  first: {self.level.groups} groups of {self.level.size}")
        if not self.is_affordable:
            lines.append(f"  left: {self.left} unknowns, too many for a factor")
            return "\n".join([*lines, "  steps by conjugate gradients on all unknowns instead"])
        how = "sparse Cholesky on the host" if self.sparse else "dense Cholesky"
        lines.append(f"  left: {self.left} unknowns, {how}")
        cost = f"{self.entries:,} numbers, {self.multiplications:,} multiplications"
        return "\n".join([*lines, f"  factor: {cost}"])


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
        0
    """
    rows, cols, (m, n) = sparsity.rows, sparsity.cols, sparsity.shape
    if by_rows:
        rows, cols, m, n = cols, rows, n, m
    try:
        return _planned(rows, cols, m, n, sparsity.leaves)
    except ManyPairsError:  # full rows couple too many unknowns
        return Elimination(np.arange(n), {}, Gram({}, {}), None, None, m)


def _planned(rows: np.ndarray, cols: np.ndarray, m: int, n: int, leaves: Shapes) -> Elimination:
    """Plan the elimination for the entries `rows`, `cols` of a Jacobian `[m, n]`.

    The vertices of the Gram graph are groups of unknowns. Groups that share a residual are coupled
    by an edge. Eliminating an independent set couples the neighbors of each of its groups
    (fill-in), and a dense matrix of the other groups remains.
    """
    group = _numbered(unknown_groups(rows, cols, n, leaves))  # [n], the group of each unknown
    size = np.bincount(group)  # [groups], the number of unknowns
    edges = coupled(rows, group[cols])  # two arrays [edges] of groups
    independent = _independent_set(size, *edges)
    fill = independent.fill_in()
    dense = _dense_multiplications(size, independent, fill)
    sparse = minimum_degree(size, *edges, min(dense, _MOST) / _SPARSE_COST)
    if sparse is None:
        eliminated = independent.groups.size
        others = np.setdiff1d(np.arange(size.size), independent.groups)
        groups = np.r_[independent.groups, others]  # [groups], in the order of elimination
        edges = distinct_edges(np.r_[edges[0], fill[0]], np.r_[edges[1], fill[1]])
    else:
        eliminated, groups = 0, sparse.groups
    position = np.argsort(groups)  # [groups], in the order of elimination
    order = np.lexsort((np.arange(n), position[group]))  # [n], the unknowns in this order
    layout = _Layout(size[groups], *distinct_edges(position[edges[0]], position[edges[1]]))
    level = layout.level(eliminated) if eliminated else None
    gram = _gram(layout, rows, position[group[cols]], np.argsort(order)[cols])
    return Elimination(order, layout.blocks, gram, level, sparse, m)


def _numbered(group: np.ndarray) -> np.ndarray:
    """Number groups in the order of their first unknowns.

    Coupled groups often have neighboring unknowns. This order gives minimum degree better ties: on
    the sphere of docs/performance.md 2.6e8 instead of 4.3e8 multiplications.
    """
    first = np.unique(group, return_index=True)[1]  # [groups], the first unknown
    return np.argsort(np.argsort(first))[group]


class _IndependentSet(NamedTuple):
    """Groups of one size of which no two are coupled, and their edges in the Gram graph."""

    groups: np.ndarray  # [eliminated], ascending
    members: np.ndarray  # [edges], the group of the set, ascending
    neighbors: np.ndarray  # [edges], the group outside of the set

    def fill_in(self) -> tuple[np.ndarray, np.ndarray]:
        """All pairs of neighbors of the same group; a neighbor also pairs with itself."""
        a, b = row_pairs(self.members)
        return self.neighbors[a], self.neighbors[b]


def _independent_set(size: np.ndarray, a: np.ndarray, b: np.ndarray) -> _IndependentSet:
    """Return uncoupled groups of the size with the most unknowns.

    The groups with the fewest neighboring unknowns come first, as in a minimum-degree order.
    """
    one, other = np.r_[a, b], np.r_[b, a]  # every edge in both directions
    by_one = np.argsort(one, kind="stable")
    one, other = one[by_one], other[by_one]
    degree = np.bincount(one, size[other], size.size)  # [groups], the neighboring unknowns
    # The neighbors of group g are near[starts[g] : starts[g + 1]].
    starts = np.searchsorted(one, np.arange(size.size + 1)).tolist()
    near, blocked, taken = other.tolist(), bytearray(size.size), []
    for g in np.argsort(degree, kind="stable").tolist():
        if not blocked[g]:
            taken.append(g)
            for h in near[starts[g] : starts[g + 1]]:
                blocked[h] = 1
    found = np.sort(np.asarray(taken, np.int64))
    found = found[size[found] == np.argmax(np.bincount(size[found], size[found]))]
    here = np.isin(one, found)
    return _IndependentSet(found, one[here], other[here])


def _dense_multiplications(
    size: np.ndarray, independent: _IndependentSet, fill: tuple[np.ndarray, np.ndarray]
) -> float:
    """Number of multiplications for the Schur complement and for its dense factorization."""
    s = int(size[independent.groups[:1]].sum())  # 0 without groups
    left = int(size.sum()) - s * independent.groups.size
    return left**3 / 3 + s * float(size[fill[0]] @ size[fill[1]])


class _Layout:
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


def _gram(layout: _Layout, rows: np.ndarray, group: np.ndarray, position: np.ndarray) -> Gram:
    """Return the index arrays for the Gram matrix.

    Args:
        layout: The blocks.
        rows: The row of every entry of the Jacobian.
        group: The group of every entry, by its position in the order of elimination.
        position: The position of the unknown of every entry in the order of elimination.
    """
    groups = layout.size.size
    keys, part = np.unique(rows.astype(np.int64) * groups + group, return_inverse=True)
    # A part consists of a row's entries in one group: the row and the group of each part.
    row, of = np.divmod(keys, groups)
    local, parts = np.zeros_like(of), {}  # local: index among the parts of its group size
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
