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
    r"""State of the estimated lower bound of the loss.

    Attributes:
        best_value: The smallest loss of all steps; infinity before the first loss.
        margin: :math:`\delta_t`, the difference between `best_value` and the estimated bound.
        below_count: The number of losses below the bound. Above 0, the user's bound is wrong.
    """

    best_value: jax.Array
    margin: jax.Array
    below_count: jax.Array


def first_lower_bound(dtype: Any) -> LowerBound:
    """Return the state before the first loss."""
    return LowerBound(jnp.full((), jnp.inf, dtype), jnp.zeros((), dtype), zero_count())


def next_lower_bound(
    user_bound: Any, value: jax.Array, state: LowerBound, beta: Any = 0.0
) -> tuple[jax.Array, LowerBound]:
    r"""Return the lower bound for the step size, and the state after a loss.

    The user's bound is used until a loss is below it. Then, or without a user's bound, the bound is
    the target level of subgradient methods with an unknown optimum:

    .. math:: f_{lev} = \min_{j \le t} f_j - \delta_t, \qquad \delta_t = \begin{cases}
              \max(2\, \delta_{t-1},\, f_{lev} - f_t) & f_t < f_{lev} \\
              \delta_{t-1} & f_{lev} \le f_t < \min_{j < t} f_j \\
              2^{\beta - 1}\, \delta_{t-1} & \text{otherwise} \end{cases}

    The initial margin is the modulus of the first loss, so the initial bound is 0 for a positive
    loss.

    Args:
        user_bound: The user's lower bound, or `None`.
        value: The loss :math:`f_t`.
        state: The state before this loss.
        beta: :math:`\beta`, the decay rate of the averages in the step. The averages span about
            :math:`1 / (1 - \beta)` steps, in which the margin is halved at most once.

    Reference:
        Nedić and Bertsekas, 2001, SIAM J. Optim. 12(1), the dynamic step size rule for an unknown
        optimum. In the paper, the margin shrinks after every missed level, down to an absolute
        lower bound. In fnopt, the margin shrinks if the loss didn't decrease, without a lower
        bound.
    """
    is_first = jnp.isinf(state.best_value)
    infinity = jnp.full_like(value, jnp.inf)
    level = jnp.where(is_first, -infinity, state.best_value - state.margin)
    bound = level if user_bound is None else jnp.where(state.below_count > 0, level, user_bound)
    is_below = value < bound
    shrink = jnp.exp2(jnp.asarray(beta, value.dtype) - 1)
    margin = jnp.where(value < state.best_value, state.margin, shrink * state.margin)
    margin = jnp.where(is_below, jnp.maximum(2 * state.margin, bound - value), margin)
    if user_bound is None:
        # A loss of 0 has no scale; 1 is a typical scale of log-likelihoods.
        scale = jnp.where(value == 0, jnp.ones_like(value), jnp.abs(value))
        margin = jnp.where(is_first, scale, margin)
    # fmin ignores a NaN loss.
    best_value = jnp.fmin(state.best_value, value)
    count = jnp.where(is_below, safe_increment(state.below_count), state.below_count)
    level = best_value - margin
    bound = level if user_bound is None else jnp.where(count > 0, level, user_bound)
    return bound, LowerBound(best_value, margin, count)


class ScaleByPolyakState(NamedTuple):
    """State of `scale_by_polyak`.

    Attributes:
        lower_bound: The state of the estimated lower bound.
    """

    lower_bound: LowerBound


class scale_by_polyak(Transformation):
    r"""Scale by Polyak's step size, at which a linear model of the loss reaches a lower bound.

    .. math:: u = \min\left(\frac{f(\theta) - f^*}{\lVert g \rVert^2 + \epsilon},\;
              \eta_{max}\right) g

    `update` needs the loss as the extra argument `value`.

    Args:
        f_min: :math:`f^*`, a lower bound of the loss: 0 if the model can fit all data. None
            estimates the bound, as a level below the lowest loss of all steps. If the bound is too
            high, the params stop changing at this loss. If a loss is below the bound, the estimate
            replaces the bound, and `below_count` in the state is above 0.
        max_learning_rate: :math:`\eta_{max}`, the largest step size.
        eps: :math:`\epsilon`, added to the squared norm.
        variant: `'sps'`, or `'sps+'` to replace a negative step size by 0 if the loss is below
            :math:`f^*`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_polyak(), {"w": jnp.asarray([4.0])}
        >>> tx.update(g, tx.init(g), value=jnp.asarray(8.0))[0]  # the gradient times 8 / 4^2
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
        as_scalar = lambda x: jnp.asarray(x).astype(norm.dtype)  # noqa: E731
        dtype = state.lower_bound.best_value.dtype
        value = scalar_loss(value, dtype)
        user_bound = None if self.f_min is None else jnp.asarray(self.f_min).astype(dtype)
        bound, lower_bound = next_lower_bound(user_bound, value, state.lower_bound)
        gap = (value - bound).astype(norm.dtype)
        gap = jnp.maximum(gap, jnp.zeros_like(gap)) if self.variant == "sps+" else gap
        square = norm * norm + as_scalar(self.eps)
        is_zero = square <= jnp.finfo(norm.dtype).tiny  # a zero gradient makes no step
        ratio = gap / jnp.where(is_zero, jnp.ones_like(square), square)
        step = jnp.minimum(ratio, as_scalar(self.max_learning_rate))
        step = jnp.where(is_zero, jnp.zeros_like(step), step)
        return map_leaves(
            lambda g: step.astype(jnp.finfo(g.dtype).dtype) * g, updates
        ), ScaleByPolyakState(lower_bound)


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
        max_learning_rate: :math:`\eta_{max}`, the largest step size.
        scaling: :math:`s`, a factor of the step size, a number or a `Schedule`.
        f_min: :math:`f^*`, a lower bound of the loss: 0 if the model can fit all data. None
            estimates the bound, as a level below the lowest loss of all steps. If the bound is too
            high, the params stop changing at this loss. If a loss is below the bound, the estimate
            replaces the bound, and `below_count` in the state is above 0.
        eps: :math:`\epsilon`, added to the squared norm.
        variant: `'sps'`, or `'sps+'` to replace a negative step size by 0 if the loss is below
            :math:`f^*`.

    Returns:
        A chain of `scale_by_polyak` and `scale_by_learning_rate`, whose `update` needs the extra
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
