"""The lower bound of a loss: given by the user, or estimated from the losses."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import safe_increment, zero_count


class LowerBound(NamedTuple):
    """State of the estimated lower bound of the loss.

    Attributes:
        best_value: The smallest loss so far; infinity before the first.
        margin: By how much the estimate is below `best_value`.
        below_count: How many losses were below the bound. Above 0 a given bound is wrong.
    """

    best_value: jax.Array
    margin: jax.Array
    below_count: jax.Array


def first_lower_bound(dtype: Any) -> LowerBound:
    """The state before the first loss."""
    return LowerBound(jnp.full((), jnp.inf, dtype), jnp.zeros((), dtype), zero_count())


def next_lower_bound(
    given: Any, value: jax.Array, state: LowerBound, beta: Any = 0.0
) -> tuple[jax.Array, LowerBound]:
    r"""The bound to step by, and the state after a loss.

    A given bound holds until a loss is below it. Then, and without one, the bound is the target
    level of subgradient methods with an unknown optimum:

    .. math:: f_{lev} = \min_{j \le t} f_j - \delta_t, \qquad \delta_t = \begin{cases}
              \max(2\, \delta_{t-1},\, f_{lev} - f_t) & f_t < f_{lev} \\
              \delta_{t-1} & f_{lev} \le f_t < \min_{j < t} f_j \\
              2^{\beta - 1}\, \delta_{t-1} & \text{otherwise} \end{cases}

    The first margin is the first loss's modulus: the bound of a positive loss begins at 0.

    Args:
        given: The bound that the user knows, or `None`.
        value: The loss.
        state: The state before it.
        beta: Decay of the averages that a step is made of. They forget in `1 / (1 - beta)` steps,
            in which the margin is halved at most once.

    Reference:
        Nedić and Bertsekas, 2001, SIAM J. Optim. 12(1), the dynamic step size rule for an unknown
        optimum. There the margin shrinks after every missed level, down to a floor in the unit of
        the loss; here it shrinks where the loss didn't fall, and needs no floor.
    """
    first = jnp.isinf(state.best_value)
    known = state.below_count > 0
    infinity = jnp.full_like(value, jnp.inf)
    level = jnp.where(first, -infinity, state.best_value - state.margin)
    bound = level if given is None else jnp.where(known, level, given)
    below = value < bound
    shrink = jnp.exp2(jnp.asarray(beta, value.dtype) - 1)
    margin = jnp.where(value < state.best_value, state.margin, shrink * state.margin)
    margin = jnp.where(below, jnp.maximum(2 * state.margin, bound - value), margin)
    if given is None:
        # A loss of 0 has no scale: 1 is the unit of a log-likelihood.
        scale = jnp.where(value == 0, jnp.ones_like(value), jnp.abs(value))
        margin = jnp.where(first, scale, margin)
    best = jnp.fmin(state.best_value, value)
    count = jnp.where(below, safe_increment(state.below_count), state.below_count)
    level = best - margin
    bound = level if given is None else jnp.where(count > 0, level, given)
    return bound, LowerBound(best, margin, count)
