"""Mean and variance of per-example gradients in an optimizer's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt import tree
from fnopt.core import from_pair
from fnopt.interop.optax_api._aggregating import (
    Aggregator,
    get_batch_size_from_per_elt_updates,
    process,
)
from fnopt.interop.optax_api._types import init_empty_state
from fnopt.transforms import chain, identity

Axis = int | Sequence[int]


class PerElementMeanAndSumSqDiffGradsState(NamedTuple):
    """State of the moments over several calls.

    Attributes:
        micro_step: Number of calls since the last result.
        ready: Whether the last call returned a result.
        mean_grads: Running mean.
        sum_sq_diff_grads: Running sum of squared deviations from the mean.
    """

    micro_step: jax.Array
    ready: jax.Array
    mean_grads: Any
    sum_sq_diff_grads: Any


class PerElementMeanAndVarianceEMAState(NamedTuple):
    """Step count, decay, and moving averages of mean and variance, initially zero."""

    count: jax.Array
    ema_decay: jax.Array
    mean_grads_ema: Any
    variance_grads_ema: Any


def _mean_and_squares(updates: Any, axis: Axis) -> tuple[Any, Any]:
    mean = jax.tree.map(lambda x: jnp.mean(x, axis, keepdims=True), updates)
    squares = jax.tree.map(lambda x, m: jnp.sum(jnp.square(x - m), axis), updates, mean)
    return jax.tree.map(lambda m: jnp.squeeze(m, axis), mean), squares


def get_per_element_mean_and_sum_sq_diff_grads(
    per_elt_axis: Axis = 0, accumulation_steps: int = 1
) -> Any:
    """Compute mean and squared deviations over the examples of one or several calls.

    The update is `(mean, {"sum_sq_diff_grads": ..., "sample_size": ...})`.
    """

    def init(params: Any) -> PerElementMeanAndSumSqDiffGradsState:
        zero, false = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        zeros = tree.zeros_like(params)
        return PerElementMeanAndSumSqDiffGradsState(zero, false, zeros, zeros)

    def update_once(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        mean, squares = _mean_and_squares(updates, per_elt_axis)
        size = get_batch_size_from_per_elt_updates(updates, per_elt_axis)
        return (mean, {"sum_sq_diff_grads": squares, "sample_size": size}), state

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        (mean, moments), _ = update_once(updates, state, params)
        size, step = moments["sample_size"], state.micro_step + 1
        # Merge the moments of two sets of examples (Chan, Golub and LeVeque, 1979).
        delta = tree.sub(mean, state.mean_grads)
        weight = state.micro_step * size / step
        mean = jax.tree.map(lambda m, d: m + d / step, state.mean_grads, delta)
        squares = jax.tree.map(
            lambda a, s, d: a + s + jnp.square(d) * weight,
            state.sum_sq_diff_grads,
            moments["sum_sq_diff_grads"],
            delta,
        )
        ready = step == accumulation_steps
        result = (mean, {"sum_sq_diff_grads": squares, "sample_size": size * step})
        new_updates = tree.where(ready, result, tree.zeros_like(result))
        running = tree.where(ready, tree.zeros_like((mean, squares)), (mean, squares))
        count = jnp.where(ready, jnp.zeros_like(step), step)
        return new_updates, PerElementMeanAndSumSqDiffGradsState(count, ready, *running)

    return (
        Aggregator(init_empty_state, update_once)
        if accumulation_steps == 1
        else Aggregator(init, update)
    )


def track_per_element_mean_and_variance_with_ema(ema_decay: Any = 0.9) -> Any:
    """Return updates unchanged; store moving averages of mean and variance in the state."""

    def init(params: Any) -> PerElementMeanAndVarianceEMAState:
        zeros, decay = tree.zeros_like(params), jnp.asarray(ema_decay, jnp.float32)
        return PerElementMeanAndVarianceEMAState(jnp.zeros((), jnp.int32), decay, zeros, zeros)

    def update(
        updates: Any, state: Any, params: Any = None, *, sum_sq_diff_grads: Any, sample_size: Any
    ) -> tuple[Any, PerElementMeanAndVarianceEMAState]:
        del params
        variance = jax.tree.map(lambda s: s / (sample_size - 1), sum_sq_diff_grads)

        def average(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda x, y: (1 - ema_decay) * x + ema_decay * y, new, old)

        means = average(updates, state.mean_grads_ema)
        variances = average(variance, state.variance_grads_ema)
        return updates, state._replace(
            count=state.count + 1, mean_grads_ema=means, variance_grads_ema=variances
        )

    return from_pair(init, update)


def get_unbiased_mean_and_variance_ema(state: Any) -> tuple[Any, Any]:
    """Bias-corrected moving averages of mean and variance."""
    ema_state = tree.get(state, "PerElementMeanAndVarianceEMAState")
    if ema_state is None:
        raise ValueError(
            "get_unbiased_mean_and_variance_ema: the state has no "
            "PerElementMeanAndVarianceEMAState, expected the state of add_mean_variance_to_opt."
        )
    correction = 1 - ema_state.ema_decay**ema_state.count
    averages = (ema_state.mean_grads_ema, ema_state.variance_grads_ema)
    return jax.tree.map(lambda x: x / correction.astype(x.dtype), averages)


def add_mean_variance_to_opt(
    opt: Any, ema_decay: Any = 0.9, per_elt_axis: Axis = 0, accumulation_steps: int = 1
) -> Any:
    """Make an optimizer of per-example gradients with their mean and variance in the state."""
    return process(
        preprocessor=identity(),
        aggregator=get_per_element_mean_and_sum_sq_diff_grads(per_elt_axis, accumulation_steps),
        postprocessor=chain(track_per_element_mean_and_variance_with_ema(ema_decay), opt),
        aggregator_has_aux=True,
    )
