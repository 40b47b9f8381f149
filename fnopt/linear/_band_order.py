"""An order of unknowns that brings the entries of a symmetric matrix near its diagonal."""

from __future__ import annotations

import numpy as np


def reverse_cuthill_mckee(rows: np.ndarray, cols: np.ndarray, n: int) -> np.ndarray:
    r"""Numbers a graph level by level, from one end of it.

    From a node that is far from others, neighbours are numbered in turn, those of few neighbours
    first. An edge then joins nodes of one level or of two adjacent ones, so the bandwidth is below
    the sizes of two levels.

    Args:
        rows: One end of every edge, both directions and loops or not, int array of shape `[k]`.
        cols: The other ends.
        n: How many nodes there are.

    Returns:
        The nodes in their new order, an int array of shape `[n]`.

    Example:
        >>> import numpy as np
        >>> from fnopt.linear import reverse_cuthill_mckee
        >>> path = np.asarray([0, 3, 1, 4, 2])  # a chain whose nodes are badly numbered
        >>> a, b = np.r_[path[1:], path[:-1]], np.r_[path[:-1], path[1:]]
        >>> reverse_cuthill_mckee(a, b, 5).tolist()
        [0, 3, 1, 4, 2]

    Reference:
        Cuthill and McKee (1969), Reducing the bandwidth of sparse symmetric matrices; George and
        Liu (1979), An implementation of a pseudoperipheral node finder.
    """
    degree = np.bincount(rows, minlength=n)
    by_degree = np.lexsort((degree[cols], rows))
    ends = np.cumsum(degree)
    neighbours = [part.tolist() for part in np.split(cols[by_degree], ends[:-1])]
    order: list[int] = []
    seen = bytearray(n)
    for node in np.argsort(degree, kind="stable").tolist():
        if not seen[node]:
            order += _component(neighbours, node, seen)
    return np.asarray(order[::-1], np.int64)


def _component(neighbours: list[list[int]], node: int, seen: bytearray) -> list[int]:
    """The nodes that can be reached, from a far end."""
    far, depth = _levels(neighbours, node, bytearray(seen))
    while True:
        last = min(far[-1], key=lambda k: len(neighbours[k]))
        again, deeper = _levels(neighbours, last, bytearray(seen))
        if deeper <= depth:
            break
        far, depth = again, deeper
    levels, _ = _levels(neighbours, last, seen)
    return [k for level in levels for k in level]


def _levels(neighbours: list[list[int]], node: int, seen: bytearray) -> tuple[list[list[int]], int]:
    """The nodes by their distance from one; marks them as seen."""
    levels, level = [], [node]
    seen[node] = True
    while level:
        levels.append(level)
        following = []
        for k in level:
            for j in neighbours[k]:
                if not seen[j]:
                    seen[j] = True
                    following.append(j)
        level = following
    return levels, len(levels)
