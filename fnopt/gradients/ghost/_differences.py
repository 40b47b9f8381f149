r"""Moments of gradients, computed from differences of gradients as sums of outer products.

.. math:: \sum_r a_r c_r^\top - \sum_r b_r d_r^\top
          = \sum_r (a_r - b_r) c_r^\top + \sum_r b_r (c_r - d_r)^\top

The factors of the second form are small if the gradients are close. In float32, cancellation in the
inner products of the first form would destroy a standard deviation of a thousandth of the mean.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.gradients._sums import number, only_where, squared_deviations
from fnopt.gradients.ghost import _tape
from fnopt.gradients.ghost._factors import (
    Dense,
    OneHot,
    Pair,
    length_squared,
    outer,
    sum_of,
)
from fnopt.gradients.ghost._plan import Group
from fnopt.gradients.ghost._tape import Tape
from fnopt.gradients.ghost._weights import pull_back
from fnopt.numerics import HIGHEST, sum_of_squares, widen
from fnopt.sharding import replicate


class GroupMoments(NamedTuple):
    """The first two moments of the gradients of a group of leaves.

    Attributes:
        mean: The mean of the selected gradients, keyed by param.
        deviations: For each param, the sum of the squared distances from the mean. For a group
            without formed params, the entry of the first param is the sum over the group.
    """

    mean: Mapping[int, jax.Array]
    deviations: Mapping[int, jax.Array]


def moments(
    group: Group,
    formed: _tape.Formed,
    tape: Tape,
    counts: jax.Array,
    params: Mapping[int, Any],
) -> GroupMoments:
    """Mean of the selected gradients, and the sum of squared deviations."""
    if isinstance(formed, dict):
        found = {i: squared_deviations(x, counts) for i, x in formed.items()}
        return GroupMoments(
            {i: mean for i, (mean, _) in found.items()},
            {i: deviations for i, (_, deviations) in found.items()},
        )
    if group.layout is None or group.form == "none":
        return GroupMoments({}, {})
    mean, deviations = (
        _moments(group, tape, counts) if formed is None else squared_deviations(formed, counts)
    )
    by_param = pull_back(group.layout.weight, group.layout.array(mean), params)
    return GroupMoments(by_param, {group.leaves[0]: deviations})


def _moments(group: Group, tape: Tape, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean `[T, D, K]` and squared deviations, by one matrix product over the examples."""
    assert group.layout is not None
    _, d, k = group.layout.sizes
    data = [_tape.data_of(site, tape) for site in group.sites]
    first = jnp.argmax(replicate(counts))
    origin = _tape.pairs_of(group, jax.tree.map(lambda x: replicate(x, 0)[first], data))

    def differences_from_first(
        data: list[tuple[Any, jax.Array]],
    ) -> tuple[jax.Array, list[Difference]]:
        pairs = _tape.pairs_of(group, data)
        differences = [difference(p, q) for p, q in zip(pairs, origin, strict=True)]
        return length_squared([part for d in differences for part in d.parts]), differences

    squares, differences = jax.vmap(differences_from_first)(data)
    pairs = zip(differences, origin, strict=True)
    gap = sum_of(_total(change, pair.left, counts, (d, k)) for change, pair in pairs)
    gap = gap / number(counts, gap.dtype)
    near = jnp.sum(only_where(counts > 0, squares))
    # Rounding may make this negative if all gradients are equal.
    deviations = near - sum_of_squares(gap) * number(counts, squares.dtype)
    deviations = jnp.maximum(deviations, jnp.zeros_like(near))
    mean = sum_of(outer(p, (d, k), HIGHEST) for p in origin).astype(gap.dtype) + gap
    # For finite gradients NaN is the difference of two infinite squares, so the sum is infinite. It
    # stays NaN for gradients that may be all the same.
    lost = jnp.isnan(deviations) & jnp.all(jnp.isfinite(mean)) & jnp.any(gap != 0)
    return mean, jnp.where(lost, jnp.full_like(deviations, jnp.inf), deviations)


class Difference(NamedTuple):
    """Factors of the difference of two gradients.

    Attributes:
        changed: The term with the difference of the left factors.
        shifted: The term with the left factor of the subtracted gradient, if there is one.
    """

    changed: Pair
    shifted: Pair | None

    @property
    def parts(self) -> list[Pair]:
        """Nonzero terms of the difference."""
        return [self.changed] if self.shifted is None else [self.changed, self.shifted]


def difference(pair: Pair, reference: Pair) -> Difference:
    """Compute the factors of the difference of two gradients."""
    assert isinstance(pair.right, Dense)
    assert isinstance(reference.right, Dense)
    if isinstance(pair.left, OneHot):
        assert isinstance(reference.left, OneHot)
        return Difference(_one_hot(pair.left, pair.right, reference.left, reference.right), None)
    # a c^T - b d^T = (a - b) c^T + b (c - d)^T: both differences are accurate if the factors are
    # close.
    wide, base = jax.tree.map(widen, pair), jax.tree.map(widen, reference)
    return Difference(
        Pair(jax.tree.map(operator.sub, wide.left, base.left), wide.right),
        Pair(base.left, jax.tree.map(operator.sub, wide.right, base.right)),
    )


def _total(change: Difference, left: Any, counts: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Sum of the differences of the selected examples, `[T, D, K]`.

    Args:
        change: The differences of all examples from one gradient.
        left: The left factor of the subtracted gradient.
        counts: Mask of the selected examples.
        shape: `D` and `K`.
    """

    def zero_others(x: jax.Array) -> jax.Array:
        return x if jnp.issubdtype(x.dtype, jnp.integer) else only_where(counts > 0, x)

    changed = jax.tree.map(lambda x: _tape.examples_as_positions(zero_others(x)), change.changed)
    total = outer(changed, shape, HIGHEST)
    if change.shifted is None:
        return total
    # All examples share this left factor, so the right factors are summed first.
    right = jax.tree.map(lambda x: jnp.sum(zero_others(x), axis=0), change.shifted.right)
    return total + outer(Pair(left, right), shape, HIGHEST)


def _one_hot(a: OneHot, c: Dense, b: OneHot, d: Dense) -> Pair:
    # If both one-hot rows have the same index, the difference is a single product.
    same = (a.index == b.index)[..., None]

    def join_differences(c: jax.Array, d: jax.Array) -> jax.Array:
        c, d = widen(c), widen(d)
        return _join_positions(jnp.where(same, c - d, c), jnp.where(same, jnp.zeros_like(d), -d))

    return Pair(
        OneHot(_join_positions(a.index, b.index)),
        Dense(jax.tree.map(join_differences, c.blocks, d.blocks)),
    )


def _join_positions(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.concatenate([a, b.astype(a.dtype)], axis=1)
