"""Poisson sampling: batches that every example is in with one probability, independently."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import check_count, check_key, check_number
from fnopt.gradients._checks import fold_in_step

# The logarithm of the chance 1e-10 that a batch does not fit, for the capacity chosen by default.
_LOG_CHANCE = 10 * math.log(10)


class PoissonBatch(NamedTuple):
    """A random subset of a data set, padded to a fixed size.

    Attributes:
        index: The places of the examples in the data set, int32 `[capacity]`; 0 in the padding.
        where: Which entries are examples, not padding, bool `[capacity]`.
        count: How many examples were drawn, int32; more than the capacity if they don't fit.
        overflow: How many of them did not fit, int32. Unless it is 0, the batch is not the sample
            that an accountant assumes: do not use it.
    """

    index: jax.Array
    where: jax.Array
    count: jax.Array
    overflow: jax.Array


def poisson_batch(
    key: Any, size: int, rate: Any, *, capacity: int | None = None, step: Any = None
) -> PoissonBatch:
    r"""Draw every one of `size` examples with probability `rate`, independently.

    The sampling that the accounting of differentially private training assumes. The number of
    examples is random, about `n q`; under `jit` a batch needs a fixed size, so it is padded. Hand
    `where` on to `clipped_grad`, and divide by the *expected* size `n q`.

    The default capacity `C` is too small in less than one of 10^10 batches, by Bernstein's
    inequality:

    .. math:: P\bigl(\mathrm{Binomial}(n, q) \ge n q + t\bigr) \le
              \exp\Bigl(-\frac{t^2}{2 n q (1 - q) + 2 t / 3}\Bigr), \qquad C = \lceil n q + t \rceil

    Args:
        key: One PRNG key.
        size: `n`, the number of examples in the data set.
        rate: `q`, the probability of each; a number, or a scalar array, which may be traced.
        capacity: The size of the padded batch, at most `size`. It has to be given if the rate is
            traced.
        step: The step number, folded into the key so that one key serves a whole training; `None`
            uses the key itself: never use a key twice.

    Returns:
        A `PoissonBatch`.

    Raises:
        TypeError: If the size or the step isn't an integer, or the key is not one PRNG key.
        ValueError: If the rate isn't between 0 and 1, or a size makes no sense.

    Example:
        >>> from fnopt.gradients import poisson_batch
        >>> batch = poisson_batch(jax.random.key(0), size=1000, rate=0.05, step=7)
        >>> batch.index.shape, int(batch.count), int(batch.where.sum()), int(batch.overflow)
        ((106,), 47, 47, 0)

    Reference:
        Abadi et al., 2016, "Deep Learning with Differential Privacy", arXiv:1607.00133. Chua et
        al., 2024, "How Private are DP-SGD Implementations?", arXiv:2403.17673, on what is lost by
        shuffling instead.
    """
    check_count(size, "size", "poisson_batch")
    _check_rate(rate)
    capacity = _check_capacity(capacity, size, rate)
    key = fold_in_step(check_key(key, "poisson_batch"), step, "poisson_batch")
    drawn = jax.random.bernoulli(key, jnp.asarray(rate).astype(jnp.float32), (size,))
    (index,) = jnp.nonzero(drawn, size=capacity, fill_value=0)
    count = jnp.sum(drawn, dtype=jnp.int32)
    overflow = jnp.maximum(count - capacity, 0)
    where = jnp.arange(capacity, dtype=jnp.int32) < count
    return PoissonBatch(index.astype(jnp.int32), where, count, overflow)


def _check_rate(rate: Any) -> None:
    check_number(rate, "rate", "poisson_batch")
    if not isinstance(rate, Tracer) and not 0 <= rate <= 1:
        raise ValueError(f"poisson_batch: rate is {rate}, expected a probability: 0 <= rate <= 1.")


def _check_capacity(capacity: int | None, size: int, rate: Any) -> int:
    if capacity is None:
        if isinstance(rate, Tracer):
            raise ValueError("poisson_batch: the rate is traced, so say capacity=.")
        return _sufficient_capacity(size, float(rate))
    check_count(capacity, "capacity", "poisson_batch")
    if capacity > size:
        raise ValueError(
            f"poisson_batch: capacity is {capacity}, expected at most the {size} examples."
        )
    return int(capacity)


def _sufficient_capacity(size: int, rate: float) -> int:
    third, variance = _LOG_CHANCE / 3, size * rate * (1 - rate)
    over = third + math.sqrt(third**2 + 2 * _LOG_CHANCE * variance)
    return max(1, min(size, math.ceil(size * rate + over)))
