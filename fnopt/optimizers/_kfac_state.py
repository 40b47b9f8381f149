"""State of K-FAC: averages of factors, inverse factors, and the status of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Slot, Status
from fnopt.numerics import per_row, safe_increment, zero_count

if TYPE_CHECKING:
    from fnopt.curvature import BlockStack, KroneckerModel


class Averages(NamedTuple):
    """Moving averages of K-FAC, a part of `KfacState`.

    Attributes:
        averaged: The number of batches in the averages.
        factors: The Kronecker factors of every stack of blocks.
        inverses: The inverses of the damped factors; with EKFAC, the factors' eigenvectors.
        moments: The second moments in the eigenbases of every stack; empty without EKFAC.
    """

    averaged: jax.Array
    factors: Any
    inverses: Any
    moments: Any


class When(NamedTuple):
    """Flags for the parts of the averages that a step updates.

    Attributes:
        statistics: Whether to include this batch in the averages.
        inverses: Whether to invert the factors.
    """

    statistics: jax.Array
    inverses: jax.Array


def zero_averages(stacks: Sequence[BlockStack], eigenbasis: bool, dtype: Any) -> Averages:
    """Return zero averages."""
    from fnopt.curvature import basis_shapes, is_corrected, moment_shape

    def zeros(shapes: Any) -> Any:
        return tuple(jnp.zeros(shape, dtype) for shape in shapes)

    factors = [[side.shape(s.matrices) for side in s.sides] for s in stacks]
    inverses, moments = factors, []
    if eigenbasis:
        inverses = [
            basis_shapes(s) if is_corrected(s) else f for s, f in zip(stacks, factors, strict=True)
        ]
        moments = [[moment_shape(s)] if is_corrected(s) else [] for s in stacks]
    return Averages(zero_count(), *(tuple(map(zeros, x)) for x in (factors, inverses, moments)))


def update_averages(
    model: KroneckerModel,
    tape: Callable[[], Any],
    old: Averages,
    due: When,
    damping: jax.Array,
    decay: jax.Array,
    finite_blocks: list[jax.Array],
) -> Averages:
    """Include a batch in the moving averages; the first batches have equal weights.

    Non-finite blocks (for example, of a damaged checkpoint) are recomputed from this batch.

    Args:
        model: The model and its batch.
        tape: A function that returns the tape for the factors, called only if an update is due.
        old: The averages before this step.
        due: The parts to update.
        damping: The damping of this step.
        decay: The largest decay rate of the averages.
        finite_blocks: The masks of finite blocks, from `find_finite_blocks`.
    """
    is_damaged = ~are_all_finite(finite_blocks)
    due = When(*(now | is_damaged for now in due))
    if model.spec.eigenbasis:
        return _update_eigenbases(model, tape, old, due, damping, decay, finite_blocks)

    def add_batch(old: Averages) -> tuple[jax.Array, Any]:
        number, weight = _average_weight(old, decay, model.dtype)
        return number, _average(weight, old.factors, model.factors_of(tape()), finite_blocks)

    # `select` instead of `cond` would compute factors and inverses in every step.
    number, factors = jax.lax.cond(
        due.statistics, add_batch, lambda old: (old.averaged, old.factors), old
    )
    inverses = jax.lax.cond(
        due.inverses,
        lambda factors: model.inverses(factors, damping),
        lambda _: old.inverses,
        factors,
    )
    return Averages(number, factors, inverses, old.moments)


def _update_eigenbases(
    model: KroneckerModel,
    tape: Callable[[], Any],
    old: Averages,
    due: When,
    damping: jax.Array,
    decay: jax.Array,
    finite_blocks: list[jax.Array],
) -> Averages:
    """Update factors, eigenbases and moments; rotate the moments into the new bases."""
    from fnopt.curvature import rebase_moments

    def rebase(factors: Any) -> tuple[Any, Any]:
        bases = model.bases(factors, damping)
        pairs = zip(old.inverses, bases, old.moments, strict=True)
        return bases, tuple(tuple(rebase_moments(o, n, m) for m in s) for o, n, s in pairs)

    def add_batch(old: Averages) -> Averages:
        number, weight = _average_weight(old, decay, model.dtype)
        recorded = tape()
        factors = _average(weight, old.factors, model.factors_of(recorded), finite_blocks)
        bases, moments = jax.lax.cond(
            due.inverses, rebase, lambda _: (old.inverses, old.moments), factors
        )
        moments = _average(weight, moments, model.moments(recorded, bases), finite_blocks)
        return Averages(number, factors, bases, moments)

    return jax.lax.cond(due.statistics, add_batch, lambda old: old, old)


def _average_weight(old: Averages, decay: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Return the new number of batches, and the weight of the old averages."""
    number = safe_increment(old.averaged)
    # The first batches have equal weights, so no bias toward the initial zeros remains (Martens and
    # Grosse, 2015, section 5).
    return number, jnp.minimum(1 - 1 / number.astype(dtype), decay)


def find_finite_blocks(averages: Averages) -> list[jax.Array]:
    """Return masks of finite blocks for each stack: `[T]`, or `[0]` for stacks without factors."""
    moments = averages.moments or ((),) * len(averages.factors)
    stacks = zip(averages.factors, averages.inverses, moments, strict=True)
    masks = []
    for stack in stacks:
        finite = [jnp.isfinite(x).all(tuple(range(1, x.ndim))) for part in stack for x in part]
        masks.append(jnp.stack(finite).all(0) if finite else jnp.ones(0, bool))
    return masks


def are_all_finite(finite_blocks: list[jax.Array]) -> jax.Array:
    """Whether all blocks are finite."""
    return jnp.concatenate([jnp.ones(1, bool), *finite_blocks]).all()


def _average(weight: jax.Array, old: Any, new: Any, finite_blocks: list[jax.Array]) -> Any:
    """Update the averages of every stack; a non-finite average restarts with this batch."""

    def average(o: jax.Array, n: jax.Array, is_finite: jax.Array) -> jax.Array:
        return jnp.where(per_row(is_finite, o), weight * o + (1 - weight) * n, n)

    return tuple(
        tuple(average(o, n, mask) for o, n in zip(*pair, strict=True))
        for *pair, mask in zip(old, new, finite_blocks, strict=True)
    )


class KfacState(NamedTuple):
    r"""State of `kfac`.

    Attributes:
        count: :math:`t`, the number of steps, including rejected steps.
        averaged: The number of batches in the averages.
        damping: :math:`\lambda` of the next step.
        weights: :math:`(\alpha, \mu)` of the last accepted step, `[2]`.
        factors: The averaged Kronecker factors :math:`A_l` and :math:`G_l`, in stacks.
        inverses: The inverses of the damped factors; with `eigenbasis`, the eigenvectors.
        moments: With `eigenbasis`, the second moments in the eigenbases of every stack.
        momentum: :math:`u_t`, the last accepted step.
        value: The objective before the last step.
        status: A `Status`: `RUNNING`, or the reason why the last step was rejected. After a step in
            which non-finite parts of the state were replaced, `NONFINITE_STATE`.
    """

    count: jax.Array
    averaged: jax.Array
    damping: jax.Array
    weights: jax.Array
    factors: Any
    inverses: Any
    moments: Any
    momentum: Slot
    value: jax.Array
    status: jax.Array


def averages_of(state: KfacState) -> Averages:
    """Return the averages in a state."""
    return Averages(state.averaged, state.factors, state.inverses, state.moments)


def replace_nonfinite(state: KfacState, damping: Any) -> KfacState:
    """Replace non-finite damping and weights by their initial values.

    Args:
        state: The state. The averages and the momentum are checked elsewhere.
        damping: The initial damping.
    """

    def replace(x: jax.Array, initial: Any) -> jax.Array:
        return jnp.where(jnp.isfinite(x), x, jnp.asarray(initial).astype(x.dtype))

    return state._replace(
        damping=replace(state.damping, damping), weights=replace(state.weights, 0)
    )


def in_range(damping: jax.Array) -> jax.Array:
    """Clip the damping so that it is positive and its inverse is finite."""
    tiny = jnp.finfo(damping.dtype).tiny
    return jnp.clip(damping, tiny, 1 / tiny)


def status_after(
    accepted: jax.Array, is_intact: jax.Array, is_defined: jax.Array, is_finite: jax.Array
) -> jax.Array:
    """Return the status after a step.

    Args:
        accepted: Whether the step was accepted.
        is_intact: Whether the state before the step was finite.
        is_defined: Whether the objective and its gradient are finite.
        is_finite: Whether the step and the objective after the step are finite.
    """
    success = jnp.where(is_intact, Status.RUNNING.array, Status.NONFINITE_STATE.array)
    failure = jnp.where(is_finite, Status.STALLED.array, Status.NONFINITE_STEP.array)
    failure = jnp.where(is_defined, failure, Status.NONFINITE_START.array)
    return jnp.where(accepted, success, failure)
