"""Pairs of entries in the same row of a sparse matrix, and groups of coupled unknowns."""

from __future__ import annotations

import math

import numpy as np

_MOST_GRAM_PAIRS = 2**22  # largest number of pairs; the indices take 0.1 GB and one second to sort


class ManyPairsError(Exception):
    """Raised if the pairs of entries don't fit in memory."""


def coupled(rows: np.ndarray, cols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of different columns with entries in a common row, larger index first."""
    keys = distinct(rows.astype(np.int64) * (cols.max(initial=0) + 1) + cols)
    rows, cols = np.divmod(keys, cols.max(initial=0) + 1)
    a, b = row_pairs(rows)
    return distinct_edges(cols[a], cols[b])


def row_pairs(owner: np.ndarray, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Index all pairs of equal values in a sorted array, including pairs of an index with itself.

    Args:
        owner: The array.
        most: The largest number of pairs; None for 2^22.

    Returns:
        The larger index and the smaller index of every pair.

    Raises:
        ManyPairsError: If there are more than `most` pairs.
    """
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]]) if owner.size else owner[:0]
    counts = np.diff(np.r_[starts, owner.size])
    if np.sum(counts * (counts + 1) // 2) > (_MOST_GRAM_PAIRS if most is None else most):
        raise ManyPairsError
    # Index p is paired with all indices from the start of its run of equal values to p.
    offset = np.arange(owner.size) - np.repeat(starts, counts)  # from the start of the run
    a = np.repeat(np.arange(owner.size), offset + 1)
    ends = np.cumsum(offset + 1)
    b = np.arange(a.size) - np.repeat(ends - offset - 1, offset + 1)
    return a, b + np.repeat(np.repeat(starts, counts), offset + 1)


def pattern_product(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Pattern of the product of two sparse matrices, possibly with duplicates.

    An entry `(i, k)` of the first matrix contributes the entries `(i, j)` for all columns `j` of
    row `k` of the second matrix.

    Args:
        a: The rows and the columns of the entries of the first matrix.
        b: The rows and the columns of the entries of the second matrix, sorted by row.
    """
    first, stop = (np.searchsorted(b[0], a[1], side) for side in ("left", "right"))
    count = stop - first
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(a[0], count), b[1][np.repeat(first, count) + offset]


def distinct_edges(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct pairs of different numbers, with the larger number of each pair first."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    bound = int(high.max(initial=0)) + 1
    high, low = high[high != low].astype(np.int64), low[high != low]
    high, low = np.divmod(distinct(high * bound + low), bound)
    return high, low


def distinct(keys: np.ndarray) -> np.ndarray:
    """Return the sorted distinct values of an array."""
    keys = np.sort(keys)  # faster than `np.unique`, which hashes
    return keys[np.r_[True, keys[1:] != keys[:-1]]] if keys.size else keys


Shapes = tuple[tuple[int, ...], ...]
"""The shapes of the params' leaves."""

# Largest number of different group sizes. The compiled program has operations for each pair of
# sizes, and four sizes have 10 pairs.
_SIZES = 4


def unknown_groups(rows: np.ndarray, cols: np.ndarray, n: int, leaves: Shapes) -> np.ndarray:
    """Partition the unknowns into groups that are eliminated together, as dense blocks.

    The slices of a leaf along its first axis are groups if most slices have a residual that depends
    on all unknowns of the slice. Groups that are coupled to the same groups are merged, unless this
    results in too many different group sizes. If there are still too many sizes, every unknown is a
    group.

    Args:
        rows: The residual of every entry of the Jacobian.
        cols: The unknown of every entry.
        n: The number of unknowns.
        leaves: The shapes of the params' leaves, if known.

    Returns:
        The index of the group of each unknown.
    """
    single = np.arange(n)
    slices = _slice_groups(rows, cols, n, leaves) if sum(map(math.prod, leaves)) == n else single
    merged = _merge_equal_neighbors(rows, cols, slices)
    candidates = (merged, slices, single)
    return next(g for g in candidates if np.unique(np.bincount(g)).size <= _SIZES)


def _slice_groups(rows: np.ndarray, cols: np.ndarray, n: int, leaves: Shapes) -> np.ndarray:
    """Make each slice of a leaf a group if most slices are full, else each unknown."""
    parts, start = [], 0
    for shape in leaves:
        size = math.prod(shape)
        group = np.arange(size)
        if len(shape) > 1 and size:
            width = size // shape[0]
            in_leaf = (cols >= start) & (cols < start + size)
            # One key per residual and slice; the key occurs `width` times if the slice is full.
            keys, count = np.unique(
                rows[in_leaf].astype(np.int64) * shape[0] + (cols[in_leaf] - start) // width,
                return_counts=True,
            )
            full = np.unique(keys[count == width] % shape[0])
            group = group // width if 2 * full.size > shape[0] else group
        parts.append(start + group)
        start += size
    return np.unique(np.concatenate(parts), return_inverse=True)[1]


def _merge_equal_neighbors(rows: np.ndarray, cols: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Merge groups that are coupled to the same groups."""
    a, b = coupled(rows, group[cols])
    groups = int(group.max(initial=0)) + 1
    # Each set of groups is hashed to the sum of random 64-bit numbers (Zobrist 1970).
    number = np.random.default_rng(0).integers(2**63, size=groups, dtype=np.uint64)
    total = number.copy()  # a group is in its own set
    np.add.at(total, a, number[b])
    np.add.at(total, b, number[a])
    return np.unique(total, return_inverse=True)[1][group]
