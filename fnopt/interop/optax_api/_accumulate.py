"""Rules that accumulate the results of microbatches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype
from fnopt.interop.optax_api._types import AccumulationType


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """A rule that puts results together: a beginning, a step, an end.

    Args:
        init: `init(like)`, the carry before the first part, from the shapes of its result.
        update: `update(carry, result, index)`, the carry after a part.
        finalize: `finalize(carry)`, what is returned.
        aggregate: `aggregate(results)`, one result of the list of those of single examples.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], Any]
    finalize: Callable[[Any], Any]
    aggregate: Callable[[Any], Any]


def as_accumulator(rule: Any, parts: Any, like: Any) -> Accumulator:
    """A rule as an Accumulator.

    Args:
        rule: One, or its name.
        parts: Number of parts.
        like: The shapes and dtypes of a part's result.
    """
    if isinstance(rule, Accumulator):
        return rule
    rule = AccumulationType(rule)
    if rule == AccumulationType.CONCAT:
        return _leafwise(_empty_list(parts), _store, _merge_parts, lambda y: y)
    means = rule in (AccumulationType.MEAN, AccumulationType.RUNNING_MEAN)
    if means and not all(jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(like)):
        raise ValueError(
            f"microbatch: a result is not a floating array, expected one for {rule.value}. Sum it."
        )
    gathering = _leafwise(
        _wide_zeros,
        _update_mean if rule == AccumulationType.RUNNING_MEAN else _add,
        lambda total: total / parts if rule == AccumulationType.MEAN else total,
        functools.partial(jnp.mean if means else jnp.sum, axis=0),
    )

    def narrow(carry: Any) -> Any:
        ends = gathering.finalize(carry)
        return jax.tree.map(lambda end, x: end.astype(x.dtype), ends, like)

    return dataclasses.replace(gathering, finalize=narrow)


def _leafwise(init: Any, update: Any, finalize: Any, aggregate: Any) -> Accumulator:
    """The rule of one array for all arrays of a tree."""
    over = jax.tree.map
    return Accumulator(
        functools.partial(over, init),
        lambda carry, results, i: over(lambda c, y: update(c, y, i), carry, results),
        functools.partial(over, finalize),
        functools.partial(over, aggregate),
    )


def _wide_zeros(like: Any) -> jax.Array:
    """Zeros; sums of 16-bit numbers over many parts are made in float32."""
    inexact = jnp.issubdtype(like.dtype, jnp.inexact)
    return jnp.zeros(like.shape, compute_dtype(like.dtype) if inexact else like.dtype)


def _add(total: jax.Array, y: jax.Array, i: Any) -> jax.Array:
    del i
    return total + y.astype(total.dtype)


def _update_mean(mean: jax.Array, y: jax.Array, i: Any) -> jax.Array:
    return mean + (y.astype(mean.dtype) - mean) / jnp.asarray(i + 1, mean.dtype)


def _empty_list(parts: Any) -> Callable[[Any], jax.Array]:
    return lambda like: jnp.zeros((parts, *like.shape), like.dtype)


def _store(listed: jax.Array, y: jax.Array, i: Any) -> jax.Array:
    return listed.at[i].set(y)


def _merge_parts(listed: jax.Array) -> jax.Array:
    """The examples of all parts in their order: part `i` has every `k`-th from the `i`-th on."""
    return jnp.swapaxes(listed, 0, 1).reshape(-1, *listed.shape[2:])
