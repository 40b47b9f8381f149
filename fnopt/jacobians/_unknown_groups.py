"""Groups of the unknowns of a sparse problem."""

from __future__ import annotations

import math

import numpy as np

from fnopt.jacobians._pairs import coupled

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of the params' leaves."""

_SIZES = 4  # different sizes of groups at most: every pair of sizes is a part of the program


def unknown_groups(rows: np.ndarray, cols: np.ndarray, n: int, leaves: Shapes) -> np.ndarray:
    """The number of the group that each unknown belongs to.

    The rows of a leaf (the first axis counts them) are groups, if for most of them some residual
    depends on all of their unknowns. Then groups that are coupled with the same ones are joined.
    Where that gives groups of many sizes, they aren't; at last every unknown is a group.

    Args:
        rows: The residual of every entry of the Jacobian.
        cols: Its unknown.
        n: The number of unknowns.
        leaves: The shapes of the params' leaves, if they are known.
    """
    alone = np.arange(n)
    by_row = _full_rows(rows, cols, n, leaves) if sum(map(math.prod, leaves)) == n else alone
    joined = _joined(rows, cols, by_row)
    candidates = (joined, by_row, alone)
    return next(g for g in candidates if np.unique(np.bincount(g)).size <= _SIZES)


def _full_rows(rows: np.ndarray, cols: np.ndarray, n: int, leaves: Shapes) -> np.ndarray:
    """The rows of the leaves, where most of them are full; else single unknowns."""
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
    """Join groups that are coupled to the same groups."""
    a, b = coupled(rows, group[cols])
    groups = int(group.max(initial=0)) + 1
    # A sum of random 64-bit numbers stands for a set of groups (Zobrist 1970).
    number = np.random.default_rng(0).integers(2**63, size=groups, dtype=np.uint64)
    total = number.copy()
    np.add.at(total, a, number[b])
    np.add.at(total, b, number[a])
    return np.unique(total, return_inverse=True)[1][group]
