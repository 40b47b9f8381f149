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
    """Transform of gradients with an example axis, which the params lack."""

    State = None
    other_gradients = True

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """The update of the transform."""
        return self.inner.update(updates, state, params, **extra_args)


class _Kind(type):
    """Metaclass whose calls return transforms of gradients with an example axis."""

    def __call__(cls, init: Any, update: Any) -> _aggregating:
        return _aggregating(from_pair(init, update))

    def __instancecheck__(cls, instance: Any) -> bool:
        tx = instance.aggregator if isinstance(instance, _processed) else instance
        return isinstance(tx, _aggregating)


class Aggregator(metaclass=_Kind):
    """An (init, update) pair that aggregates per-example gradients."""


class _processed(Transformation):
    other_gradients = True

    preprocessor: Transformation
    aggregator: Transformation
    postprocessor: Transformation
    aggregator_has_aux: bool = static(default=False)

    def init(self, params: Any) -> tuple[Any, Any, Any]:
        """Make the states of all three transforms."""
        parts = (self.preprocessor, self.aggregator, self.postprocessor)
        before, between, after = (tx.init(params) for tx in parts)
        return before, between, after

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Return the last transform's update, or zeros until the aggregator is ready."""
        before, between, after = state
        each, before = self.preprocessor.update(updates, before, params, **extra_args)
        mean, between = self.aggregator.update(each, between, params, **extra_args)
        if self.aggregator_has_aux:
            mean, aux = mean
            extra_args = {**extra_args, **aux}

        def step(after: Any) -> tuple[Any, Any]:
            return self.postprocessor.update(mean, after, params, **extra_args)

        def wait(after: Any) -> tuple[Any, Any]:
            return tree.zeros_like(jax.eval_shape(step, after)[0]), after

        ready = tree.get(between, "ready", True)
        new, after = jax.lax.cond(ready, step, wait, after)
        return new, (before, between, after)


def process(
    preprocessor: Any, aggregator: Any, postprocessor: Any, aggregator_has_aux: bool = False
) -> Any:
    """Transform per-example gradients, aggregate them, and transform the result."""
    return _processed(preprocessor, aggregator, postprocessor, aggregator_has_aux)


def average_per_element_updates(per_elt_axis: int | Sequence[int] = 0) -> Any:
    """Average over an axis of examples."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        return jax.tree.map(lambda x: jnp.mean(x, axis=per_elt_axis), updates), state

    return Aggregator(init_empty_state, update)


class AccumulateAvgUpdatesState(NamedTuple):
    """Calls since the last complete mean, whether the last call completed one, the running mean."""

    micro_step: jax.Array
    ready: jax.Array
    avg_grad: Any


def accumulate_avg_updates(accumulation_steps: int) -> Any:
    """Average gradients over several calls, with zero updates in between."""
    if accumulation_steps < 1:
        raise ValueError(f"accumulation_steps is {accumulation_steps}, expected at least 1.")
    if accumulation_steps == 1:
        return identity()

    def init(params: Any) -> AccumulateAvgUpdatesState:
        zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        return AccumulateAvgUpdatesState(zero, no, tree.zeros_like(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        step = state.micro_step + 1
        mean = jax.tree.map(
            lambda a, u: a + (u - a) / step.astype(a.dtype), state.avg_grad, updates
        )
        return _release(step == accumulation_steps, step, mean)

    return from_pair(init, update)


def _release(ready: jax.Array, step: jax.Array, mean: Any) -> tuple[Any, Any]:
    """If the mean is complete, return it and reset the state's mean; else return zeros."""
    nothing = tree.zeros_like(mean)
    given, kept = tree.where(ready, (mean, nothing), (nothing, mean))
    step = jnp.where(ready, jnp.zeros_like(step), step)
    return given, AccumulateAvgUpdatesState(step, ready, kept)


def average_incrementally_updates(
    per_elt_axis: int | Sequence[int] | None, accumulation_steps: int
) -> Any:
    """Average over an axis of examples (if any) and over several calls."""
    over_calls = accumulate_avg_updates(accumulation_steps)
    if per_elt_axis is None:
        return over_calls
    return _aggregating(chain(average_per_element_updates(per_elt_axis), over_calls))


def get_batch_size_from_per_elt_updates(
    per_elt_updates: Any, per_elt_axis: int | Sequence[int]
) -> int:
    """Return the number of examples."""
    axes = (per_elt_axis,) if isinstance(per_elt_axis, int) else tuple(per_elt_axis)
    sizes = {math.prod(x.shape[a] for a in axes) for x in jax.tree.leaves(per_elt_updates)}
    if len(sizes) != 1:
        raise ValueError(f"gradients of {sorted(sizes)} examples, expected one number.")
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
