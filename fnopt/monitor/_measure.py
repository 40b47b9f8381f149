"""Computation of the statistics of groups of leaves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import names_text, where
from fnopt.monitor._groups import Grouping
from fnopt.numerics import (
    ArrayStack,
    compute_dtype,
    exponents,
    map_stacks,
    real_dtype,
    safe_divide,
    safe_norms,
    stack_alike,
    sum_of_squares,
    widen,
)
from fnopt.sharding import is_tracing, shard_axes

STATISTICS = ("norm", "max", "mean", "rms", "ratio", "zeros", "nonfinite", "histogram")
"""Names of all statistics, in display order."""

CHEAP = ("norm", "ratio", "nonfinite")
"""Default statistics, which take one pass over the gradients and the params."""

Arrays = list[jax.Array]
"""One array for every measured leaf, in the order of the groups."""

Rows = dict[str, jax.Array]
"""Statistics of all groups, `[groups]` or `[groups, BINS]`, keyed by the statistic's name."""


def as_stats(stats: Any) -> tuple[str, ...]:
    """Check the names of statistics and sort them in the order of `STATISTICS`."""
    names = (stats,) if isinstance(stats, str) else tuple(stats)
    unknown = [n for n in names if n not in STATISTICS]
    if unknown:
        raise ValueError(
            f"{where()}stats contains the unknown names {names_text(unknown)}, expected some of "
            f"{names_text([*STATISTICS])}."
        )
    if not names:
        raise ValueError(
            f"{where()}stats is empty, expected at least one of {names_text([*STATISTICS])}."
        )
    return tuple(n for n in STATISTICS if n in names)


def num_shards() -> int:
    """Number of shards of every leaf."""
    return jax.lax.psum(1, shard_axes()) if shard_axes() else 1


class _Leaves:
    """Leaves of a tree in groups, with one method for each statistic."""

    def __init__(self, arrays: Arrays, params: Arrays | None, grouping: Grouping) -> None:
        self.dtype, self.grouping = common_dtype(arrays), grouping
        self.leaves = stack_alike(arrays)
        self.params = None if params is None else stack_alike(params)
        self.sizes = jnp.asarray([max(n, 1) * num_shards() for n in grouping.sizes], self.dtype)

    def _map_leaves(self, fn: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Apply `fn` to every leaf, in at least float32 because 16-bit sums are inaccurate."""
        return map_stacks(self.leaves, lambda x: fn(widen(x)).astype(self.dtype))

    def reduce(self, values: jax.Array, add: Callable[..., Any] = jnp.sum) -> jax.Array:
        """Reduce the values of leaves to one value per group, over all shards of the leaves."""
        local = self._reduce_groups(values, add)
        if not shard_axes():
            return local
        reduce_shards = jax.lax.pmax if add is jnp.max else jax.lax.psum
        return reduce_shards(local, shard_axes())

    def _reduce_groups(self, values: jax.Array, add: Callable[..., Any]) -> jax.Array:
        """Reduce the values of leaves to one value per group."""
        counts = np.asarray([len(leaves) for leaves in self.grouping.members])
        if (counts == 1).all():
            return values
        # Groups with equal numbers of leaves are batched, which keeps the program small.
        starts, stacks = np.cumsum(counts) - counts, []
        for count in np.unique(counts):
            groups = np.flatnonzero(counts == count)
            rows = values[starts[groups][:, None] + np.arange(count)]
            stacks.append(ArrayStack(groups.tolist(), rows if len(groups) > 1 else rows[0]))
        return map_stacks(stacks, lambda row: add(row, axis=0))

    def norms_of(self, leaves: list[ArrayStack]) -> jax.Array:
        """Norm of every group, accurate even if the square overflows or underflows."""
        group_of = np.repeat(np.arange(len(self.sizes)), list(map(len, self.grouping.members)))

        def square_leaf(x: jax.Array, scale: jax.Array | None = None) -> jax.Array:
            return sum_of_squares(x, scale, self.dtype).astype(self.dtype)

        def squares(scale: jax.Array | None) -> jax.Array:
            scales = () if scale is None else (scale[group_of],)
            return self.reduce(map_stacks(leaves, square_leaf, *scales))

        return safe_norms(squares)

    @functools.cached_property
    def length(self) -> jax.Array:
        """Norms of the groups, computed once for all statistics."""
        return self.norms_of(self.leaves)

    def norm(self) -> jax.Array:
        return self.length

    def rms(self) -> jax.Array:
        return self.length / jnp.sqrt(self.sizes)

    def ratio(self) -> jax.Array:
        assert self.params is not None
        # The ratio of a zero update of zero params is 0, not NaN.
        return safe_divide(self.length, self.norms_of(self.params))

    def mean(self) -> jax.Array:
        return self.reduce(self._map_leaves(lambda x: jnp.sum(jnp.real(x)))) / self.sizes

    def max(self) -> jax.Array:
        return self.reduce(self._map_leaves(lambda x: jnp.max(jnp.abs(x), initial=0.0)), jnp.max)

    def zeros(self) -> jax.Array:
        # int32, because adding 1 to 2^24 has no effect in float32.
        count_zeros = lambda x: jnp.sum(x == 0, dtype=jnp.int32)  # noqa: E731
        return self.reduce(self._map_leaves(count_zeros)) / self.sizes

    def histogram(self) -> jax.Array:
        return self.reduce(self._map_leaves(lambda x: exponents.histogram(jnp.abs(x))))

    def nonfinite(self) -> jax.Array:
        # A norm is finite only if all elements are finite, so elements are tested only in steps
        # with a non-finite norm.
        healthy = jnp.all(jnp.isfinite(self.length))
        bad = lambda x: jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)  # noqa: E731
        zeros = lambda: jnp.zeros(len(self.grouping.names), self.dtype)  # noqa: E731
        return jax.lax.cond(healthy, zeros, lambda: self.reduce(self._map_leaves(bad)))


def common_dtype(leaves: list[Any]) -> Any:
    """Dtype of the statistics: real, and at least float32."""
    return real_dtype(compute_dtype(*map(jnp.result_type, leaves)))


def measure(
    leaves: list[Any], params: list[Any] | None, grouping: Grouping, stats: tuple[str, ...]
) -> Rows:
    """Compute statistics of every group.

    Args:
        leaves: All leaves of the tree.
        params: All leaves of the params, for the ratio.
        grouping: The groups of the leaves.
        stats: Names from `STATISTICS`.

    Returns:
        The statistics, keyed by name.
    """
    if not grouping.names:
        return zero_statistics(stats, common_dtype([]), 0)
    order = [i for members in grouping.members for i in members]
    arrays = [jnp.asarray(leaves[i]) for i in order]
    weights = [jnp.asarray(params[i]) for i in order] if params and "ratio" in stats else None
    # An eager call is jitted, because eager execution compiles conditionals again in every call.
    inline = is_tracing() or shard_axes()
    return (_measure_all if inline else _program)(arrays, weights, grouping, stats)


def _measure_all(
    arrays: Arrays, params: Arrays | None, grouping: Grouping, stats: tuple[str, ...]
) -> Rows:
    groups = _Leaves(arrays, params, grouping)
    return {name: getattr(groups, name)() for name in stats}


_program = jax.jit(_measure_all, static_argnums=(2, 3))


def zero_statistics(stats: tuple[str, ...], dtype: Any, groups: int) -> Rows:
    """Zeros with the shapes of the statistics, for the state before the first measurement."""
    shapes = {"histogram": (groups, exponents.BINS)}
    return {name: jnp.zeros(shapes.get(name, (groups,)), dtype) for name in stats}
