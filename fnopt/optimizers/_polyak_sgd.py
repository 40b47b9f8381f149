"""Gradient descent with Polyak's step size, and an estimated lower bound of the loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    ScalarOrSchedule,
    Transformation,
    global_norm,
    hyper,
    map_leaves,
    scalar_loss,
    static,
)
from fnopt.numerics import safe_increment, zero_count
from fnopt.optimizers._recipe import descend
from fnopt.transforms import Chain, real_dtype_of


class LowerBound(NamedTuple):
    """State of the estimated lower bound of the loss.

    Attributes:
        best_value: The smallest loss of all steps; infinity before the first loss.
        margin: The difference between `best_value` and the estimated bound.
        below_count: The number of losses below the bound. If it is above 0, a given bound is wrong.
    """

    best_value: jax.Array
    margin: jax.Array
    below_count: jax.Array


def first_lower_bound(dtype: Any) -> LowerBound:
    """Return the state before the first loss."""
    return LowerBound(jnp.full((), jnp.inf, dtype), jnp.zeros((), dtype), zero_count())


def next_lower_bound(
    given: Any, value: jax.Array, state: LowerBound, beta: Any = 0.0
) -> tuple[jax.Array, LowerBound]:
    r"""Return the lower bound for the step size, and the state after a loss.

    A given bound is used until a loss is below it. After that, or without a given bound, the bound
    is the target level of subgradient methods with an unknown optimum:

    .. math:: f_{lev} = \min_{j \le t} f_j - \delta_t, \qquad \delta_t = \begin{cases}
              \max(2\, \delta_{t-1},\, f_{lev} - f_t) & f_t < f_{lev} \\
              \delta_{t-1} & f_{lev} \le f_t < \min_{j < t} f_j \\
              2^{\beta - 1}\, \delta_{t-1} & \text{otherwise} \end{cases}

    The initial margin is the modulus of the first loss, so the initial bound of a positive loss is
    0.

    Args:
        given: The user's lower bound, or `None`.
        value: The loss.
        state: The state before this loss.
        beta: The decay of the averages in the step. The averages span `1 / (1 - beta)` steps, in
            which the margin is halved at most once.

    Reference:
        Nedić and Bertsekas, 2001, SIAM J. Optim. 12(1), the dynamic step size rule for an unknown
        optimum. In this paper, the margin shrinks after every missed level, down to an absolute
        floor. In fnopt, the margin shrinks if the loss didn't decrease, and needs no floor.
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
    # fmin ignores a NaN loss.
    best = jnp.fmin(state.best_value, value)
    count = jnp.where(below, safe_increment(state.below_count), state.below_count)
    level = best - margin
    bound = level if given is None else jnp.where(count > 0, level, given)
    return bound, LowerBound(best, margin, count)


class ScaleByPolyakState(NamedTuple):
    """State of the estimated lower bound of the loss."""

    lower_bound: LowerBound


class scale_by_polyak(Transformation):
    r"""Scale by the step size at which a linear model of the loss reaches the smallest loss.

    .. math:: u = \min\left(\frac{f(\theta) - f^*}{\lVert g \rVert^2 + \epsilon},\;
              \eta_{max}\right) g

    `update` needs the loss as the extra argument `value`.

    Args:
        f_min: :math:`f^*`, the smallest possible loss: 0 if the model can fit all data. By default
            the bound is estimated as a level below the lowest loss of all steps. If the bound is
            too high, the params stop changing at this loss. If a loss is below the bound, the
            estimate replaces the bound, and `below_count` in the state is above 0.
        max_learning_rate: :math:`\eta_{max}`.
        eps: :math:`\epsilon`.
        variant: `'sps'`, or `'sps+'`, which takes no negative step if the loss is below
            :math:`f^*`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_polyak(), {"w": jnp.asarray([4.0])}
        >>> tx.update(g, tx.init(g), value=jnp.asarray(8.0))[0]  # 8 / 4^2 of it
        {'w': Array([2.], dtype=float32)}

    Reference:
        Loizou, Vaswani, Laradji and Lacoste-Julien, 2020, arXiv:2002.10542.
    """

    f_min: Scalar | None = hyper(default=None)
    max_learning_rate: Scalar = hyper(default=1.0, ge=0, infinite=True)
    eps: Scalar = hyper(default=0.0, ge=0)
    variant: str = static(default="sps", choices=("sps", "sps+"))

    def init(self, params: Any) -> ScaleByPolyakState:
        """Return the state before the first loss."""
        return ScaleByPolyakState(first_lower_bound(real_dtype_of(params)))

    def update(
        self,
        updates: Any,
        state: ScaleByPolyakState,
        params: Any = None,
        *,
        value: Any,
        **extra_args: Any,
    ) -> tuple[Any, ScaleByPolyakState]:
        """Return the scaled updates."""
        norm = global_norm(updates)
        number = lambda x: jnp.asarray(x).astype(norm.dtype)  # noqa: E731
        dtype = state.lower_bound.best_value.dtype
        value = scalar_loss(value, dtype)
        given = None if self.f_min is None else jnp.asarray(self.f_min).astype(dtype)
        bound, seen = next_lower_bound(given, value, state.lower_bound)
        gap = (value - bound).astype(norm.dtype)
        gap = jnp.maximum(gap, jnp.zeros_like(gap)) if self.variant == "sps+" else gap
        square = norm * norm + number(self.eps)
        still = square <= jnp.finfo(norm.dtype).tiny  # no step for a zero gradient
        ratio = gap / jnp.where(still, jnp.ones_like(square), square)
        step = jnp.minimum(ratio, number(self.max_learning_rate))
        step = jnp.where(still, jnp.zeros_like(step), step)
        return map_leaves(
            lambda g: step.astype(jnp.finfo(g.dtype).dtype) * g, updates
        ), ScaleByPolyakState(seen)


def polyak_sgd(
    max_learning_rate: Scalar = 1.0,
    scaling: ScalarOrSchedule = 1.0,
    f_min: Scalar | None = None,
    eps: Scalar = 0.0,
    variant: str = "sps",
) -> Chain:
    r"""Gradient descent with Polyak's step size, which needs no learning rate.

    .. math:: u_t = -s_t \min\left(\frac{f(\theta_t) - f^*}{\lVert g_t \rVert^2 + \epsilon},\;
              \eta_{max}\right) g_t

    Args:
        max_learning_rate: :math:`\eta_{max}`.
        scaling: :math:`s`, a number or a `Schedule`.
        f_min: :math:`f^*`, the smallest possible loss: 0 if the model can fit all data. By default
            the bound is estimated as a level below the lowest loss of all steps. If the bound is
            too high, the params stop changing at this loss. If a loss is below the bound, the
            estimate replaces the bound, and `below_count` in the state is above 0.
        eps: :math:`\epsilon`.
        variant: `'sps'`, or `'sps+'`, which takes no negative step if the loss is below
            :math:`f^*`.

    Returns:
        A chain of `scale_by_polyak` and `scale_by_learning_rate`. Its `update` needs the extra
        argument `value`, the loss at the current parameters.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> loss = lambda params: jnp.sum((params["w"] - 3.0) ** 2)
        >>> tx, params = fnopt.polyak_sgd(), {"w": jnp.zeros(1)}
        >>> value, g = jax.value_and_grad(loss)(params)
        >>> updates, _ = tx.update(g, tx.init(params), params, value=value)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([1.5], dtype=float32)}

    Reference:
        Loizou, Vaswani, Laradji and Lacoste-Julien, 2020, arXiv:2002.10542.
    """
    return descend(scale_by_polyak(f_min, max_learning_rate, eps, variant), scaling)
