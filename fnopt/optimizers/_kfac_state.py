"""The state of K-FAC: averages of factors, their inverses, and the status of a step."""

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
    """Running averages of K-FAC, a part of `KfacState`.

    Attributes:
        averaged: The number of batches in the averages.
        factors: The Kronecker factors, for every stack of blocks.
        inverses: The inverses of the damped factors; with `moments`, their eigenvectors.
        moments: The second moments in the eigenbases, for every stack; empty without EKFAC.
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
    """Return averages of zero, as before the first batch."""
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
    sound: list[jax.Array],
) -> Averages:
    """Update the running averages by a batch; the first batches have equal weights.

    Nonfinite blocks (for example from a damaged checkpoint) are recomputed from this batch.

    Args:
        model: The model with its batch.
        tape: A function that returns the tape for the factors, called only if an update is due.
        old: The averages before this step.
        due: The parts to update.
        damping: The damping of this step.
        decay: The largest decay of the averages.
        sound: The mask of finite blocks, from `find_finite_blocks`.
    """
    damaged = ~are_all_finite(sound)
    due = When(*(now | damaged for now in due))
    if model.spec.eigenbasis:
        return _update_eigenbases(model, tape, old, due, damping, decay, sound)

    def add_batch(old: Averages) -> tuple[jax.Array, Any]:
        number, weight = _weight(old, decay, model.dtype)
        return number, _mean(weight, old.factors, model.factors_of(tape()), sound)

    # Selects instead of `cond` would compute the factors and their inverses in every step.
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
    sound: list[jax.Array],
) -> Averages:
    """Update factors, bases and moments in one step; rotate the moments into the new bases."""
    from fnopt.curvature import rebase_moments

    def rebase(factors: Any) -> tuple[Any, Any]:
        bases = model.bases(factors, damping)
        pairs = zip(old.inverses, bases, old.moments, strict=True)
        return bases, tuple(tuple(rebase_moments(o, n, m) for m in s) for o, n, s in pairs)

    def add_batch(old: Averages) -> Averages:
        number, weight = _weight(old, decay, model.dtype)
        found = tape()
        factors = _mean(weight, old.factors, model.factors_of(found), sound)
        bases, moments = jax.lax.cond(
            due.inverses, rebase, lambda _: (old.inverses, old.moments), factors
        )
        moments = _mean(weight, moments, model.moments(found, bases), sound)
        return Averages(number, factors, bases, moments)

    return jax.lax.cond(due.statistics, add_batch, lambda old: old, old)


def _weight(old: Averages, decay: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    number = safe_increment(old.averaged)
    # A plain mean until 1 - 1/n reaches the decay: as in Martens and Grosse (2015), section 5, no
    # average starts at zero.
    return number, jnp.minimum(1 - 1 / number.astype(dtype), decay)


def find_finite_blocks(averages: Averages) -> list[jax.Array]:
    """Mask of the finite blocks of every stack: `[T]`, or `[0]` for blocks without factors."""
    moments = averages.moments or ((),) * len(averages.factors)
    stacks = zip(averages.factors, averages.inverses, moments, strict=True)
    found = []
    for stack in stacks:
        finite = [jnp.isfinite(x).all(tuple(range(1, x.ndim))) for part in stack for x in part]
        found.append(jnp.stack(finite).all(0) if finite else jnp.ones(0, bool))
    return found


def are_all_finite(sound: list[jax.Array]) -> jax.Array:
    """Whether all blocks are finite."""
    return jnp.concatenate([jnp.ones(1, bool), *sound]).all()


def _mean(weight: jax.Array, old: Any, new: Any, sound: list[jax.Array]) -> Any:
    """Running averages of every stack; a nonfinite average restarts with this batch."""

    def average(o: jax.Array, n: jax.Array, sound: jax.Array) -> jax.Array:
        return jnp.where(per_row(sound, o), weight * o + (1 - weight) * n, n)

    return tuple(
        tuple(average(o, n, ok) for o, n in zip(*pair, strict=True))
        for *pair, ok in zip(old, new, sound, strict=True)
    )


class KfacState(NamedTuple):
    """Averages of the factors, their inverses, and the last step.

    Attributes:
        count: Number of updates that were made.
        averaged: The number of batches in the averages.
        damping: The damping of the next step.
        weights: The weights of the last direction and of the step before it, `[2]`.
        factors: The averaged Kronecker factors, for every stack of blocks.
        inverses: The inverses of the damped factors; with `eigenbasis`, their eigenvectors.
        moments: With `eigenbasis`, the second moments in the eigenbases, for every stack.
        momentum: The last step, like the params.
        value: The objective before the last step.
        status: A `Status`: `RUNNING`, or the reason why the last step was rejected;
            `NONFINITE_STATE` after a step for which nonfinite parts of the state were replaced.
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
    """Return the running averages in a state."""
    return Averages(state.averaged, state.factors, state.inverses, state.moments)


def replace_nonfinite(state: KfacState, damping: Any) -> KfacState:
    """Replace nonfinite numbers of the state by their initial values.

    Args:
        state: The state; averages and momentum are checked where they are used.
        damping: The initial damping.
    """

    def finite(x: jax.Array, first: Any) -> jax.Array:
        return jnp.where(jnp.isfinite(x), x, jnp.asarray(first).astype(x.dtype))

    return state._replace(damping=finite(state.damping, damping), weights=finite(state.weights, 0))


def status_after(
    accepted: jax.Array, whole: jax.Array, known: jax.Array, finite: jax.Array
) -> jax.Array:
    """Return the status after a step: `NONFINITE_STATE`, or the reason for a rejection."""
    good = jnp.where(whole, Status.RUNNING.array, Status.NONFINITE_STATE.array)
    refused = jnp.where(finite, Status.STALLED.array, Status.NONFINITE_STEP.array)
    return jnp.where(accepted, good, jnp.where(known, refused, Status.NONFINITE_START.array))
