"""Table of sets of inputs, to which integer arrays of set indices refer."""

from __future__ import annotations

import numpy as np

from fnopt.jacobians._pairs import distinct

EMPTY, ALL = 0, 1
# Largest total size of the sets in one union, whose sorted int64 keys take 0.5 GB; for larger sets
# the union is ALL.
_MOST_UNION_MEMBERS = 2**25


class Sets:
    r"""Table of subsets of `{0, ..., size - 1}`.

    All tables have the empty set at index `EMPTY` and the full set at index `ALL`. Methods compute
    many unions at once with NumPy instead of a Python loop. Two indices may refer to equal sets. If
    a union equals one of its operands, the result is the index of this operand.

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
        # The members of set i are `_pool[_start[i] : _start[i] + _count[i]]`.
        self._pool, self._used = np.arange(size, dtype=np.int32), size
        self._start = np.r_[0, 0, np.arange(size)]
        self._count = np.r_[0, size, np.ones(size, np.int64)]

    @property
    def inputs(self) -> np.ndarray:
        """The sets `{0}` to `{size - 1}`, an array of shape `[size]`."""
        # With a single input, the set of this input is ALL.
        return (
            np.arange(2, 2 + self.size, dtype=np.int32) if self.size != 1 else np.ones(1, np.int32)
        )

    def entries(self, ids: np.ndarray) -> int:
        """Total number of members of the sets."""
        return int(self._count[ids].sum())

    def members(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """List the members of sets.

        Args:
            ids: The sets, of shape `[k]`.

        Returns:
            The position of a set in `ids`, and a member of this set, for all members of all sets.
        """
        count = self._count[ids]
        ends = np.cumsum(count)
        offset = np.arange(ends[-1] if ends.size else 0) - np.repeat(ends - count, count)
        index = np.repeat(self._start[ids], count) + offset
        return np.repeat(np.arange(ids.size), count), self._pool[index]

    def union(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Compute elementwise unions of two arrays of sets, which broadcast."""
        a, b = np.broadcast_arrays(a, b)
        result = np.where(a == EMPTY, b, a)
        is_new = (a != b) & (a != EMPTY) & (b != EMPTY)
        if is_new.any():
            # Every pair of sets is united once, with both indices in one int64 key.
            pairs = a[is_new].astype(np.int64) << 32 | b[is_new]
            unique, inverse = np.unique(pairs, return_inverse=True)
            parts = np.stack([unique >> 32, unique & 0xFFFFFFFF], axis=1)
            result[is_new] = self.union_along(parts, (1,))[inverse]
        return result

    def union_along(self, ids: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Compute unions along axes of an array of sets, and remove these axes."""
        other_axes = [k for k in range(ids.ndim) if k not in axes]
        shape = tuple(ids.shape[k] for k in other_axes)
        rows = ids.transpose(*other_axes, *axes).reshape(int(np.prod(shape)), -1)
        groups = np.repeat(np.arange(rows.shape[0]), rows.shape[1])
        return self.gather(groups, rows.ravel(), rows.shape[0]).reshape(shape)

    def gather(self, groups: np.ndarray, ids: np.ndarray, count: int) -> np.ndarray:
        """Compute the union of the sets in each group.

        Args:
            groups: The group of every set, from 0 to `count - 1`, of shape `[k]`.
            ids: The sets, of shape `[k]`.
            count: Number of groups.

        Returns:
            A set for every group, of shape `[count]`; `EMPTY` for a group without sets.
        """
        is_all = np.zeros(count, bool)
        is_all[groups[ids == ALL]] = True
        result = np.where(is_all, ALL, EMPTY).astype(np.int32)
        pending = (ids != EMPTY) & ~is_all[groups]
        pairs = distinct(groups[pending].astype(np.int64) << 32 | ids[pending])
        groups, ids = pairs >> 32, (pairs & 0xFFFFFFFF).astype(np.int32)
        result[groups] = ids  # final for groups with a single set
        has_several = np.bincount(groups, minlength=count)[groups] > 1
        if has_several.any():
            result = self._unite(result, groups[has_several], ids[has_several])
        return result

    def _unite(self, result: np.ndarray, groups: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Write the unions of sorted groups with several sets to `result`."""
        if self.entries(ids) > _MOST_UNION_MEMBERS:
            result[groups] = ALL
            return result
        position, members = self.members(ids)
        bits = self.size.bit_length()
        keys = distinct(groups[position] << bits | members)
        owner, members = keys >> bits, keys & (1 << bits) - 1
        # Both arrays are sorted and contain the same groups.
        start, first = (np.flatnonzero(np.diff(g, prepend=-1)) for g in (owner, groups))
        count = np.diff(start, append=owner.size)
        sizes, unique_groups = self._count[ids], owner[start]
        largest = np.maximum.reduceat(sizes, first)
        # Each group first gets its largest set, which is the union if it has the union's size.
        is_largest = sizes == np.repeat(largest, np.diff(first, append=groups.size))
        result[groups[is_largest]] = ids[is_largest]
        result[unique_groups[count == self.size]] = ALL
        is_new = (count > largest) & (count < self.size)
        if is_new.any():
            added = self._append(members, start[is_new], count[is_new])
            result[unique_groups[is_new]] = added
        return result

    def _append(self, members: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Append slices of `members` to the table as new sets, and return their indices."""
        used = self._used + members.size
        if used > self._pool.size:
            # The pool at least doubles, so that many small additions don't copy it each time.
            self._pool = np.concatenate([self._pool, np.empty(used, np.int32)])
        self._pool[self._used : used] = members
        first = self._start.size
        self._start = np.concatenate([self._start, self._used + start])
        self._count = np.concatenate([self._count, count])
        self._used = used
        return np.arange(first, first + count.size, dtype=np.int32)
