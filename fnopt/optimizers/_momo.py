"""MoMo: momentum with Polyak's step size."""

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
    """Averages of gradient, loss, gradient times params; raised and given lower bound; count."""

    exp_avg: Slot
    barf: jax.Array
    gamma: jax.Array
    lb: jax.Array
    lower_bound: LowerBound
    count: jax.Array


class MomoAdamState(NamedTuple):
    """`MomoState`, and the average of the squared gradient."""

    exp_avg: Slot
    exp_avg_sq: RealSlot
    barf: jax.Array
    gamma: jax.Array
    lb: jax.Array
    lower_bound: LowerBound
    count: jax.Array


class momo(Transformation):
    r"""MoMo: momentum with the step size at which a model of the loss reaches its lower bound.

    .. math::
        d_t &= \beta d_{t-1} + (1-\beta)\, g_t, \qquad
        \bar f_t = \beta \bar f_{t-1} + (1-\beta)\, f_t, \qquad
        \gamma_t = \beta \gamma_{t-1} + (1-\beta)\, \langle g_t, \theta_t \rangle \\
        \tau_t &= \min\Big(\eta_t,\, \frac{\big((1+\eta_t\lambda)(\bar f_t - f^* - \gamma_t) +
        \langle d_t, \theta_t \rangle\big)_+}{\lVert d_t \rVert^2}\Big), \qquad
        u_t = -\frac{\eta_t \lambda}{1 + \eta_t \lambda}\, \theta_t - \tau_t\, d_t

    `update` needs the loss as the extra argument `value`. Updates include the minus sign of
    descent.

    Args:
        learning_rate: :math:`\eta`, the largest step, a number or a `Schedule`.
        beta: :math:`\beta`, decay of the averages.
        lower_bound: :math:`f^*`, a lower bound of the loss: 0 if the model can fit all data. By
            default the bound is estimated as a level below the lowest loss of all steps. If the
            bound is too high, the parameters stop changing at this loss. If a loss is below the
            bound, the estimate replaces the bound, and `below_count` in the state is above 0.
        weight_decay: :math:`\lambda`.
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
        """Return the state with zero averages."""
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
        """Multiply the momentum by the step size from the model of the loss."""
        h = numbers(self, state.barf.dtype, state.count)
        # The first averages are the first values, so that momo needs no bias correction.
        beta = jnp.where(state.count == 0, jnp.zeros_like(h.beta), h.beta)
        d, seen = _first_moments(beta, value, updates, state, params)
        square = inner(d, d).astype(seen.barf.dtype)
        tau, lb, known = _steps(self, h, beta, seen, square, jnp.ones_like(square))
        new = _move(h, tau, d, params)
        return new, MomoState(d, seen.barf, seen.gamma, lb, known, safe_increment(state.count))


class momo_adam(Transformation):
    r"""MoMo-Adam: AdamW with the step size at which a loss model reaches its lower bound.

    .. math::
        \tau_t &= \min\Big(\frac{\eta_t}{1-\beta_1^t},\, \frac{\big((1+\eta_t\lambda)(\bar f_t -
        (1-\beta_1^t) f^* - \gamma_t) + \langle d_t, \theta_t \rangle\big)_+}
        {\lVert d_t \rVert^2_{D_t^{-1}}}\Big), \\
        u_t &= -\frac{\eta_t \lambda}{1 + \eta_t \lambda}\, \theta_t - \tau_t\, D_t^{-1} d_t, \qquad
        D_t = \epsilon + \sqrt{\hat v_t}

    The averages are defined as in `momo`. `update` needs the loss as the extra argument `value`.
    Updates include the minus sign of descent.

    Args:
        learning_rate: :math:`\eta`, the largest step, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay of the averages of gradient and loss.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`.
        lower_bound: :math:`f^*`, a lower bound of the loss: 0 if the model can fit all data. By
            default the bound is estimated as a level below the lowest loss of all steps. If the
            bound is too high, the parameters stop changing at this loss. If a loss is below the
            bound, the estimate replaces the bound, and `below_count` in the state is above 0.
        weight_decay: :math:`\lambda`.
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
        """Return the state with zero averages."""
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
        """Multiply AdamW's direction by the step size from the model of the loss."""
        count = safe_increment(state.count)
        h = numbers(self, state.barf.dtype, state.count)
        d, seen = _first_moments(h.b1, value, updates, state, params)
        squares = map_leaves(
            lambda b2, g, v: (g, ema(v, squared_modulus(clip_squarable(g)), b2)),
            updates,
            hyper=h.b2,
            outputs=2,
            exp_avg_sq=state.exp_avg_sq,
        )[1]

        def divide_leaf(h: Any, d: Any, v: Any) -> Any:
            return d / (h["eps"] + positive_root(v / h["seen"]))

        scalars = {"eps": h.eps, "seen": bias_correction(h.b2, count)}
        direction = map_leaves(divide_leaf, d, hyper=scalars, exp_avg_sq=squares)
        square = inner(d, direction).astype(seen.barf.dtype)
        tau, lb, known = _steps(self, h, h.b1, seen, square, bias_correction(h.b1, count))
        new = _move(h, tau, direction, params)
        return new, MomoAdamState(d, squares, seen.barf, seen.gamma, lb, known, count)


class _Seen(NamedTuple):
    """The loss, and averages of the loss and of products of gradient and params."""

    value: jax.Array
    barf: jax.Array
    gamma: jax.Array
    product: jax.Array
    lb: jax.Array
    lower_bound: LowerBound


def _first_scalars(tx: Any, params: Any) -> tuple[Any, ...]:
    """`barf`, `gamma`, the lower bounds and the count before the first step."""
    dtype = real_dtype_of(params)
    # Separate arrays, because a donated state may not contain an array twice.
    zeros = (jnp.zeros((), dtype) for _ in range(2))
    lowest = jnp.array(0 if tx.lower_bound is None else tx.lower_bound, dtype)
    return *zeros, lowest, first_lower_bound(dtype), zero_count()


def _first_moments(beta: Any, value: Any, updates: Any, state: Any, params: Any) -> Any:
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
    return d, _Seen(value, barf, gamma, product, state.lb, state.lower_bound)


def _move(h: Any, tau: jax.Array, direction: Any, params: Any) -> Any:
    """The step along a direction, with the decay of the params."""
    decay = h.learning_rate * h.weight_decay
    # p - decay / (1 + decay) p = p / (1 + decay): the proximal step of the penalty, which is stable
    # for every learning rate.
    scalars = {"decay": decay / (1 + decay), "tau": tau}
    return map_leaves(
        lambda h, d, p: -h["decay"] * p - h["tau"] * d, direction, hyper=scalars, params=params
    )


def _steps(
    tx: Any, h: Any, beta: Any, seen: _Seen, square: Any, weight: Any
) -> tuple[Any, Any, LowerBound]:
    """Step size at which the model reaches its lower bound, and the new bounds."""
    grown = 1 + h.learning_rate * h.weight_decay
    lowest, known = next_lower_bound(h.lower_bound, seen.value, seen.lower_bound, beta)
    bound = lowest
    if tx.adapt_lower_bound:
        cap = (grown * (seen.barf - seen.gamma) + seen.product) / (grown * weight)
        raised = jnp.maximum(seen.lb, lowest)
        # Halfway to the given bound. In the paper the bound is 0, which gives half of the model's
        # value.
        lower = jnp.maximum((cap + lowest) / 2, lowest)
        bound = jnp.where(cap < raised, lower, raised)
    gap = grown * (seen.barf - weight * bound - seen.gamma) + seen.product
    # A flat model gives no step size.
    flat = square <= float(jnp.finfo(jnp.float64).eps)
    step = jnp.maximum(gap, jnp.zeros_like(gap)) / jnp.where(flat, jnp.ones_like(square), square)
    step = jnp.where(flat, jnp.zeros_like(step), step)
    tau = jnp.minimum(h.learning_rate / weight, step)
    if not tx.adapt_lower_bound:
        return tau, seen.lb, known
    model = (seen.barf + seen.product - seen.gamma - tau * square / 2) / weight
    return tau, jnp.maximum(model, lowest), known
