"""Optimizers that need no schedule."""

from __future__ import annotations

from typing import Any

from fnopt.core import Scalar
from fnopt.optimizers._recipe import recipe
from fnopt.optimizers._rmsprop import scale_by_rms
from fnopt.optimizers._sgd import sgd
from fnopt.schedules import warmup_constant_schedule
from fnopt.transforms import (
    add_decayed_weights,
    chain,
    scale_by_learning_rate,
    schedule_free,
)


def _add_warmup(learning_rate: Any, steps: int | None) -> Any:
    if steps is None:
        return learning_rate
    return warmup_constant_schedule(0.0, learning_rate, steps)


@recipe
def schedule_free_sgd(
    learning_rate: Scalar = 1.0,
    warmup_steps: int | None = None,
    b1: Scalar = 0.9,
    weight_decay: Scalar | None = None,
    weight_lr_power: Scalar = 2.0,
    state_dtype: Any = None,
) -> schedule_free:
    r"""Schedule-free gradient descent.

    .. math:: z_{t+1} &= z_t - \eta_t\, (g_t + \lambda\, y_t), \\
              x_{t+1} &= (1-c_t)\, x_t + c_t\, z_{t+1}, \qquad
              y_{t+1} = \beta_1 x_{t+1} + (1-\beta_1)\, z_{t+1}

    The params are :math:`y`; evaluate `schedule_free_eval_params(state, params)`.

    Args:
        learning_rate: :math:`\eta`; often larger than with a schedule.
        warmup_steps: Over how many steps it grows from 0, which is the first step's. None for no
            warm-up.
        b1: :math:`\beta_1`, in place of momentum.
        weight_decay: :math:`\lambda`, a multiple of the params added to gradients. None for none.
        weight_lr_power: The power of the rate that points are weighted with.
        state_dtype: Storage dtype of :math:`z`; by default the params' own, but at least float32.

    Returns:
        `schedule_free` around `sgd`, with the slot `z`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.schedule_free_sgd(0.5), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(3)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Defazio et al., 2024, arXiv:2405.15682.
    """
    rate = _add_warmup(learning_rate, warmup_steps)
    tx = sgd(rate)
    if weight_decay is not None:
        tx = chain(add_decayed_weights(weight_decay), tx)
    return schedule_free(tx, rate, b1, weight_lr_power, state_dtype)


@recipe
def schedule_free_adamw(
    learning_rate: Scalar = 0.0025,
    warmup_steps: int | None = None,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    weight_lr_power: Scalar = 2.0,
    state_dtype: Any = None,
) -> schedule_free:
    r"""Schedule-free AdamW.

    .. math:: z_{t+1} &= z_t - \eta_t \left(\frac{g_t}{\sqrt{\hat\nu_t} + \epsilon} +
              \lambda\, y_t\right), \\
              x_{t+1} &= (1-c_t)\, x_t + c_t\, z_{t+1}, \qquad
              y_{t+1} = \beta_1 x_{t+1} + (1-\beta_1)\, z_{t+1}

    The params are :math:`y`; evaluate `schedule_free_eval_params(state, params)`.

    Args:
        learning_rate: :math:`\eta`; often larger than with a schedule.
        warmup_steps: Over how many steps it grows from 0, which is the first step's. None for no
            warm-up.
        b1: :math:`\beta_1`, in place of momentum.
        b2: Decay of the mean square.
        eps: :math:`\epsilon`.
        weight_decay: :math:`\lambda`, decoupled.
        weight_lr_power: The power of the rate that points are weighted with.
        state_dtype: Storage dtype of :math:`z`; by default the params' own, but at least float32.

    Returns:
        `schedule_free` around AdamW without momentum, with the slots `z` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.schedule_free_adamw(0.5), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(3)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Defazio et al., 2024, arXiv:2405.15682.
    """
    rate = _add_warmup(learning_rate, warmup_steps)
    tx = chain(
        scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True),
        add_decayed_weights(weight_decay),
        scale_by_learning_rate(rate),
    )
    return schedule_free(tx, rate, b1, weight_lr_power, state_dtype)
