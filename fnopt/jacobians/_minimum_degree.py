"""Minimum-degree order of a sparse Cholesky factorization, and the size of the factor."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class SparseOrder(NamedTuple):
    """An elimination order of groups of unknowns, and the cost of the factorization."""

    groups: np.ndarray  # indices of the groups in the order of elimination
    entries: int  # number of entries of the factor
    multiplications: int  # number of multiplications of one factorization
    widest: int  # largest number of entries in a column of the factor


def minimum_degree(
    size: np.ndarray, a: np.ndarray, b: np.ndarray, most: float
) -> SparseOrder | None:
    """Order groups of unknowns by multiple minimum degree.

    Args:
        size: The number of unknowns of each group.
        a: The first group of each pair of coupled groups.
        b: The second group of each pair.
        most: The number of multiplications from which another method is cheaper.

    Returns:
        The order; None if the factorization takes `most` multiplications or more.

    Reference:
        Liu (1985), Modification of the minimum-degree algorithm by multiple elimination; Liu
        (1990), The role of elimination trees in sparse factorization.
    """
    from scipy.sparse import coo_matrix  # JAX depends on SciPy, whose import is slow
    from scipy.sparse.linalg import spilu

    i = np.arange(size.size)
    # The graph Laplacian plus the identity is diagonally dominant, so SuperLU finds no zero pivot.
    diagonal = np.bincount(np.r_[a, b], minlength=i.size) + 1.0
    entries = np.r_[diagonal, np.full(2 * a.size, -1.0)]
    indices = np.r_[i, a, b], np.r_[i, b, a]
    # SuperLU orders the columns by multiple minimum degree. Only this order is used, so an
    # incomplete factorization that drops all entries is sufficient.
    order = np.argsort(
        spilu(
            coo_matrix((entries, indices), (i.size, i.size)).tocsc(),
            drop_tol=1.0,
            fill_factor=1,
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        ).perm_c
    )
    position = np.argsort(order)
    return _factor_cost(order, size[order].tolist(), position[a], position[b], most)


def _factor_cost(
    order: np.ndarray, size: list[int], a: np.ndarray, b: np.ndarray, most: float
) -> SparseOrder | None:
    """Count the entries and multiplications of the factor by symbolic factorization.

    A column of the factor has the entries of the matrix's column, and the entries of its children
    in the elimination tree. The parent of a column is the row of its first entry below the
    diagonal.
    """
    # For each column of the factor, the row indices of its entries below the diagonal.
    below: list[set[int]] = [set() for _ in size]
    for low, high in zip(np.minimum(a, b).tolist(), np.maximum(a, b).tolist(), strict=True):
        below[low].add(high)
    entries = multiplications = widest = 0
    for k, s in enumerate(size):
        rows, below[k] = below[k], set()  # frees the memory of columns that are done
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
