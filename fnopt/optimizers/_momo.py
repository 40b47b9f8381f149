"""MoMo and MoMo-Adam: momentum with Polyak's step size."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    RealSlot,
    Scalar,
    ScalarOrSchedule,
    Slot,
    Transformation,
    hyper,
    map_leaves,
    scalar_loss,
    slot_zeros,
    static,
)
from fnopt.numerics import (
    bias_correction,
    clip_squarable,
    ema,
    positive_root,
    safe_increment,
    squared_modulus,
    zero_count,
)
from fnopt.optimizers._polyak_sgd import LowerBound, first_lower_bound, next_lower_bound
from fnopt.transforms import inner, numbers, real_dtype_of


class MomoState(NamedTuple):
    r"""State of `momo`.

    Attributes:
        exp_avg: :math:`d_t`, the moving average of the gradient.
        barf: :math:`\bar f_t`, the moving average of the loss.
        gamma: :math:`\gamma_t`, the moving average of :math:`\langle g_t, \theta_t \rangle`.
        lb: The lower bound :math:`f^*`, if it is adapted.
        lower_bound: The state of the estimated lower bound.
        count: :math:`t`, the number of steps.
    """

    exp_avg: Slot
    barf: jax.Array
    gamma: jax.Array
    lb: jax.Array
    lower_bound: LowerBound
    count: jax.Array


class MomoAdamState(NamedTuple):
    r"""State of `momo_adam`.

    Attributes:
        exp_avg: :math:`d_t`, the moving average of the gradient.
        exp_avg_sq: :math:`v_t`, the moving average of the squared gradient.
        barf: :math:`\bar f_t`, the moving average of the loss.
        gamma: :math:`\gamma_t`, the moving average of :math:`\langle g_t, \theta_t \rangle`.
        lb: The lower bound :math:`f^*`, if it is adapted.
        lower_bound: The state of the estimated lower bound.
        count: :math:`t`, the number of steps.
    """

    exp_avg: Slot
    exp_avg_sq: RealSlot
    barf: jax.Array
    gamma: jax.Array
    lb: jax.Array
    lower_bound: LowerBound
    count: jax.Array


class momo(Transformation):
    r"""MoMo: momentum with the step size at which a linear model of the loss reaches its bound.

    .. math::
        d_t &= \beta d_{t-1} + (1-\beta)\, g_t, \qquad
        \bar f_t = \beta \bar f_{t-1} + (1-\beta)\, f_t, \qquad
        \gamma_t = \beta \gamma_{t-1} + (1-\beta)\, \langle g_t, \theta_t \rangle \\
        \tau_t &= \min\Big(\eta_t,\, \frac{\big((1+\eta_t\lambda)(\bar f_t - f^* - \gamma_t) +
        \langle d_t, \theta_t \rangle\big)_+}{\lVert d_t \rVert^2}\Big), \qquad
        u_t = -\frac{\eta_t \lambda}{1 + \eta_t \lambda}\, \theta_t - \tau_t\, d_t

    In the first step, the averages are initialized with the first values. `update` needs the loss
    as the extra argument `value`. Updates include the minus sign, so don't chain
    `scale_by_learning_rate` after this transform.

    Args:
        learning_rate: :math:`\eta`, the largest step size, a number or a `Schedule`.
        beta: :math:`\beta`, decay rate of the moving averages.
        lower_bound: :math:`f^*`, a lower bound of the loss: 0 if the model can fit all data. None
            estimates the bound, as a level below the lowest loss of all steps. If the bound is too
            high, the parameters stop changing at this loss. If a loss is below the bound, the
            estimate replaces the bound, and `below_count` in the state is above 0.
        weight_decay: :math:`\lambda`, the weight decay, applied as a proximal step.
        adapt_lower_bound: Whether to increase the bound if the model shows that the bound is too
            low (the paper's MoMo*). The bound never decreases below :math:`f^*`.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.momo(), jnp.asarray([1.0, 2.0])
        >>> value, grad = jax.value_and_grad(lambda x: jnp.sum(x**2))(params)
        >>> updates, _ = tx.update(grad, tx.init(params), params, value=value)
        >>> fnopt.apply_updates(params, updates)
        Array([0.5, 1. ], dtype=float32)

    Reference:
        Schaipp, Ohana, Eickenberg, Defazio and Gower, 2023, arXiv:2305.07583.
    """

    needs_params = True

    learning_rate: ScalarOrSchedule = hyper(default=1.0, ge=0, schedule=True)
    beta: Scalar = hyper(default=0.9, ge=0, lt=1)
    lower_bound: Scalar | None = hyper(default=None, infinite=True)
    weight_decay: Scalar = hyper(default=0.0, ge=0)
    adapt_lower_bound: bool = static(default=False)

    def init(self, params: Any) -> MomoState:
        """Return the initial state, with zero averages."""
        return MomoState(slot_zeros(params), *_first_scalars(self, params))

    def update(
        self,
        updates: Any,
        state: MomoState,
        params: Any = None,
        *,
        value: Any,
        **extra_args: Any,
    ) -> tuple[Any, MomoState]:
        """Multiply the momentum by the step size of the loss model."""
        h = numbers(self, state.barf.dtype, state.count)
        # The averages are initialized with the first values, so they need no bias correction.
        beta = jnp.where(state.count == 0, jnp.zeros_like(h.beta), h.beta)
        d, model = _first_moments(beta, value, updates, state, params)
        square = inner(d, d).astype(model.barf.dtype)
        tau, lb, bound = _step_size(self, h, beta, model, square, jnp.ones_like(square))
        new = _scale_direction(h, tau, d, params)
        return new, MomoState(d, model.barf, model.gamma, lb, bound, safe_increment(state.count))


class momo_adam(Transformation):
    r"""MoMo-Adam: AdamW with the step size at which a linear model of the loss reaches its bound.

    .. math::
        \tau_t &= \min\Big(\frac{\eta_t}{1-\beta_1^t},\, \frac{\big((1+\eta_t\lambda)(\bar f_t -
        (1-\beta_1^t) f^* - \gamma_t) + \langle d_t, \theta_t \rangle\big)_+}
        {\lVert d_t \rVert^2_{D_t^{-1}}}\Big), \\
        u_t &= -\frac{\eta_t \lambda}{1 + \eta_t \lambda}\, \theta_t - \tau_t\, D_t^{-1} d_t, \qquad
        D_t = \epsilon + \sqrt{\hat v_t}

    The averages :math:`d`, :math:`\bar f` and :math:`\gamma` are defined as in `momo`, with the
    decay rate :math:`\beta_1` and initialized with 0; :math:`\hat v_t` is Adam's bias-corrected
    average of the squared gradient. `update` needs the loss as the extra argument `value`. Updates
    include the minus sign, so don't chain `scale_by_learning_rate` after this transform.

    Args:
        learning_rate: :math:`\eta`, the largest step size, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of the averages of gradient and loss.
        b2: :math:`\beta_2`, decay rate of :math:`v`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        lower_bound: :math:`f^*`, a lower bound of the loss: 0 if the model can fit all data. None
            estimates the bound, as a level below the lowest loss of all steps. If the bound is too
            high, the parameters stop changing at this loss. If a loss is below the bound, the
            estimate replaces the bound, and `below_count` in the state is above 0.
        weight_decay: :math:`\lambda`, the weight decay, applied as a proximal step.
        adapt_lower_bound: Whether to increase the bound if the model shows that the bound is too
            low (the paper's MoMo*). The bound never decreases below :math:`f^*`.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.momo_adam(0.5), jnp.asarray([1.0, 2.0])
        >>> value, grad = jax.value_and_grad(lambda x: jnp.sum(x**2))(params)
        >>> updates, _ = tx.update(grad, tx.init(params), params, value=value)
        >>> print(*(f"{x:.3f}" for x in fnopt.apply_updates(params, updates)))
        0.500 1.500

    Reference:
        Schaipp, Ohana, Eickenberg, Defazio and Gower, 2023, arXiv:2305.07583.
    """

    needs_params = True

    learning_rate: ScalarOrSchedule = hyper(default=1e-2, ge=0, schedule=True)
    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    lower_bound: Scalar | None = hyper(default=None, infinite=True)
    weight_decay: Scalar = hyper(default=0.0, ge=0)
    adapt_lower_bound: bool = static(default=False)

    def init(self, params: Any) -> MomoAdamState:
        """Return the initial state, with zero averages."""
        squares = slot_zeros(params, real=True)
        return MomoAdamState(slot_zeros(params), squares, *_first_scalars(self, params))

    def update(
        self,
        updates: Any,
        state: MomoAdamState,
        params: Any = None,
        *,
        value: Any,
        **extra_args: Any,
    ) -> tuple[Any, MomoAdamState]:
        """Multiply Adam's direction by the step size of the loss model."""
        count = safe_increment(state.count)
        h = numbers(self, state.barf.dtype, state.count)
        d, model = _first_moments(h.b1, value, updates, state, params)
        squares = map_leaves(
            lambda b2, g, v: (g, ema(v, squared_modulus(clip_squarable(g)), b2)),
            updates,
            hyper=h.b2,
            outputs=2,
            exp_avg_sq=state.exp_avg_sq,
        )[1]

        def divide_leaf(h: Any, d: Any, v: Any) -> Any:
            return d / (h["eps"] + positive_root(v / h["correction"]))

        scalars = {"eps": h.eps, "correction": bias_correction(h.b2, count)}
        direction = map_leaves(divide_leaf, d, hyper=scalars, exp_avg_sq=squares)
        square = inner(d, direction).astype(model.barf.dtype)
        tau, lb, bound = _step_size(self, h, h.b1, model, square, bias_correction(h.b1, count))
        new = _scale_direction(h, tau, direction, params)
        return new, MomoAdamState(d, squares, model.barf, model.gamma, lb, bound, count)


class _LossModel(NamedTuple):
    r"""Terms of the linear loss model; `product` is :math:`\langle d_t, \theta_t \rangle`."""

    value: jax.Array
    barf: jax.Array
    gamma: jax.Array
    product: jax.Array
    lb: jax.Array
    lower_bound: LowerBound


def _first_scalars(tx: Any, params: Any) -> tuple[Any, ...]:
    """Return the initial `barf`, `gamma`, `lb`, `lower_bound` and `count`."""
    dtype = real_dtype_of(params)
    # Separate arrays, because a donated state must not contain an array twice.
    zeros = (jnp.zeros((), dtype) for _ in range(2))
    lb = jnp.array(0 if tx.lower_bound is None else tx.lower_bound, dtype)
    return *zeros, lb, first_lower_bound(dtype), zero_count()


def _first_moments(beta: Any, value: Any, updates: Any, state: Any, params: Any) -> Any:
    """Update the averages; return the averaged gradient, and the linear loss model."""
    dtype = state.barf.dtype
    value = scalar_loss(value, dtype)
    d = map_leaves(
        lambda b, g, m: (g, ema(m, clip_squarable(g), b)),
        updates,
        hyper=beta,
        outputs=2,
        exp_avg=state.exp_avg,
    )[1]
    gamma = ema(state.gamma, inner(updates, params).astype(dtype), beta)
    product = inner(d, params).astype(dtype)
    barf = ema(state.barf, value, beta)
    return d, _LossModel(value, barf, gamma, product, state.lb, state.lower_bound)


def _scale_direction(h: Any, tau: jax.Array, direction: Any, params: Any) -> Any:
    """Return the step along a direction, with weight decay."""
    decay = h.learning_rate * h.weight_decay
    # p - decay / (1 + decay) p = p / (1 + decay) is the proximal step of the L2 penalty, which is
    # stable for every learning rate.
    scalars = {"decay": decay / (1 + decay), "tau": tau}
    return map_leaves(
        lambda h, d, p: -h["decay"] * p - h["tau"] * d, direction, hyper=scalars, params=params
    )


def _step_size(
    tx: Any, h: Any, beta: Any, model: _LossModel, square: Any, weight: Any
) -> tuple[Any, Any, LowerBound]:
    """Return the step size at which the model reaches the lower bound, and the new bounds.

    Args:
        tx: The transform.
        h: Its hyper-parameters.
        beta: The decay rate of the averages.
        model: The linear model of the loss.
        square: The squared norm of the direction, in the metric of the step.
        weight: The sum of the averaging weights: 1, or Adam's bias correction.
    """
    growth = 1 + h.learning_rate * h.weight_decay
    f_min, state = next_lower_bound(h.lower_bound, model.value, model.lower_bound, beta)
    bound = f_min
    if tx.adapt_lower_bound:
        # For lower bounds above this limit, the step size would be 0.
        limit = (growth * (model.barf - model.gamma) + model.product) / (growth * weight)
        adapted = jnp.maximum(model.lb, f_min)
        # In the paper, f_min is 0, and the reduced bound is half of the limit.
        reduced = jnp.maximum((limit + f_min) / 2, f_min)
        bound = jnp.where(limit < adapted, reduced, adapted)
    gap = growth * (model.barf - weight * bound - model.gamma) + model.product
    # For a gradient of nearly zero, the step size is undefined, and no step is made.
    is_flat = square <= float(jnp.finfo(jnp.float64).eps)
    divisor = jnp.where(is_flat, jnp.ones_like(square), square)
    step = jnp.maximum(gap, jnp.zeros_like(gap)) / divisor
    step = jnp.where(is_flat, jnp.zeros_like(step), step)
    tau = jnp.minimum(h.learning_rate / weight, step)
    if not tx.adapt_lower_bound:
        return tau, model.lb, state
    new_bound = (model.barf + model.product - model.gamma - tau * square / 2) / weight
    return tau, jnp.maximum(new_bound, f_min), state
