"""Gradient descent with momentum, accumulation, restarts, noise or signs, or schedule-free."""

from __future__ import annotations

from typing import Any

from fnopt.core import Scalar, ScalarOrSchedule
from fnopt.optimizers._recipe import descend, recipe
from fnopt.optimizers._rmsprop import scale_by_rms
from fnopt.schedules import cosine_restarts_schedule, warmup_constant_schedule
from fnopt.transforms import (
    Chain,
    accumulate,
    add_decayed_weights,
    add_gradient_noise,
    chain,
    ema,
    scale_by_learning_rate,
    scale_by_sign,
    schedule_free,
    trace,
)


@recipe
def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: Scalar | None = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
) -> Chain:
    r"""Gradient descent with optional momentum.

    .. math:: m_t = \gamma\, m_{t-1} + g_t, \qquad
              u_t = -\eta_t\, m_t \quad \text{or} \quad
              u_t = -\eta_t\, (g_t + \gamma\, m_t) \;\; \text{(Nesterov)}

    For complex params, pass `fnopt.tree.conj(jax.grad(loss)(params))` as the gradient. Along the
    unconjugated gradient of `jax.grad`, a step increases the loss in the imaginary parts.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        momentum: :math:`\gamma`, the decay rate of :math:`m`. None omits momentum and the slot
            `trace`; with 0.0, the state contains the slot, as for any other number.
        nesterov: Whether to use Nesterov momentum; the flag has no effect without momentum.
        accumulator_dtype: Storage dtype of :math:`m`; None uses the wider of float32 and the
            params' dtype.

    Returns:
        A chain of `trace` (unless `momentum` is None) and `scale_by_learning_rate`, with the slot
        `trace`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.sgd(0.1, momentum=0.9)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.9, 0.9], dtype=float32)}

    Reference:
        Sutskever, Martens, Dahl and Hinton, 2013.
    """
    step = scale_by_learning_rate(learning_rate)
    if momentum is None:
        # 0.0 keeps the slot, because a state's structure must not depend on a numeric value.
        return chain(step)
    return chain(trace(momentum, nesterov, accumulator_dtype), step)


@recipe
def accumulated_sgd(
    learning_rate: ScalarOrSchedule,
    k: ScalarOrSchedule,
    momentum: Scalar | None = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
    *,
    use_grad_mean: bool = True,
) -> accumulate:
    r"""Gradient descent with the mean gradient of every `k` calls of `update`.

    .. math:: u_t = \begin{cases} -\frac{\eta}{k} \sum_{i=t-k+1}^{t} g_i & k \text{ divides } t \\
              0 & \text{otherwise} \end{cases}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule` of the steps (not of the calls).
        k: :math:`k`, the number of gradients per step; an integer or a `Schedule` of the steps.
        momentum: The decay rate of the momentum, as in `sgd`; None disables momentum.
        nesterov: Whether to use Nesterov momentum.
        accumulator_dtype: Storage dtype of the momentum; None uses the wider of float32 and the
            params' dtype.
        use_grad_mean: Whether to average the gradients of a step; if False, they are summed.

    Returns:
        `accumulate` around `sgd`, with the slots `acc` and, with momentum, `trace`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.accumulated_sgd(0.5, k=2)
        >>> params = {"w": jnp.ones(())}
        >>> state = tx.init(params)
        >>> for g in (1.0, 3.0):
        ...     updates, state = tx.update({"w": jnp.asarray(g)}, state, params)
        ...     print(updates["w"])
        0.0
        -1.0
    """
    inner = sgd(learning_rate, momentum, nesterov, accumulator_dtype)
    return accumulate(inner, k, use_grad_mean)


@recipe
def sgdr(
    learning_rate: Scalar,
    decay_steps: Scalar,
    t_mult: Scalar = 2.0,
    alpha: Scalar = 0.0,
    momentum: Scalar | None = 0.9,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
) -> Chain:
    r"""Gradient descent with warm restarts of a cosine-decayed learning rate.

    .. math:: \eta_t = \eta \left((1 - \alpha)\, \tfrac12 \left(1 + \cos
              \frac{\pi\, (t - t_i)}{T_i}\right) + \alpha\right), \qquad
              T_i = T_0\, m^i, \quad t_{i+1} = t_i + T_i

    Args:
        learning_rate: :math:`\eta`, the learning rate at the start of every cycle.
        decay_steps: :math:`T_0`, the length of the first cycle in steps.
        t_mult: :math:`m`, the ratio of the lengths of consecutive cycles.
        alpha: :math:`\alpha`, the final value of a cycle as a fraction of `learning_rate`.
        momentum: The decay rate of the momentum, which restarts don't reset; None disables it.
        nesterov: Whether to use Nesterov momentum.
        accumulator_dtype: Storage dtype of the momentum; None uses the wider of float32 and the
            params' dtype.

    Returns:
        `sgd` with a `cosine_restarts_schedule`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.sgdr(0.1, decay_steps=10)
        >>> fnopt.hyperparams(tx, tx.init({"w": jnp.ones(2)}))["learning_rate"]
        Array(0.1, dtype=float32)

    Reference:
        Loshchilov and Hutter, 2017, arXiv:1608.03983.
    """
    schedule = cosine_restarts_schedule(learning_rate, decay_steps, t_mult, alpha)
    return sgd(schedule, momentum, nesterov, accumulator_dtype)


@recipe
def noisy_sgd(
    learning_rate: ScalarOrSchedule, eta: Scalar = 0.01, gamma: Scalar = 0.55, key: Any = 0
) -> Chain:
    r"""Gradient descent with gradient noise of decreasing variance.

    .. math:: u_t = -\alpha_t\, (g_t + \sigma_t\, z_t), \qquad z_t \sim N(0, 1), \qquad
              \sigma_t^2 = \frac{\eta}{t^\gamma}

    Args:
        learning_rate: :math:`\alpha`, a number or a `Schedule`.
        eta: :math:`\eta`, the variance of the noise in the first step.
        gamma: :math:`\gamma`, the exponent with which the variance decreases.
        key: An integer or a key of `jax.random`, compiled into the step as a constant.

    Returns:
        A chain of `add_gradient_noise` and `scale_by_learning_rate`; it has no slots.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.noisy_sgd(0.5, eta=1e-6), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(1)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Neelakantan et al., 2015, arXiv:1511.06807.
    """
    # Neelakantan et al. (2015) use gamma = 0.55, and an eta of 0.01, 0.3 or 1.
    return descend(add_gradient_noise(eta, gamma, key), learning_rate)


@recipe
def sign_sgd(learning_rate: ScalarOrSchedule) -> Chain:
    r"""Step along the sign of the gradient: :math:`u_t = -\eta_t \operatorname{sign} g_t`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.

    Returns:
        A chain of `scale_by_sign` and `scale_by_learning_rate`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.sign_sgd(0.25)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.75, 1.25], dtype=float32)}

    Reference:
        Bernstein, Wang, Azizzadenesheli and Anandkumar, 2018, arXiv:1802.04434.
    """
    return descend(scale_by_sign(), learning_rate)


@recipe
def signum(
    learning_rate: ScalarOrSchedule, beta: Scalar = 0.9, accumulator_dtype: Any = None
) -> Chain:
    r"""Step along the sign of the averaged gradient.

    .. math:: m_t = \beta m_{t-1} + (1-\beta)\, g_t, \qquad u_t = -\eta_t \operatorname{sign} m_t

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        beta: :math:`\beta`, decay rate of :math:`m`, the moving average of the gradient.
        accumulator_dtype: Storage dtype of :math:`m`; None uses the wider of float32 and the
            params' dtype.

    Returns:
        A chain of `ema`, `scale_by_sign` and `scale_by_learning_rate`, with the slot `ema`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.signum(0.25)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.75, 1.25], dtype=float32)}

    Reference:
        Bernstein, Wang, Azizzadenesheli and Anandkumar, 2018, arXiv:1802.04434.
    """
    return chain(
        # A bias correction is a positive factor, which doesn't change the sign.
        ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        scale_by_sign(),
        scale_by_learning_rate(learning_rate),
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

    Train the params :math:`y`; evaluate :math:`x`, from `schedule_free_eval_params(state, params)`.

    Args:
        learning_rate: :math:`\eta`; a good value is often larger than with a schedule.
        warmup_steps: The number of steps in which the learning rate increases linearly from 0;
            None disables warm-up.
        b1: :math:`\beta_1`, the weight of :math:`x` in :math:`y`, which replaces momentum.
        weight_decay: :math:`\lambda`, the coefficient of L2 regularization; None disables it.
        weight_lr_power: The exponent :math:`p` in :math:`c_t = \eta_t^p / \sum_{i \le t} \eta_i^p`,
            with the largest learning rate until step :math:`t` as :math:`\eta_t`.
        state_dtype: Storage dtype of :math:`z`; None uses the wider of float32 and the params'
            dtype.

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

    with Adam's bias-corrected :math:`\hat\nu_t`. Train the params :math:`y`; evaluate :math:`x`,
    from `schedule_free_eval_params(state, params)`.

    Args:
        learning_rate: :math:`\eta`; a good value is often larger than with a schedule.
        warmup_steps: The number of steps in which the learning rate increases linearly from 0;
            None disables warm-up.
        b1: :math:`\beta_1`, the weight of :math:`x` in :math:`y`, which replaces momentum.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        weight_decay: :math:`\lambda`, the decoupled weight decay.
        weight_lr_power: The exponent of the learning rate in :math:`c_t`; see `schedule_free_sgd`.
        state_dtype: Storage dtype of :math:`z`; None uses the wider of float32 and the params'
            dtype.

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
    # The interpolation of the iterates replaces momentum (Defazio et al., 2024).
    tx = descend(scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True), rate, weight_decay)
    return schedule_free(tx, rate, b1, weight_lr_power, state_dtype)
