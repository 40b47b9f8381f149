"""Prodigy and D-Adaptation: AdamW with an estimated learning rate."""

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
    slot_copy,
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
from fnopt.optimizers._recipe import as_betas, recipe
from fnopt.transforms import larger_estimate, numbers, real_dtype_of, real_sum


class ScaleByProdigyState(NamedTuple):
    """Averages, sum of gradients, initial parameters; the estimated distance and its numerator."""

    exp_avg: Slot
    exp_avg_sq: RealSlot
    grad_sum: Slot
    params0: Slot
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    count: jax.Array


class scale_by_prodigy(Transformation):
    r"""Adam with an estimated distance to the solution as step size.

    .. math::
        m_t &= \beta_1 m_{t-1} + (1-\beta_1)\, d_t\, g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1-\beta_2)\, d_t^2\, |g_t|^2, \\
        \gamma_t &= \eta_t\, \frac{\sqrt{1-\beta_2^t}}{1-\beta_1^t} \\
        r_t &= \beta_3 r_{t-1} + \gamma_t\, \frac{d_t^2}{d_0}\, \langle g_t, \theta_0 - \theta_t
        \rangle, \\
        s_t &= \beta_3 s_{t-1} + \gamma_t\, \frac{d_t^2}{d_0}\, g_t, \qquad
        d_{t+1} = \max\Big(d_t,\, c\, \frac{r_t}{\lVert s_t \rVert_1}\Big) \\
        u_t &= -\gamma_t d_t \left(\frac{m_t}{\sqrt{v_t} + d_{t+1} \epsilon} + \lambda\,
        \theta_t\right)

    Updates include the minus sign, so don't chain `scale_by_learning_rate` after this transform.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule` that begins with 1.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        beta3: :math:`\beta_3`, decay of the sums; None uses the root of :math:`\beta_2`.
        eps: :math:`\epsilon`.
        estim_lr0: :math:`d_0`, the initial estimate, which should rather be too small than too
            large.
        estim_lr_coef: :math:`c`.
        weight_decay: :math:`\lambda`.
        safeguard_warmup: Whether to omit :math:`\gamma` from :math:`s`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_prodigy(estim_lr0=0.5), {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> updates["w"].round(3), state.estim_lr
        (Array([-0.5, -0.5], dtype=float32), Array(0.5, dtype=float32))

    Reference:
        Mishchenko and Defazio, 2023, arXiv:2306.06101.
    """

    needs_params = True

    learning_rate: ScalarOrSchedule = hyper(default=1.0, ge=0, schedule=True)
    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    beta3: Scalar | None = hyper(default=None, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    estim_lr0: Scalar = hyper(default=1e-6, gt=0)
    estim_lr_coef: Scalar = hyper(default=1.0, ge=0)
    weight_decay: Scalar = hyper(default=0.0, ge=0)
    safeguard_warmup: bool = static(default=False)

    def init(self, params: Any) -> ScaleByProdigyState:
        """Return zeros, the initial parameters, and the initial estimate."""
        dtype = real_dtype_of(params)
        return ScaleByProdigyState(
            slot_zeros(params),
            slot_zeros(params, real=True),
            slot_zeros(params),
            slot_copy(params),
            # Copy: donating the state would delete the buffer of `self.estim_lr0`.
            jnp.array(self.estim_lr0, dtype),
            jnp.zeros((), dtype),
            zero_count(),
        )

    def update(
        self, updates: Any, state: ScaleByProdigyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByProdigyState]:
        """Step with the estimated step size, and update the estimate."""
        d, count = state.estim_lr, safe_increment(state.count)
        h = numbers(self, d.dtype, state.count)
        # The default of the authors' code.
        beta3 = jnp.sqrt(h.b2) if h.beta3 is None else h.beta3
        # One factor corrects both averages, as in Kingma and Ba (2014), section 2.
        gain = jnp.sqrt(bias_correction(h.b2, count)) / bias_correction(h.b1, count)
        step = d * h.learning_rate * gain
        # The weight is divided by d0, as in the authors' code; the factor cancels in the estimate.
        weight = (d / h.estim_lr0) * (d if self.safeguard_warmup else step)

        def average_leaf(h: Any, g: Any, m: Any, v: Any, s: Any, p0: Any, p: Any) -> Any:
            # The square of a finite gradient may be infinite, and would stay so in the mean.
            scaled = clip_squarable(h["d"] * g)
            product = jnp.conj(g) * (p0 - p)
            m = ema(m, scaled, h["b1"])
            v = ema(v, squared_modulus(scaled), h["b2"])
            return product, m, v, h["b3"] * s + h["weight"] * g

        products, m, v, s = map_leaves(
            average_leaf,
            updates,
            hyper={"b1": h.b1, "b2": h.b2, "b3": beta3, "d": d, "weight": weight},
            outputs=4,
            exp_avg=state.exp_avg,
            exp_avg_sq=state.exp_avg_sq,
            grad_sum=state.grad_sum,
            params0=state.params0,
            params=params,
        )
        numerator = beta3 * state.numerator_weighted
        numerator += (d / h.estim_lr0) * step * real_sum(products, d.dtype)
        length = real_sum(jax.tree.map(jnp.abs, s), d.dtype)
        estimate = larger_estimate(d, h.estim_lr_coef * numerator, length)

        def step_leaf(h: Any, m: Any, v: Any, p: Any) -> Any:
            # The floor of `positive_root` is negligible, and a moment of zero gives no step.
            return -h["step"] * (m / (positive_root(v) + h["eps"]) + h["decay"] * p)

        # The root of v is in units of d |g|, and so is epsilon.
        scalars = {"step": step, "eps": estimate * h.eps, "decay": h.weight_decay}
        new = map_leaves(step_leaf, m, hyper=scalars, v=v, params=params)
        return new, ScaleByProdigyState(m, v, s, state.params0, estimate, numerator, count)


@recipe
def prodigy(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    beta3: Scalar | None = None,
    eps: Scalar = 1e-8,
    estim_lr0: Scalar = 1e-6,
    estim_lr_coef: Scalar = 1.0,
    weight_decay: Scalar = 0.0,
    safeguard_warmup: bool = False,
) -> scale_by_prodigy:
    r"""Prodigy: AdamW with an estimated distance to the solution as learning rate.

    .. math:: u_t = -\eta_t\, d_t\, \frac{\sqrt{1-\beta_2^t}}{1-\beta_1^t}
              \left(\frac{m_t}{\sqrt{v_t} + d_{t+1} \epsilon} + \lambda\, \theta_t\right)

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule` that begins with 1, usually a cosine
            decay.
        betas: The decays of mean and mean square.
        beta3: The decay of the sums in the estimate; None uses the root of the second decay.
        eps: :math:`\epsilon`.
        estim_lr0: The initial estimate, which should rather be too small than too large.
        estim_lr_coef: A factor of the estimate.
        weight_decay: :math:`\lambda`.
        safeguard_warmup: Whether to omit the learning rate from the estimate's denominator.

    Returns:
        `scale_by_prodigy`, with the slots `exp_avg`, `exp_avg_sq`, `grad_sum` and `params0`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.prodigy(estim_lr0=0.5), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> print(*(f"{x:.3f}" for x in fnopt.apply_updates(params, updates)["w"]))
        0.500 0.500

    Reference:
        Mishchenko and Defazio, 2023, arXiv:2306.06101.
    """
    b1, b2 = as_betas("prodigy", betas)
    estimate = (beta3, eps, estim_lr0, estim_lr_coef)
    return scale_by_prodigy(learning_rate, b1, b2, *estimate, weight_decay, safeguard_warmup)


class ScaleByDadaptAdamwState(NamedTuple):
    """Averages, sum of gradients; the estimated distance and its numerator."""

    exp_avg: Slot
    exp_avg_sq: RealSlot
    grad_sum: Slot
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    count: jax.Array


class scale_by_dadapt_adamw(Transformation):
    r"""AdamW with an estimated distance to the solution as step size.

    .. math::
        \gamma_t &= d_t\, \eta_t\, \frac{\sqrt{1-\beta_2^t}}{1-\beta_1^t}, \\
        m_t &= \beta_1 m_{t-1} + (1-\beta_1)\, \gamma_t\, g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        r_t &= b\, r_{t-1} + (1-b)\, \gamma_t \Big\langle g_t, \frac{s_{t-1}}{\sqrt{v_{t-1}} +
        \epsilon} \Big\rangle, \qquad s_t = b\, s_{t-1} + (1-b)\, \gamma_t\, g_t, \qquad
        b = \sqrt{\beta_2} \\
        d_{t+1} &= \max\Big(d_t,\, \frac{r_t}{(1-b)\, \lVert s_t \rVert_1}\Big), \qquad
        u_t = -\frac{m_t}{\sqrt{v_t} + \epsilon} - \lambda\, \gamma_t\, \theta_t

    Updates include the minus sign, so don't chain `scale_by_learning_rate` after this transform.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule` that begins with 1.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`.
        estim_lr0: :math:`d_0`, the initial estimate, which should rather be too small than too
            large.
        weight_decay: :math:`\lambda`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_dadapt_adamw(estim_lr0=0.5), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> updates["w"].round(3)
        Array([-0.5, -0.5], dtype=float32)

    Reference:
        Defazio and Mishchenko, 2023, arXiv:2301.07733.
    """

    needs_params = True

    learning_rate: ScalarOrSchedule = hyper(default=1.0, ge=0, schedule=True)
    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    estim_lr0: Scalar = hyper(default=1e-6, gt=0)
    weight_decay: Scalar = hyper(default=0.0, ge=0)

    def init(self, params: Any) -> ScaleByDadaptAdamwState:
        """Return zeros, and the initial estimate."""
        zero = jnp.zeros((), real_dtype_of(params))
        # Copy: donating the state would delete the buffer of `self.estim_lr0`.
        d0 = jnp.array(self.estim_lr0, zero.dtype)
        squares = slot_zeros(params, real=True)
        return ScaleByDadaptAdamwState(
            slot_zeros(params), squares, slot_zeros(params), d0, zero, zero_count()
        )

    def update(
        self, updates: Any, state: ScaleByDadaptAdamwState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByDadaptAdamwState]:
        """Step with the estimated step size, and update the estimate."""
        d, count = state.estim_lr, safe_increment(state.count)
        h = numbers(self, d.dtype, state.count)
        gain = jnp.sqrt(bias_correction(h.b2, count)) / bias_correction(h.b1, count)
        decay, step = jnp.sqrt(h.b2), d * h.learning_rate * gain

        def average_leaf(h: Any, g: Any, m: Any, v: Any, s: Any) -> Any:
            g = clip_squarable(g)  # as in `scale_by_prodigy`
            product = jnp.conj(g) * (s / (positive_root(v) + h["eps"]))
            scaled = h["step"] * g
            v = ema(v, squared_modulus(g), h["b2"])
            return product, ema(m, scaled, h["b1"]), v, ema(s, scaled, h["b"])

        products, m, v, s = map_leaves(
            average_leaf,
            updates,
            hyper={"b1": h.b1, "b2": h.b2, "b": decay, "eps": h.eps, "step": step},
            outputs=4,
            exp_avg=state.exp_avg,
            exp_avg_sq=state.exp_avg_sq,
            grad_sum=state.grad_sum,
        )
        rest = 1 - decay
        numerator = decay * state.numerator_weighted + rest * step * real_sum(products, d.dtype)
        length = rest * real_sum(jax.tree.map(jnp.abs, s), d.dtype)
        estimate = larger_estimate(d, numerator, length)

        def step_leaf(h: Any, m: Any, v: Any, p: Any) -> Any:
            return -m / (positive_root(v) + h["eps"]) - h["decay"] * p

        scalars = {"eps": h.eps, "decay": h.weight_decay * step}
        new = map_leaves(step_leaf, m, hyper=scalars, v=v, params=params)
        return new, ScaleByDadaptAdamwState(m, v, s, estimate, numerator, count)


@recipe
def dadapt_adamw(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    estim_lr0: Scalar = 1e-6,
    weight_decay: Scalar = 0.0,
) -> scale_by_dadapt_adamw:
    r"""D-Adapted AdamW: AdamW with an estimated distance to the solution as learning rate.

    .. math:: u_t = -\frac{m_t}{\sqrt{v_t} + \epsilon} - \lambda\, \gamma_t\, \theta_t, \qquad
              m_t = \beta_1 m_{t-1} + (1-\beta_1)\, \gamma_t\, g_t, \qquad
              \gamma_t = d_t\, \eta_t\, \frac{\sqrt{1-\beta_2^t}}{1-\beta_1^t}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule` that begins with 1.
        betas: The decays of mean and mean square.
        eps: :math:`\epsilon`.
        estim_lr0: :math:`d_0`, the initial estimate, which should rather be too small than too
            large.
        weight_decay: :math:`\lambda`.

    Returns:
        `scale_by_dadapt_adamw`, with the slots `exp_avg`, `exp_avg_sq` and `grad_sum`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.dadapt_adamw(estim_lr0=0.5), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(3)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Defazio and Mishchenko, 2023, arXiv:2301.07733.
    """
    b1, b2 = as_betas("dadapt_adamw", betas)
    return scale_by_dadapt_adamw(learning_rate, b1, b2, eps, estim_lr0, weight_decay)
