"""Pairs of entries that share a row, and the groups of unknowns that they couple."""

from __future__ import annotations

import math

import numpy as np

_MOST = 2**22  # pairs: their indices take 0.1 GB, and a second to sort


class ManyPairsError(Exception):
    """The error for pairs that don't fit in memory."""


def coupled(rows: np.ndarray, cols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each pair of different columns that share a row, once, the larger index first."""
    keys = distinct(rows.astype(np.int64) * (cols.max(initial=0) + 1) + cols)
    rows, cols = np.divmod(keys, cols.max(initial=0) + 1)
    a, b = row_pairs(rows)
    return distinct_edges(cols[a], cols[b])


def row_pairs(owner: np.ndarray, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Index pairs `i <= j` of equal values in a sorted array.

    Args:
        owner: The array.
        most: The largest number of pairs; None for 2^22.

    Raises:
        ManyPairsError: If there are more than `most` pairs.
    """
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]]) if owner.size else owner[:0]
    counts = np.diff(np.r_[starts, owner.size])
    if np.sum(counts * (counts + 1) // 2) > (_MOST if most is None else most):
        raise ManyPairsError
    # Position p pairs with all positions from the start of its run of equal values to p.
    before = np.arange(owner.size) - np.repeat(starts, counts)
    a = np.repeat(np.arange(owner.size), before + 1)
    ends = np.cumsum(before + 1)
    b = np.arange(a.size) - np.repeat(ends - before - 1, before + 1)
    return a, b + np.repeat(np.repeat(starts, counts), before + 1)


def pattern_product(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pattern of a product of two matrices; the second pattern is sorted by rows."""
    first, stop = (np.searchsorted(b[0], a[1], side) for side in ("left", "right"))
    count = stop - first
    of = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(a[0], count), b[1][np.repeat(first, count) + of]


def distinct_edges(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each pair of different numbers once, the larger number first."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    bound = int(high.max(initial=0)) + 1
    high, low = high[high != low].astype(np.int64), low[high != low]
    high, low = np.divmod(distinct(high * bound + low), bound)
    return high, low


def distinct(keys: np.ndarray) -> np.ndarray:
    """Return the sorted distinct values of an array, faster than `np.unique`, which hashes."""
    keys = np.sort(keys)
    return keys[np.r_[True, keys[1:] != keys[:-1]]] if keys.size else keys


Shapes = tuple[tuple[int, ...], ...]
"""The shapes of the params' leaves."""

_SIZES = 4  # most different sizes of groups: every pair of sizes adds to the program


def unknown_groups(rows: np.ndarray, cols: np.ndarray, n: int, leaves: Shapes) -> np.ndarray:
    """Return the index of the group of each unknown.

    The slices of a leaf along its first axis are groups, if most of them have a residual that
    depends on all unknowns of the slice. Groups that are coupled to the same groups are merged,
    unless this results in too many different group sizes. If there are still too many sizes, every
    unknown is a group.

    Args:
        rows: The residual of every entry of the Jacobian.
        cols: The unknown of every entry.
        n: The number of unknowns.
        leaves: The shapes of the params' leaves, if known.
    """
    alone = np.arange(n)
    by_row = _full_rows(rows, cols, n, leaves) if sum(map(math.prod, leaves)) == n else alone
    joined = _joined(rows, cols, by_row)
    candidates = (joined, by_row, alone)
    return next(g for g in candidates if np.unique(np.bincount(g)).size <= _SIZES)


def _full_rows(rows: np.ndarray, cols: np.ndarray, n: int, leaves: Shapes) -> np.ndarray:
    """Make each slice of a leaf a group if most of them are full, else each unknown."""
    parts, start = [], 0
    for shape in leaves:
        size = math.prod(shape)
        of = np.arange(size)
        if len(shape) > 1 and size:
            width = size // shape[0]
            here = (cols >= start) & (cols < start + size)
            row, count = np.unique(
                rows[here].astype(np.int64) * shape[0] + (cols[here] - start) // width,
                return_counts=True,
            )
            full = np.unique(row[count == width] % shape[0])
            of = of // width if 2 * full.size > shape[0] else of
        parts.append(start + of)
        start += size
    return np.unique(np.concatenate(parts), return_inverse=True)[1]


def _joined(rows: np.ndarray, cols: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Merge groups that are coupled to the same groups."""
    a, b = coupled(rows, group[cols])
    groups = int(group.max(initial=0)) + 1
    # A sum of random 64-bit numbers stands for a set of groups (Zobrist 1970).
    number = np.random.default_rng(0).integers(2**63, size=groups, dtype=np.uint64)
    total = number.copy()
    np.add.at(total, a, number[b])
    np.add.at(total, b, number[a])
    return np.unique(total, return_inverse=True)[1][group]
