"""The order of a sparse Cholesky factorization, and the entries that fill in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class SparseOrder(NamedTuple):
    """An elimination order of groups of unknowns, and its cost."""

    groups: np.ndarray  # in the order of elimination
    entries: int  # of the factor
    multiplications: int  # of one factorization
    widest: int  # largest number of entries in a column of the factor


def minimum_degree(
    size: np.ndarray, a: np.ndarray, b: np.ndarray, most: float
) -> SparseOrder | None:
    """Order groups of unknowns by multiple minimum degree.

    Args:
        size: The number of unknowns of each group.
        a: The first group of each pair of coupled groups.
        b: The second group of each pair.
        most: The number of multiplications at which another method is cheaper.

    Returns:
        The order; None if the factorization takes `most` multiplications or more.

    Reference:
        Liu (1985), Modification of the minimum-degree algorithm by multiple elimination; Liu
        (1990), The role of elimination trees in sparse factorization.
    """
    from scipy.sparse import coo_matrix  # a requirement of JAX, slow to import
    from scipy.sparse.linalg import spilu

    i = np.arange(size.size)
    degree = np.bincount(np.r_[a, b], minlength=i.size) + 1.0  # with it the matrix is regular
    entries = np.r_[degree, np.full(2 * a.size, -1.0)]
    at = np.r_[i, a, b], np.r_[i, b, a]
    # SuperLU orders the columns by multiple minimum degree. The numbers are of no interest, so that
    # an incomplete factorization, which drops them, is enough.
    order = np.argsort(
        spilu(
            coo_matrix((entries, at), (i.size, i.size)).tocsc(),
            drop_tol=1.0,
            fill_factor=1,
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        ).perm_c
    )
    place = np.argsort(order)
    return _counted(order, size[order].tolist(), place[a], place[b], most)


def _counted(
    order: np.ndarray, size: list[int], a: np.ndarray, b: np.ndarray, most: float
) -> SparseOrder | None:
    """Count the entries of each column, which its parent in the elimination tree inherits."""
    below: list[set[int]] = [set() for _ in size]
    for low, high in zip(np.minimum(a, b).tolist(), np.maximum(a, b).tolist(), strict=True):
        below[low].add(high)
    entries = multiplications = widest = 0
    for k, s in enumerate(size):
        rows, below[k] = below[k], set()
        width = sum(size[j] for j in rows)
        entries += s * (s + 1) // 2 + s * width
        multiplications += s**3 // 3 + s * width * (s + width)
        widest = max(widest, s + width)
        if multiplications >= most:
            return None
        if rows:
            parent = min(rows)
            rows.discard(parent)
            below[parent] |= rows
    return SparseOrder(order, entries, multiplications, widest)
