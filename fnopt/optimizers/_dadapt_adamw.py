"""D-Adaptation: AdamW with an estimated distance to the solution as learning rate."""

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
    slot_zeros,
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


class ScaleByDadaptAdamwState(NamedTuple):
    r"""State of `scale_by_dadapt_adamw`.

    Attributes:
        exp_avg: :math:`m_t`, the moving average of :math:`\gamma_t\, g_t`.
        exp_avg_sq: :math:`v_t`, the moving average of the squared gradient.
        grad_sum: :math:`s_t`, the weighted sum of gradients.
        estim_lr: :math:`d_{t+1}`, the estimated distance to the solution.
        numerator_weighted: :math:`r_t`, the numerator of the estimate.
        count: :math:`t`, the number of steps.
    """

    exp_avg: Slot
    exp_avg_sq: RealSlot
    grad_sum: Slot
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    count: jax.Array


class scale_by_dadapt_adamw(Transformation):
    r"""Multiply AdamW's direction by an estimated distance to the solution.

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
        b1: :math:`\beta_1`, decay rate of :math:`m`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`v`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        estim_lr0: :math:`d_0`, the initial estimate. Since the estimate never decreases, choose a
            value below the distance to the solution.
        weight_decay: :math:`\lambda`, the decoupled weight decay.

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
        """Return zero averages, and the initial estimate."""
        zero = jnp.zeros((), real_dtype_of(params))
        # A copy, because donating the state would delete the buffer of `self.estim_lr0`.
        d0 = jnp.array(self.estim_lr0, zero.dtype)
        squares = slot_zeros(params, real=True)
        return ScaleByDadaptAdamwState(
            slot_zeros(params), squares, slot_zeros(params), d0, zero, zero_count()
        )

    def update(
        self, updates: Any, state: ScaleByDadaptAdamwState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByDadaptAdamwState]:
        """Take a step with the estimated step size, and update the estimate."""
        d, count = state.estim_lr, safe_increment(state.count)
        h = numbers(self, d.dtype, state.count)
        correction = jnp.sqrt(bias_correction(h.b2, count)) / bias_correction(h.b1, count)
        decay, step = jnp.sqrt(h.b2), d * h.learning_rate * correction

        def average_leaf(h: Any, g: Any, m: Any, v: Any, s: Any) -> Any:
            # An infinite square of a finite gradient would stay infinite in the average.
            g = clip_squarable(g)
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
        gain = 1 - decay
        numerator = decay * state.numerator_weighted + gain * step * real_sum(products, d.dtype)
        denominator = gain * real_sum(jax.tree.map(jnp.abs, s), d.dtype)
        estimate = larger_estimate(d, numerator, denominator)

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

    `scale_by_dadapt_adamw` defines the average :math:`v` and the estimate :math:`d`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule` that begins with 1.
        betas: :math:`(\beta_1, \beta_2)`, the decay rates of :math:`m` and :math:`v`.
        eps: :math:`\epsilon`, added outside the square root.
        estim_lr0: :math:`d_0`, the initial estimate. Since the estimate never decreases, choose a
            value below the distance to the solution.
        weight_decay: :math:`\lambda`, the decoupled weight decay.

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
