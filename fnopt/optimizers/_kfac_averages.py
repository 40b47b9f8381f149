"""The averages of K-FAC: factors, what inverts them, and second moments in their eigenbases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import increment, mesh_of, whole_leaves
from fnopt.optimizers._batch_step import step_dtype

if TYPE_CHECKING:
    from fnopt.curvature import KroneckerModel, KroneckerSpec


class Averages(NamedTuple):
    """A part of `KfacState`.

    Attributes:
        averaged: How many batches there are in them.
        factors: By block, its factors.
        inverses: Of the damped factors; the bases where moments are kept.
        moments: By block, the second moments in its bases; none without them.
    """

    averaged: jax.Array
    factors: Any
    inverses: Any
    moments: Any


class When(NamedTuple):
    """What is due in a step: bools.

    Attributes:
        statistics: Whether the averages get this batch.
        inverses: Whether the factors are inverted.
    """

    statistics: jax.Array
    inverses: jax.Array


def zero_averages(spec: KroneckerSpec, params: Any, batch: Any, count: jax.Array) -> Averages:
    """Zeros, before the first batch."""
    from fnopt.curvature import basis_shapes, is_corrected, moment_shape, planned_blocks

    if whole_leaves() is not None:
        raise ValueError(
            "kfac: its model needs whole params, and sharded works on parts of them. Take kfac "
            "without sharded and with axis_name: its factors are then those of all devices' "
            "examples, and each device inverts some."
        )
    with mesh_of(params):
        blocks = planned_blocks(spec, params, batch)
    dtype = step_dtype(params)

    def zeros(shapes: Any) -> Any:
        return tuple(jnp.zeros(shape, dtype) for shape in shapes)

    factors = [[side.shape(b.matrices) for side in b.sides] for b in blocks]
    inverses, moments = factors, []
    if spec.eigenbasis:
        inverses = [
            basis_shapes(b) if is_corrected(b) else f for b, f in zip(blocks, factors, strict=True)
        ]
        moments = [[moment_shape(b)] if is_corrected(b) else [] for b in blocks]
    return Averages(count, *(tuple(map(zeros, x)) for x in (factors, inverses, moments)))


def with_batch(
    model: KroneckerModel,
    tape: Callable[[], Any],
    old: Averages,
    due: When,
    damping: jax.Array,
    decay: jax.Array,
) -> Averages:
    """The averages after a step; the first batches count alike.

    Args:
        model: The model with its batch.
        tape: What factors are made of, if it is called.
        old: The averages before.
        due: What is due.
        damping: Of this step.
        decay: The largest decay.
    """
    if model.spec.eigenbasis:
        return _corrected(model, tape, old, due, damping, decay)

    def averaged(old: Averages) -> tuple[jax.Array, Any]:
        number, weight = _weight(old, decay, model.dtype)
        return number, _mean(weight, old.factors, model.factors_of(tape()))

    number, factors = jax.lax.cond(
        due.statistics, averaged, lambda old: (old.averaged, old.factors), old
    )
    inverses = jax.lax.cond(
        due.inverses,
        lambda factors: model.inverses(factors, damping),
        lambda _: old.inverses,
        factors,
    )
    return Averages(number, factors, inverses, old.moments)


def _corrected(
    model: KroneckerModel,
    tape: Callable[[], Any],
    old: Averages,
    due: When,
    damping: jax.Array,
    decay: jax.Array,
) -> Averages:
    """Moments are taken over into new bases, so that bases follow factors in the same step."""
    from fnopt.curvature import rebased

    def turned(factors: Any) -> tuple[Any, Any]:
        bases = model.bases(factors, damping)
        pairs = zip(old.inverses, bases, old.moments, strict=True)
        return bases, tuple(tuple(rebased(o, n, m) for m in s) for o, n, s in pairs)

    def averaged(old: Averages) -> Averages:
        number, weight = _weight(old, decay, model.dtype)
        found = tape()
        factors = _mean(weight, old.factors, model.factors_of(found))
        bases, moments = jax.lax.cond(
            due.inverses, turned, lambda _: (old.inverses, old.moments), factors
        )
        moments = _mean(weight, moments, model.moments(found, bases))
        return Averages(number, factors, bases, moments)

    return jax.lax.cond(due.statistics, averaged, lambda old: old, old)


def _weight(old: Averages, decay: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    number = increment(old.averaged)
    return number, jnp.minimum(1 - 1 / number.astype(dtype), decay)


def _mean(weight: jax.Array, old: Any, new: Any) -> Any:
    return jax.tree.map(lambda o, n: weight * o + (1 - weight) * n, old, new)
