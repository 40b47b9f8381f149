"""Table of sets of inputs; arrays of sets are arrays of their indices in the table."""

from __future__ import annotations

import numpy as np

from fnopt.jacobians._pairs import distinct

EMPTY, ALL = 0, 1
_MOST = 2**25  # members that are processed together; larger sets are replaced by ALL


class Sets:
    r"""Table of subsets of `{0, ..., size - 1}`; all tables have the same `EMPTY` and `ALL`.

    Unions are computed for many sets at once, not in a Python loop. Two indices may refer to equal
    sets; a union that equals one of its parts has the index of that part.

    Args:
        size: Number of inputs.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians.dependence import Sets
        >>> sets = Sets(4)
        >>> x = sets.inputs
        >>> differences = sets.union(x[1:], x[:-1])
        >>> [part.tolist() for part in sets.members(differences)]
        [[0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 3]]
    """

    def __init__(self, size: int) -> None:
        self.size = size
        # The members of set i are _pool[_start[i] : _start[i] + _count[i]].
        self._pool, self._used = np.arange(size, dtype=np.int32), size
        self._start = np.r_[0, 0, np.arange(size)]
        self._count = np.r_[0, size, np.ones(size, np.int64)]

    @property
    def inputs(self) -> np.ndarray:
        """Sets of one input each, an array of shape `[size]`."""
        return (
            np.arange(2, 2 + self.size, dtype=np.int32) if self.size > 1 else np.ones(1, np.int32)
        )

    def entries(self, ids: np.ndarray) -> int:
        """Total number of members of the sets."""
        return int(self._count[ids].sum())

    def members(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All members of sets `[k]`: for each member, the position of its set, and the member."""
        count = self._count[ids]
        ends = np.cumsum(count)
        within = np.arange(ends[-1] if ends.size else 0) - np.repeat(ends - count, count)
        index = np.repeat(self._start[ids], count) + within
        return np.repeat(np.arange(ids.size), count), self._pool[index]

    def union(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Unions of two arrays of sets, element by element; they broadcast."""
        a, b = np.broadcast_arrays(a, b)
        result = np.where(a == EMPTY, b, a)
        mixed = (a != b) & (a != EMPTY) & (b != EMPTY)
        if mixed.any():
            pairs = a[mixed].astype(np.int64) << 32 | b[mixed]
            unique, back = np.unique(pairs, return_inverse=True)
            parts = np.stack([unique >> 32, unique & 0xFFFFFFFF], axis=1)
            result[mixed] = self.union_along(parts, (1,))[back]
        return result

    def union_along(self, ids: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Unions of sets along axes, which are removed."""
        kept = [k for k in range(ids.ndim) if k not in axes]
        shape = tuple(ids.shape[k] for k in kept)
        rows = ids.transpose(*kept, *axes).reshape(int(np.prod(shape)), -1)
        groups = np.repeat(np.arange(rows.shape[0]), rows.shape[1])
        return self.gather(groups, rows.ravel(), rows.shape[0]).reshape(shape)

    def gather(self, groups: np.ndarray, ids: np.ndarray, count: int) -> np.ndarray:
        """Unions of the sets of each group.

        Args:
            groups: The group of every set, from 0 to `count - 1`, of shape `[k]`.
            ids: The sets, of shape `[k]`.
            count: Number of groups.

        Returns:
            A set for every group, of shape `[count]`; `EMPTY` for a group without sets.
        """
        whole = np.zeros(count, bool)
        whole[groups[ids == ALL]] = True
        result = np.where(whole, ALL, EMPTY).astype(np.int32)
        open_ = (ids != EMPTY) & ~whole[groups]
        pairs = distinct(groups[open_].astype(np.int64) << 32 | ids[open_])
        groups, ids = pairs >> 32, (pairs & 0xFFFFFFFF).astype(np.int32)
        result[groups] = ids  # right for groups of one set
        several = np.bincount(groups, minlength=count)[groups] > 1
        if several.any():
            result = self._joined(result, groups[several], ids[several])
        return result

    def _joined(self, result: np.ndarray, groups: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Compute the unions of sorted groups of several sets."""
        if self.entries(ids) > _MOST:
            result[groups] = ALL
            return result
        which, members = self.members(ids)
        keys = distinct(groups[which] * self.size + members)
        owner, members = np.divmod(keys, self.size)
        found, start, count = np.unique(owner, return_index=True, return_counts=True)
        most = np.zeros_like(count)
        np.maximum.at(most, np.searchsorted(found, groups), self._count[ids])
        # The largest set of each group, which is the union if both have equal size.
        order = np.argsort(self._count[ids], kind="stable")
        result[groups[order]] = ids[order]
        result[found[count == self.size]] = ALL
        new = (count > most) & (count < self.size)
        result[found[new]] = self._added(members, start[new], count[new])
        return result

    def _added(self, members: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Return indices for new sets, which are slices of `members`."""
        needed = self._used + members.size
        if needed > self._pool.size:
            self._pool = np.concatenate([self._pool, np.empty(needed, np.int32)])
        self._pool[self._used : needed] = members
        first = self._start.size
        self._start = np.concatenate([self._start, self._used + start])
        self._count = np.concatenate([self._count, count])
        self._used = needed
        return np.arange(first, first + count.size, dtype=np.int32)
