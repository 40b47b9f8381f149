"""Statistics of the leaves of a tree, and their sums over groups."""

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
"""The names of all statistics, in display order."""

CHEAP = ("norm", "ratio", "nonfinite")
"""The default statistics, which take one pass over the gradients and the params."""

Arrays = list[jax.Array]
"""One entry for every measured leaf, in the order of the groups."""

Rows = dict[str, jax.Array]
"""A statistic's name, and its value for every group: `[groups]`, or `[groups, BINS]`."""


def as_stats(given: Any) -> tuple[str, ...]:
    """Check names of statistics, and sort them into their fixed order."""
    names = (given,) if isinstance(given, str) else tuple(given)
    unknown = [n for n in names if n not in STATISTICS]
    if unknown:
        raise ValueError(
            f"{where()}stats: {names_text(unknown)} are unknown; there are "
            f"{names_text([*STATISTICS])}."
        )
    if not names:
        raise ValueError(f"{where()}stats is empty; choose from {names_text([*STATISTICS])}.")
    return tuple(n for n in STATISTICS if n in names)


def num_shards() -> int:
    """Number of shards of every leaf."""
    return jax.lax.psum(1, shard_axes()) if shard_axes() else 1


class _Leaves:
    """The leaves of a tree to be measured, with one method for each statistic."""

    def __init__(self, own: Arrays, params: Arrays | None, grouping: Grouping) -> None:
        self.dtype, self.grouping, self.leaves = common_dtype(own), grouping, stack_alike(own)
        self.params = None if params is None else stack_alike(params)
        self.sizes = jnp.asarray([max(n, 1) * num_shards() for n in grouping.sizes], self.dtype)

    def _map_leaves(self, fn: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Apply `fn` to every leaf in its compute dtype, because sums in 16 bits are inaccurate."""
        return map_stacks(self.leaves, lambda x: fn(widen(x)).astype(self.dtype))

    def join(self, values: jax.Array, add: Callable[..., Any] = jnp.sum) -> jax.Array:
        """Reduce values to one for every group, over the shards of the leaves."""
        found = self._reduce_groups(values, add)
        if not shard_axes():
            return found
        across = jax.lax.pmax if add is jnp.max else jax.lax.psum
        return across(found, shard_axes())

    def _reduce_groups(self, values: jax.Array, add: Callable[..., Any]) -> jax.Array:
        """Reduce values to one for every group; groups of equal size are batched."""
        counts = np.asarray([len(own) for own in self.grouping.members])
        if (counts == 1).all():
            return values
        starts, found = np.cumsum(counts) - counts, []
        for count in np.unique(counts):
            places = np.flatnonzero(counts == count)
            rows = values[starts[places][:, None] + np.arange(count)]
            found.append(ArrayStack(places.tolist(), rows if len(places) > 1 else rows[0]))
        return map_stacks(found, lambda row: add(row, axis=0))

    def norms_of(self, leaves: list[ArrayStack]) -> jax.Array:
        """The norm of every group, accurate even if its square is out of range."""
        group_of = np.repeat(np.arange(len(self.sizes)), list(map(len, self.grouping.members)))

        def square_leaf(x: jax.Array, scale: jax.Array | None = None) -> jax.Array:
            return sum_of_squares(x, scale, self.dtype).astype(self.dtype)

        def squares(scale: jax.Array | None) -> jax.Array:
            scales = () if scale is None else (scale[group_of],)
            return self.join(map_stacks(leaves, square_leaf, *scales))

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
        # A zero update of zero weights changes nothing: 0 / 0 = 0.
        return safe_divide(self.length, self.norms_of(self.params))

    def mean(self) -> jax.Array:
        return self.join(self._map_leaves(lambda x: jnp.sum(jnp.real(x)))) / self.sizes

    def max(self) -> jax.Array:
        return self.join(self._map_leaves(lambda x: jnp.max(jnp.abs(x), initial=0.0)), jnp.max)

    def zeros(self) -> jax.Array:
        # The count is int32, because float32 counts to 2^24 only.
        return self.join(self._map_leaves(lambda x: jnp.sum(x == 0, dtype=jnp.int32))) / self.sizes

    def histogram(self) -> jax.Array:
        return self.join(self._map_leaves(lambda x: exponents.histogram(jnp.abs(x))))

    def nonfinite(self) -> jax.Array:
        # A norm is finite only if every element is. So the elements are looked at only when some
        # norm is not, and a healthy step pays nothing.
        healthy = jnp.all(jnp.isfinite(self.length))
        bad = lambda x: jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)  # noqa: E731
        zeros = lambda: jnp.zeros(len(self.grouping.names), self.dtype)  # noqa: E731
        return jax.lax.cond(healthy, zeros, lambda: self.join(self._map_leaves(bad)))


def common_dtype(leaves: list[Any]) -> Any:
    """The dtype of statistics: real, and at least float32."""
    return real_dtype(compute_dtype(*map(jnp.result_type, leaves)))


def measure(
    leaves: list[Any], params: list[Any] | None, grouping: Grouping, stats: tuple[str, ...]
) -> Rows:
    """Return the chosen statistics of every group.

    Args:
        leaves: All leaves of the tree.
        params: All leaves of the params, for the ratio.
        grouping: The groups of the leaves.
        stats: Names from `STATISTICS`.

    Returns:
        A dict with an entry for each name.
    """
    if not grouping.names:
        return zero_statistics(stats, common_dtype([]), 0)
    order = [i for members in grouping.members for i in members]
    own = [jnp.asarray(leaves[i]) for i in order]
    weights = [jnp.asarray(params[i]) for i in order] if params and "ratio" in stats else None
    # The program is compiled separately, because an eager call would compile its conditionals every
    # time.
    in_place = is_tracing() or shard_axes()
    return (_measure_all if in_place else _program)(own, weights, grouping, stats)


def _measure_all(
    own: Arrays, params: Arrays | None, grouping: Grouping, stats: tuple[str, ...]
) -> Rows:
    measured = _Leaves(own, params, grouping)
    return {name: getattr(measured, name)() for name in stats}


_program = jax.jit(_measure_all, static_argnums=(2, 3))


def zero_statistics(stats: tuple[str, ...], dtype: Any, groups: int) -> Rows:
    """Zeros in place of every statistic, before the first measurement."""
    shapes = {"histogram": (groups, exponents.BINS)}
    return {name: jnp.zeros(shapes.get(name, (groups,)), dtype) for name in stats}
