"""Optimizers of per-example gradients, with transforms before and after the aggregation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt import tree
from fnopt.core import Transformation, from_pair, static
from fnopt.interop.optax_api._types import init_empty_state
from fnopt.transforms import Wrapper, chain, identity


class _aggregating(Wrapper):
    """Transform of per-example gradients, whose leaves have an example axis."""

    State = None
    other_gradients = True

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Apply the inner transform."""
        return self.inner.update(updates, state, params, **extra_args)


class _AggregatorMeta(type):
    """Metaclass whose calls return transforms of per-example gradients."""

    def __call__(cls, init: Any, update: Any) -> _aggregating:
        return _aggregating(from_pair(init, update))

    def __instancecheck__(cls, instance: Any) -> bool:
        tx = instance.aggregator if isinstance(instance, _processed) else instance
        return isinstance(tx, _aggregating)


class Aggregator(metaclass=_AggregatorMeta):
    """An (init, update) pair that aggregates per-example gradients."""


class _processed(Transformation):
    """Sequence of a transform of per-example gradients, an aggregator, and a transform."""

    other_gradients = True

    preprocessor: Transformation
    aggregator: Transformation
    postprocessor: Transformation
    aggregator_has_aux: bool = static(default=False)

    def init(self, params: Any) -> tuple[Any, Any, Any]:
        """Initial states of the preprocessor, the aggregator and the postprocessor."""
        parts = (self.preprocessor, self.aggregator, self.postprocessor)
        pre, aggregation, post = (tx.init(params) for tx in parts)
        return pre, aggregation, post

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Apply the three transforms; return zeros until the aggregator is ready."""
        pre, aggregation, post = state
        per_example, pre = self.preprocessor.update(updates, pre, params, **extra_args)
        mean, aggregation = self.aggregator.update(per_example, aggregation, params, **extra_args)
        if self.aggregator_has_aux:
            mean, aux = mean
            extra_args = {**extra_args, **aux}

        def step(post: Any) -> tuple[Any, Any]:
            return self.postprocessor.update(mean, post, params, **extra_args)

        def wait(post: Any) -> tuple[Any, Any]:
            return tree.zeros_like(jax.eval_shape(step, post)[0]), post

        # `cond` keeps the optimizer's state unchanged while gradients accumulate.
        ready = tree.get(aggregation, "ready", True)
        new, post = jax.lax.cond(ready, step, wait, post)
        return new, (pre, aggregation, post)


def process(
    preprocessor: Any, aggregator: Any, postprocessor: Any, aggregator_has_aux: bool = False
) -> Any:
    """Transform per-example gradients, aggregate them, and transform the result."""
    return _processed(preprocessor, aggregator, postprocessor, aggregator_has_aux)


def average_per_element_updates(per_elt_axis: int | Sequence[int] = 0) -> Any:
    """Average gradients over the example axis."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        return jax.tree.map(lambda x: jnp.mean(x, axis=per_elt_axis), updates), state

    return Aggregator(init_empty_state, update)


class AccumulateAvgUpdatesState(NamedTuple):
    """Calls since the last complete mean, whether the last call completed a mean, running mean."""

    micro_step: jax.Array
    ready: jax.Array
    avg_grad: Any


def accumulate_avg_updates(accumulation_steps: int) -> Any:
    """Average gradients over several calls, with zero updates in between."""
    if accumulation_steps < 1:
        raise ValueError(
            f"accumulate_avg_updates: accumulation_steps is {accumulation_steps}, expected at "
            "least 1."
        )
    if accumulation_steps == 1:
        return identity()

    def init(params: Any) -> AccumulateAvgUpdatesState:
        zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        return AccumulateAvgUpdatesState(zero, no, tree.zeros_like(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        step = state.micro_step + 1
        # optax's state contains the running mean, not the sum.
        mean = jax.tree.map(
            lambda a, u: a + (u - a) / step.astype(a.dtype), state.avg_grad, updates
        )
        return _release(step == accumulation_steps, step, mean)

    return from_pair(init, update)


def _release(ready: jax.Array, step: jax.Array, mean: Any) -> tuple[Any, Any]:
    """Return a complete mean and reset the state, or return zeros and store the mean."""
    zeros = tree.zeros_like(mean)
    updates, running_mean = tree.where(ready, (mean, zeros), (zeros, mean))
    step = jnp.where(ready, jnp.zeros_like(step), step)
    return updates, AccumulateAvgUpdatesState(step, ready, running_mean)


def average_incrementally_updates(
    per_elt_axis: int | Sequence[int] | None, accumulation_steps: int
) -> Any:
    """Average gradients over the example axis (if any) and over several calls."""
    over_calls = accumulate_avg_updates(accumulation_steps)
    if per_elt_axis is None:
        return over_calls
    return _aggregating(chain(average_per_element_updates(per_elt_axis), over_calls))


def get_batch_size_from_per_elt_updates(
    per_elt_updates: Any, per_elt_axis: int | Sequence[int]
) -> int:
    """Number of examples in a tree of per-example gradients."""
    axes = (per_elt_axis,) if isinstance(per_elt_axis, int) else tuple(per_elt_axis)
    sizes = {math.prod(x.shape[a] for a in axes) for x in jax.tree.leaves(per_elt_updates)}
    if len(sizes) != 1:
        raise ValueError(
            f"the leaves have gradients of {sorted(sizes)} examples, expected the same number in "
            "all leaves."
        )
    return sizes.pop()


__all__ = [
    "AccumulateAvgUpdatesState",
    "Aggregator",
    "accumulate_avg_updates",
    "average_incrementally_updates",
    "average_per_element_updates",
    "get_batch_size_from_per_elt_updates",
    "process",
]
