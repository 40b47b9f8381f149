"""The state of K-FAC, what of it is made anew, and its status after a step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Slot, Status
from fnopt.optimizers._kfac_averages import Averages


class KfacState(NamedTuple):
    """Averages of the factors, their inverses, and the last step.

    Attributes:
        count: How many updates were made.
        averaged: How many batches the factors are averages of.
        damping: The damping of the next step.
        weights: What the last direction and the last step were multiplied with, `[2]`.
        factors: By stack of blocks, the averages of their factors.
        inverses: Of the damped factors, likewise; with `eigenbasis` their eigenvectors.
        moments: With `eigenbasis`, by stack, the second moments there.
        momentum: The last step, like the params.
        value: The objective before the last step.
        status: A `Status`: `RUNNING`, or why the last step was refused; `NONFINITE_STATE` after a
            step that was taken once what wasn't finite in the state had been made anew.
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
    """The running averages in a state."""
    return Averages(state.averaged, state.factors, state.inverses, state.moments)


def replace_nonfinite(state: KfacState, damping: Any) -> KfacState:
    """Replace the numbers of the state that are not finite by their initial values.

    Args:
        state: The state; its averages and its momentum are looked at where they are used.
        damping: The first damping.
    """

    def finite(x: jax.Array, first: Any) -> jax.Array:
        return jnp.where(jnp.isfinite(x), x, jnp.asarray(first).astype(x.dtype))

    return state._replace(damping=finite(state.damping, damping), weights=finite(state.weights, 0))


def status_after(
    taken: jax.Array, whole: jax.Array, known: jax.Array, finite: jax.Array
) -> jax.Array:
    """The status after a step: whether the state before it was whole, or why it was refused."""
    good = jnp.where(whole, Status.RUNNING.array, Status.NONFINITE_STATE.array)
    refused = jnp.where(finite, Status.STALLED.array, Status.NONFINITE_STEP.array)
    return jnp.where(taken, good, jnp.where(known, refused, Status.NONFINITE_START.array))
