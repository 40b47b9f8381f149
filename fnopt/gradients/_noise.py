"""Gaussian noise and Poisson sampling for differentially private training."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.errors import check_count, check_inexact, check_key, check_number, count_text
from fnopt.gradients._clip_rule import blocks_of, check_limits
from fnopt.gradients._loss import fold_in_step
from fnopt.numerics import compute_dtype, default_float, joint_norm


class NoiseInfo(NamedTuple):
    """Standard deviation of the added noise, and the sensitivity.

    Attributes:
        stddev: The standard deviation of the noise on every entry.
        sensitivity: The largest change of the gradient by one example, in the Euclidean norm.
    """

    stddev: jax.Array
    sensitivity: jax.Array


def add_noise(
    grads: Any,
    key: Any,
    noise_multiplier: Any,
    clip_norm: Any,
    *,
    step: Any = None,
    batch_size: Any = None,
) -> tuple[Any, NoiseInfo]:
    r"""Add Gaussian noise to a sum of clipped gradients, in proportion to its sensitivity.

    .. math:: \tilde g = g + \sigma S \xi, \quad \xi \sim \mathcal N(0, I), \qquad
              S = \Bigl(\sum_k C_k^2\Bigr)^{1/2} \; [\,/\, B\,]

    The sensitivity `S` is the largest change of the sum when an example is added or removed.
    Gradients must be clipped to `C`, or each subtree `k` to `C_k`. An accounting library computes
    the privacy of many steps from the noise multiplier, the sampling rate and the number of steps.

    The privacy guarantee requires that batches are sampled as the library assumes. No other results
    that depend on the data (losses, norms, skipped examples) may be published. The noise comes from
    JAX's generator, which isn't cryptographically secure, and floating-point noise has known
    weaknesses.

    On several devices, add the noise to the sum over all devices (`clipped_grad` with `axis_name`).
    Use the same key on every device, so that all devices add the same noise.

    Args:
        grads: The clipped sum of `clipped_grad`, or this sum divided by `batch_size`.
        key: One PRNG key.
        noise_multiplier: `sigma` >= 0; a number or a scalar array.
        clip_norm: The `clip_norm` of the gradients: a number, or a tree of numbers that is a prefix
            of the gradients.
        step: The step number, which is folded into the key, so that a training run needs only one
            key. With `None`, pass a new key in every step.
        batch_size: The divisor of the sum, if any. Divide by the *expected* size of a batch,
            because the actual size is secret.

    Returns:
        The noisy gradients, in the dtypes of `grads`, and a `NoiseInfo`.

    Raises:
        TypeError: If a gradient isn't floating, the key is not one PRNG key, or the step isn't an
            integer.
        ValueError: If the multiplier is negative, a clip norm isn't positive and finite, or the
            clip norms are no prefix of the gradients.

    Example:
        >>> from fnopt.gradients import add_noise
        >>> grads = {"w": jnp.zeros((100, 100))}
        >>> noisy, info = add_noise(grads, jax.random.key(0), 1.2, clip_norm=0.5, step=3)
        >>> print(f"{info.sensitivity:.1f} {info.stddev:.1f} {jnp.std(noisy['w']):.1f}")
        0.5 0.6 0.6

    Reference:
        Abadi et al., 2016, "Deep Learning with Differential Privacy", arXiv:1607.00133. Mironov,
        2012, "On significance of the least significant bits for differential privacy".
    """
    check_inexact(grads, "add_noise: grads")
    check_limits(clip_norm, "add_noise")
    _check_finite(clip_norm, "add_noise")
    blocks_of(grads, clip_norm, "add_noise")  # raises an error unless it is a prefix of the grads
    _check_multiplier(noise_multiplier)
    _check_batch_size(batch_size, "add_noise")
    key = fold_in_step(check_key(key, "add_noise"), step, "add_noise")
    sensitivity = _sensitivity(clip_norm, batch_size)
    stddev = jnp.asarray(noise_multiplier).astype(sensitivity.dtype) * sensitivity
    leaves, treedef = jax.tree.flatten(grads)
    # One key per leaf, because leaves of equal shape would otherwise get the same noise.
    noisy = [_noisy(g, jax.random.fold_in(key, i), stddev) for i, g in enumerate(leaves)]
    return jax.tree.unflatten(treedef, noisy), NoiseInfo(stddev, sensitivity)


def sensitivity(clip_norm: Any, *, batch_size: Any = None) -> jax.Array:
    r"""Largest change of a sum of clipped gradients when one example is added or removed.

    .. math:: S = \Bigl(\sum_k C_k^2\Bigr)^{1/2} \; [\,/\, B\,]

    Args:
        clip_norm: The `clip_norm` of `clipped_grad`: a number or a tree of numbers.
        batch_size: The divisor of the sum, if any.

    Returns:
        A scalar, which `add_noise` multiplies by the noise multiplier.

    Raises:
        ValueError: If a clip norm isn't positive and finite, or the batch size isn't positive.

    Example:
        >>> from fnopt.gradients import sensitivity
        >>> float(sensitivity({"encoder": 3.0, "head": 4.0})), float(sensitivity(1.0, batch_size=8))
        (5.0, 0.125)

    Reference:
        Dwork and Roth, 2014, "The Algorithmic Foundations of Differential Privacy".
    """
    check_limits(clip_norm, "sensitivity")
    _check_finite(clip_norm, "sensitivity")
    _check_batch_size(batch_size, "sensitivity")
    return _sensitivity(clip_norm, batch_size)


def _check_multiplier(noise_multiplier: Any) -> None:
    check_number(noise_multiplier, "noise_multiplier", "add_noise")
    if not isinstance(noise_multiplier, Tracer) and not noise_multiplier >= 0:
        raise ValueError(
            f"add_noise: noise_multiplier is {noise_multiplier}, expected a number >= 0."
        )


def _check_finite(clip_norm: Any, name: str) -> None:
    for limit in jax.tree.leaves(clip_norm):
        if not isinstance(limit, Tracer) and not limit < math.inf:
            raise ValueError(
                f"{name}: clip_norm is {limit}, expected a finite number: the sensitivity of "
                "unclipped gradients is unbounded."
            )


def _check_batch_size(batch_size: Any, name: str) -> None:
    if batch_size is None:
        return
    check_number(batch_size, "batch_size", name)
    if not isinstance(batch_size, Tracer) and not batch_size > 0:
        raise ValueError(f"{name}: batch_size is {batch_size}, expected a positive number.")


def _sensitivity(clip_norm: Any, batch_size: Any) -> jax.Array:
    dtype = default_float()
    limits = [jnp.asarray(c).astype(dtype) for c in jax.tree.leaves(clip_norm)]
    total = joint_norm(limits) if limits else jnp.zeros((), dtype)
    return total if batch_size is None else total / jnp.asarray(batch_size).astype(dtype)


def _noisy(grad: jax.Array, key: Any, stddev: jax.Array) -> jax.Array:
    # At least float32, because the accounting assumes noise that isn't rounded to bfloat16.
    dtype = compute_dtype(grad.dtype)
    noise = jax.random.normal(key, grad.shape, dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        # JAX's complex normal has variance 1/2 in its real and in its imaginary part.
        noise = noise * jnp.sqrt(jnp.asarray(2, jnp.finfo(dtype).dtype)).astype(dtype)
    return (grad.astype(dtype) + stddev.astype(dtype) * noise).astype(grad.dtype)


# With the default capacity, a batch overflows with probability at most exp(-_LOG_ODDS) = 1e-10, and
# one of 1e6 batches with at most 1e-4. For 256 of 60,000 examples, 1e-5 instead of 1e-10 saves 10 %
# of the capacity.
_LOG_ODDS = 10 * math.log(10)


class PoissonBatch(NamedTuple):
    """A random subset of a data set, padded to a fixed size.

    Attributes:
        index: The positions of the examples in the data set, int32 `[capacity]`; 0 in the padding.
        where: Mask of the examples, False for padding, bool `[capacity]`.
        count: Number of drawn examples, int32; larger than the capacity if `overflow` isn't 0.
        overflow: Number of drawn examples beyond the capacity, int32. Use the batch only if
            `overflow` is 0; otherwise it isn't the Poisson sample that accounting libraries assume.
    """

    index: jax.Array
    where: jax.Array
    count: jax.Array
    overflow: jax.Array


def poisson_batch(
    key: Any, size: int, rate: Any, *, capacity: int | None = None, step: Any = None
) -> PoissonBatch:
    r"""Draw each of `size` examples independently with probability `rate`.

    The accounting of differentially private training assumes Poisson sampling. The number of drawn
    examples is random, with the mean `n q`. The batch is padded to a fixed size for `jit`. Pass
    `where` to `clipped_grad`, and divide the sum by the *expected* size `n q`.

    With the default capacity `C`, a batch overflows with probability at most :math:`10^{-10}`, by
    Bernstein's inequality:

    .. math:: P\bigl(\mathrm{Binomial}(n, q) \ge n q + t\bigr) \le
              \exp\Bigl(-\frac{t^2}{2 n q (1 - q) + 2 t / 3}\Bigr), \qquad C = \lceil n q + t \rceil

    Args:
        key: One PRNG key.
        size: `n`, the number of examples in the data set.
        rate: `q`, the probability of each example; a number, or a scalar array, which may be
            traced.
        capacity: The size of the padded batch, at most `size`; required if the rate is traced.
        step: The step number, which is folded into the key, so that a training run needs only one
            key. With `None`, pass a new key in every step.

    Returns:
        A `PoissonBatch`.

    Raises:
        TypeError: If the size or the step isn't an integer, or the key isn't one PRNG key.
        ValueError: If the rate isn't between 0 and 1, or `size` or `capacity` is invalid.

    Example:
        >>> from fnopt.gradients import poisson_batch
        >>> batch = poisson_batch(jax.random.key(0), size=1000, rate=0.05, step=7)
        >>> batch.index.shape, int(batch.count), int(batch.where.sum()), int(batch.overflow)
        ((106,), 47, 47, 0)

    Reference:
        Abadi et al., 2016, "Deep Learning with Differential Privacy", arXiv:1607.00133. Chua et
        al., 2024, "How Private are DP-SGD Implementations?", arXiv:2403.17673: why shuffled batches
        are less private.
    """
    check_count(size, "size", "poisson_batch")
    check_number(rate, "rate", "poisson_batch")
    if not isinstance(rate, Tracer) and not 0 <= rate <= 1:
        raise ValueError(f"poisson_batch: rate is {rate}, expected a probability from 0 to 1.")
    capacity = _check_capacity(capacity, size, rate)
    key = fold_in_step(check_key(key, "poisson_batch"), step, "poisson_batch")
    # float32 with and without x64, so that a key always yields the same batch. With the default
    # mode, rates are rounded to multiples of 2^-23, which raises a rate of 1e-6 by up to 12 %.
    probability = jnp.asarray(rate).astype(jnp.float32)
    drawn = jax.random.bernoulli(key, probability, (size,), mode="high")
    (index,) = jnp.nonzero(drawn, size=capacity, fill_value=0)
    count = jnp.sum(drawn, dtype=jnp.int32)
    overflow = jnp.maximum(count - capacity, 0)
    where = jnp.arange(capacity, dtype=jnp.int32) < count
    return PoissonBatch(index.astype(jnp.int32), where, count, overflow)


def _check_capacity(capacity: int | None, size: int, rate: Any) -> int:
    if capacity is None:
        if isinstance(rate, Tracer):
            raise ValueError(
                "poisson_batch: the rate is traced and capacity is None, expected an int. Pass "
                "capacity=..., because shapes can't depend on traced values."
            )
        return _sufficient_capacity(size, float(rate))
    check_count(capacity, "capacity", "poisson_batch")
    if capacity > size:
        raise ValueError(
            f"poisson_batch: capacity is {capacity}, expected at most the "
            f"{count_text(size, 'example')}."
        )
    return int(capacity)


def _sufficient_capacity(size: int, rate: float) -> int:
    # The root t of t^2 = L (2 v + 2 t / 3): Bernstein's bound with the exponent L.
    third, variance = _LOG_ODDS / 3, size * rate * (1 - rate)
    margin = third + math.sqrt(third**2 + 2 * _LOG_ODDS * variance)
    return max(1, min(size, math.ceil(size * rate + margin)))
