r"""Mean and variance of gradients that are sums of outer products.

The deviations are computed from differences of gradients, by the identity

.. math:: \sum_r a_r c_r^\top - \sum_r b_r d_r^\top
          = \sum_r (a_r - b_r) c_r^\top + \sum_r b_r (c_r - d_r)^\top

If the gradients are close, every term on the right is small. In float32, cancellation in the inner
products of the left side would destroy a standard deviation of a thousandth of the mean.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.gradients._sums import selected_count, squared_deviations, zero_excluded
from fnopt.gradients.ghost import _tape
from fnopt.gradients.ghost._factors import (
    Dense,
    OneHot,
    Pair,
    outer,
    squared_norm,
    sum_of,
)
from fnopt.gradients.ghost._plan import Group
from fnopt.gradients.ghost._tape import Tape
from fnopt.gradients.ghost._weights import pull_back
from fnopt.numerics import HIGHEST, sum_of_squares, widen
from fnopt.sharding import replicate


class GroupMoments(NamedTuple):
    """Mean and squared deviations of the gradients of a group of leaves.

    Attributes:
        mean: The mean of the selected gradients, keyed by param.
        deviations: The sums of squared distances from the mean, keyed by param. If gradients aren't
            formed per param, the only entry is the sum over the group, keyed by the first param.
    """

    mean: Mapping[int, jax.Array]
    deviations: Mapping[int, jax.Array]


def moments(
    group: Group,
    formed: _tape.Formed,
    tape: Tape,
    mask: jax.Array,
    params: Mapping[int, Any],
) -> GroupMoments:
    """Mean of the selected gradients, and the sum of squared deviations."""
    if isinstance(formed, dict):
        pairs = {i: squared_deviations(x, mask) for i, x in formed.items()}
        return GroupMoments(
            {i: mean for i, (mean, _) in pairs.items()},
            {i: deviations for i, (_, deviations) in pairs.items()},
        )
    if group.layout is None or group.form == "none":
        return GroupMoments({}, {})
    mean, deviations = (
        _moments(group, tape, mask) if formed is None else squared_deviations(formed, mask)
    )
    by_param = pull_back(group.layout.weight, group.layout.array(mean), params)
    return GroupMoments(by_param, {group.leaves[0]: deviations})


def _moments(group: Group, tape: Tape, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean `[T, D, K]` and sum of squared deviations of gradients that aren't formed.

    With the differences `x_i` from the first selected gradient and their mean `m`, the sum of
    squared deviations is `sum |x_i|^2 - n |m|^2`.
    """
    assert group.layout is not None
    _, d, k = group.layout.sizes
    data = [_tape.data_of(site, tape) for site in group.sites]
    first = jnp.argmax(replicate(mask))
    origin = _tape.pairs_of(group, jax.tree.map(lambda x: replicate(x, 0)[first], data))

    def differences_from_first(
        data: list[tuple[Any, jax.Array]],
    ) -> tuple[jax.Array, list[Difference]]:
        pairs = _tape.pairs_of(group, data)
        differences = [difference(p, q) for p, q in zip(pairs, origin, strict=True)]
        return squared_norm([part for d in differences for part in d.parts]), differences

    squares, differences = jax.vmap(differences_from_first)(data)
    pairs = zip(differences, origin, strict=True)
    shift = sum_of(_sum_differences(change, pair.left, mask, (d, k)) for change, pair in pairs)
    shift = shift / selected_count(mask, shift.dtype)
    total = jnp.sum(zero_excluded(mask > 0, squares))
    deviations = total - sum_of_squares(shift) * selected_count(mask, squares.dtype)
    # Rounding may make the difference negative if all gradients are almost equal.
    deviations = jnp.maximum(deviations, jnp.zeros_like(total))
    mean = sum_of(outer(p, (d, k), HIGHEST) for p in origin).astype(shift.dtype) + shift
    # If the gradients are finite, NaN means inf - inf: the squares overflow, and so does their
    # difference. With a shift of zero, the gradients may be equal, so the result stays NaN.
    overflows = jnp.isnan(deviations) & jnp.all(jnp.isfinite(mean)) & jnp.any(shift != 0)
    return mean, jnp.where(overflows, jnp.full_like(deviations, jnp.inf), deviations)


class Difference(NamedTuple):
    """Factors of the difference of two gradients.

    Attributes:
        changed: The term with the difference of the left factors.
        shifted: The term with the difference of the right factors; `None` for lookups.
    """

    changed: Pair
    shifted: Pair | None

    @property
    def parts(self) -> list[Pair]:
        """Terms of the difference."""
        return [self.changed] if self.shifted is None else [self.changed, self.shifted]


def difference(pair: Pair, reference: Pair) -> Difference:
    """Factors of the difference of two gradients."""
    assert isinstance(pair.right, Dense)
    assert isinstance(reference.right, Dense)
    if isinstance(pair.left, OneHot):
        assert isinstance(reference.left, OneHot)
        return Difference(
            _one_hot_difference(pair.left, pair.right, reference.left, reference.right), None
        )
    # a c^T - b d^T = (a - b) c^T + b (c - d)^T; see the module's docstring.
    wide, base = jax.tree.map(widen, pair), jax.tree.map(widen, reference)
    return Difference(
        Pair(jax.tree.map(operator.sub, wide.left, base.left), wide.right),
        Pair(base.left, jax.tree.map(operator.sub, wide.right, base.right)),
    )


def _sum_differences(
    change: Difference, left: Any, mask: jax.Array, shape: tuple[int, int]
) -> jax.Array:
    """Sum of the differences of the selected examples, `[T, D, K]`.

    Args:
        change: The differences of all examples from one gradient.
        left: The left factor of the subtracted gradient.
        mask: Mask of the selected examples.
        shape: `D` and `K`.
    """

    def zero_others(x: jax.Array) -> jax.Array:
        return x if jnp.issubdtype(x.dtype, jnp.integer) else zero_excluded(mask > 0, x)

    changed = jax.tree.map(lambda x: _tape.examples_as_positions(zero_others(x)), change.changed)
    total = outer(changed, shape, HIGHEST)
    if change.shifted is None:
        return total
    # All examples share this left factor, so one outer product with the sum suffices.
    right = jax.tree.map(lambda x: jnp.sum(zero_others(x), axis=0), change.shifted.right)
    return total + outer(Pair(left, right), shape, HIGHEST)


def _one_hot_difference(a: OneHot, c: Dense, b: OneHot, d: Dense) -> Pair:
    """Factors of `a c^T - b d^T` for one-hot `a` and `b`."""
    # If both lookups have the same index, the difference is the single product a (c - d)^T.
    # Otherwise both products are orthogonal and don't cancel.
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
