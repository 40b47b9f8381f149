"""Elimination orders for sparse normal equations, planned on the host."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from fnopt.errors import count_text
from fnopt.jacobians._blocks import BlockIndex, Gram, Level, Sizes, gram_indices
from fnopt.jacobians._coloring import Sparsity
from fnopt.jacobians._minimum_degree import SparseOrder, minimum_degree
from fnopt.jacobians._pairs import (
    ManyPairsError,
    Shapes,
    coupled,
    distinct_edges,
    row_pairs,
    unknown_groups,
)

# Cost of a multiplication of SuperLU, relative to dense Cholesky factorization: 1.7e9 against 1e10
# multiplications a second, for the sphere of docs/performance.md (one CPU core, SciPy 1.17).
_SPARSE_COST = 6
# Most multiplications of a dense factorization: 2 s on a CPU core, as many multiplications as 200
# products with a Jacobian of 1e8 entries.
_MOST_DENSE_MULTIPLICATIONS = 2e10


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
          eliminated: 400 groups of 3 unknowns
          remaining: 80 unknowns, dense Cholesky
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
        return bool(self.blocks) and (
            self.sparse is not None or self.left**3 / 3 <= _MOST_DENSE_MULTIPLICATIONS
        )

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
            int(np.sum(cols < self.eliminated)) * a * b for (a, b), (_, cols) in self.blocks.items()
        )
        return stored + self.left**2

    @property
    def multiplications(self) -> int:
        """Number of multiplications of one factorization."""
        if self.sparse:
            return self.sparse.multiplications
        return (self.level.multiplications if self.level else 0) + self.left**3 // 3

    def __str__(self) -> str:
        unknowns = count_text(self.order.size, "unknown")
        of = f"{unknowns} from {count_text(self.residuals, 'residual')}"
        if self.instead:
            return f"{of}: {self.instead}"
        lines = [f"elimination of {of}"]
        if self.level:
            groups = count_text(self.level.groups, "group")
            lines.append(f"  eliminated: {groups} of {count_text(self.level.size, 'unknown')}")
        if not self.is_affordable:
            lines.append(f"  remaining: {self.left} unknowns, too many for Cholesky")
            return "\n".join([*lines, "  steps by conjugate gradients on all unknowns instead"])
        how = "sparse Cholesky on the host" if self.sparse else "dense Cholesky"
        lines.append(f"  remaining: {count_text(self.left, 'unknown')}, {how}")
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
        return _plan_from_entries(rows, cols, m, n, sparsity.leaves)
    except ManyPairsError:  # full rows couple too many unknowns
        return Elimination(np.arange(n), {}, Gram({}, {}), None, None, m)


def _plan_from_entries(
    rows: np.ndarray, cols: np.ndarray, m: int, n: int, leaves: Shapes
) -> Elimination:
    """Plan the elimination for the entries `rows`, `cols` of a Jacobian `[m, n]`.

    The vertices of the Gram graph are groups of unknowns. Groups that share a residual are coupled
    by an edge. Eliminating an independent set couples the neighbors of each of its groups
    (fill-in), and a dense matrix of the other groups remains.
    """
    # [n], the group of each unknown
    group = _number_by_first_unknown(unknown_groups(rows, cols, n, leaves))
    size = np.bincount(group)  # [groups], the number of unknowns
    edges = coupled(rows, group[cols])  # two arrays [edges] of groups
    independent = _independent_set(size, *edges)
    fill = independent.fill_in()
    dense = _dense_multiplications(size, independent, fill)
    # A sparse factorization must be faster than the dense one, and affordable itself.
    limit = min(dense, _MOST_DENSE_MULTIPLICATIONS) / _SPARSE_COST
    sparse = minimum_degree(size, *edges, limit)
    if sparse is None:
        eliminated = independent.groups.size
        others = np.setdiff1d(np.arange(size.size), independent.groups)
        groups = np.r_[independent.groups, others]  # [groups], in the order of elimination
        edges = distinct_edges(np.r_[edges[0], fill[0]], np.r_[edges[1], fill[1]])
    else:
        # SuperLU computes the fill-in itself, so only the blocks of the Gram matrix are indexed.
        eliminated, groups = 0, sparse.groups
    group_position = np.argsort(groups)  # [groups], the place of each group in the order
    order = np.lexsort((np.arange(n), group_position[group]))  # [n], the unknowns in this order
    ends = (group_position[end] for end in edges)
    layout = BlockIndex(size[groups], *distinct_edges(*ends))
    level = layout.level(eliminated) if eliminated else None
    gram = gram_indices(layout, rows, group_position[group[cols]], np.argsort(order)[cols])
    return Elimination(order, layout.blocks, gram, level, sparse, m)


def _number_by_first_unknown(group: np.ndarray) -> np.ndarray:
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
    """Return uncoupled groups of one size, which a batched factorization can eliminate.

    The groups with the fewest neighboring unknowns are selected first, as in a minimum-degree
    order. Of the selected groups, those of the size that covers most unknowns are kept.
    """
    source, target = np.r_[a, b], np.r_[b, a]  # every edge in both directions
    by_source = np.argsort(source, kind="stable")
    source, target = source[by_source], target[by_source]
    degree = np.bincount(source, size[target], size.size)  # [groups], the neighboring unknowns
    # The neighbors of group g are near[starts[g] : starts[g + 1]].
    starts = np.searchsorted(source, np.arange(size.size + 1)).tolist()
    near, blocked, selected = target.tolist(), bytearray(size.size), []
    for g in np.argsort(degree, kind="stable").tolist():
        if not blocked[g]:
            selected.append(g)
            for h in near[starts[g] : starts[g + 1]]:
                blocked[h] = 1
    candidates = np.sort(np.asarray(selected, np.int64))
    sizes = size[candidates]
    independent = candidates[sizes == np.argmax(np.bincount(sizes, sizes, 1))]
    in_set = np.isin(source, independent)
    return _IndependentSet(independent, source[in_set], target[in_set])


def _dense_multiplications(
    size: np.ndarray, independent: _IndependentSet, fill: tuple[np.ndarray, np.ndarray]
) -> float:
    """Number of multiplications for the Schur complement and for its dense factorization."""
    s = int(size[independent.groups[:1]].sum())  # 0 without groups
    remaining = int(size.sum()) - s * independent.groups.size
    return remaining**3 / 3 + s * float(size[fill[0]] @ size[fill[1]])
