"""Means of per-example gradients that are robust to a few bad examples."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import check_batch, leaves_with_names
from fnopt.numerics import per_row, widen
from fnopt.sharding import replicate


def _aggregate(grads: Any, name: str, fn: Callable[[jax.Array, int], jax.Array]) -> Any:
    """Apply `fn(leaf, n)` to every leaf in a wide dtype, where `n` is the number of examples."""
    leaves = [(f"leaf {path!r}", x) for path, x in leaves_with_names(grads)[0]]
    size = check_batch(leaves, name, "Pass the gradients of every example (per_example_grads).")

    def aggregate_leaf(x: jax.Array) -> jax.Array:
        # Sorting and counting need all examples on every device.
        return fn(widen(replicate(x)), size).astype(x.dtype)

    return jax.tree.map(aggregate_leaf, grads)


def median_of_means(grads: Any, groups: int) -> Any:
    r"""Elementwise median of the mean gradients of groups of examples.

    Consecutive examples form a group, and the sizes of groups differ by at most one. With one group
    the result is the mean; with `n` groups it is the median. The result tolerates fewer than
    `groups / 2` bad examples.

    Args:
        grads: A tree of per-example gradients with a leading example axis, from
            `per_example_grads`.
        groups: Number of groups, from 1 to the number of examples.

    Returns:
        The tree without the example axis, in the same dtypes.

    Raises:
        ValueError: If there are too few examples, or the leaves have different numbers of examples.

    Example:
        >>> from fnopt.gradients import median_of_means
        >>> median_of_means(jnp.array([1.0, 2.0, 3.0, 1e9, 2.0, 4.0]), groups=3).tolist()
        3.0

    Reference:
        Chen, Su and Xu, 2017, "Distributed Statistical Machine Learning in Adversarial Settings:
        Byzantine Gradient Descent", arXiv:1705.05491.
    """

    def combine(x: jax.Array, n: int) -> jax.Array:
        if not 1 <= groups <= n:
            raise ValueError(
                f"median_of_means: groups is {groups}, expected a number from 1 to {n}, "
                "the number of examples."
            )
        # Consecutive examples are random groups, because batches are usually shuffled.
        group = jnp.arange(n) * groups // n
        counts = jnp.bincount(group, length=groups).astype(x.dtype)
        sums = jax.ops.segment_sum(x, group, groups)
        return jnp.median(sums / per_row(counts, x), axis=0)

    return _aggregate(grads, "median_of_means", combine)


def trimmed_mean(grads: Any, fraction: float) -> Any:
    r"""Elementwise mean without the smallest and the largest values.

    For every entry, the mean omits the :math:`\lfloor \beta n \rfloor` smallest and the same number
    of largest values, where :math:`\beta` is the fraction. The result tolerates :math:`\lfloor
    \beta n \rfloor` bad examples.

    Args:
        grads: A tree of per-example gradients with a leading example axis.
        fraction: The fraction to omit at each end, at least 0 and below 1/2.

    Returns:
        The tree without the example axis, in the same dtypes.

    Raises:
        ValueError: If the fraction is out of range, or the leaves have different numbers of
            examples.

    Example:
        >>> from fnopt.gradients import trimmed_mean
        >>> trimmed_mean(jnp.array([1.0, 2.0, 3.0, 1e9, -1e9]), fraction=0.2).tolist()
        2.0

    Reference:
        Yin et al., 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
        Rates", arXiv:1803.01498.
    """
    if not 0 <= fraction < 0.5:
        raise ValueError(f"trimmed_mean: fraction is {fraction}, expected 0 <= fraction < 0.5.")

    def combine(x: jax.Array, n: int) -> jax.Array:
        # The tolerance for the two roundings: 0.29 * 100 = 28.999999999999996 omits 29 examples.
        trimmed = math.floor(fraction * n * (1 + 2 * sys.float_info.epsilon))
        return jnp.mean(jnp.sort(x, axis=0)[trimmed : n - trimmed], axis=0)

    return _aggregate(grads, "trimmed_mean", combine)


def sign_agreement(grads: Any, threshold: float = 0.5) -> Any:
    r"""Mean gradient, with zeros where too few examples agree on the sign.

    .. math:: \bar g \cdot \mathbf 1\Bigl[ \Bigl\lvert \tfrac1n \sum_i \mathrm{sign}(g_i)
              \Bigr\rvert \ge \tau \Bigr]

    If too few examples agree on the sign of an entry, the entry is regarded as memorized and is set
    to zero.

    Args:
        grads: A tree of per-example gradients with a leading example axis.
        threshold: `tau`, from 0 (the mean) to 1 (all examples must agree).

    Returns:
        The tree without the example axis, in the same dtypes.

    Raises:
        ValueError: If the threshold is out of range, or the leaves have different numbers of
            examples.

    Example:
        >>> from fnopt.gradients import sign_agreement
        >>> sign_agreement(jnp.array([[1.0, -2.0], [3.0, 2.5], [2.0, 0.1]]), 0.8).tolist()
        [2.0, 0.0]

    Reference:
        Parascandolo et al., 2020, "Learning explanations that are hard to vary",
        arXiv:2009.00329.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"sign_agreement: threshold is {threshold}, expected 0 <= threshold <= 1.")

    def combine(x: jax.Array, n: int) -> jax.Array:
        mean, agreement = jnp.mean(x, axis=0), jnp.abs(jnp.mean(jnp.sign(x), axis=0))
        # Rounding to an integer count removes rounding errors of the mean. `needed` allows for the
        # rounding errors of the threshold and of the product, such as 0.7 * 10.
        needed = threshold * n * (1 - 2 * math.ulp(1.0))
        agrees = jnp.round(agreement * n) >= needed
        return jnp.where(agrees, mean, jnp.zeros_like(mean))

    return _aggregate(grads, "sign_agreement", combine)
