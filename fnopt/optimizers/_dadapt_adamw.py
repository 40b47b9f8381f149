"""D-Adaptation: AdamW that finds its learning rate."""

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
    bias_correction,
    clip_squarable,
    ema,
    hyper,
    map_leaves,
    positive_root,
    safe_increment,
    slot_zeros,
    squared_modulus,
    zero_count,
)
from fnopt.optimizers._recipe import as_betas, recipe
from fnopt.transforms import larger_estimate, numbers, real_dtype_of, real_sum


class ScaleByDadaptAdamwState(NamedTuple):
    """Averages and the sum of gradients; the estimated distance and its numerator."""

    exp_avg: Slot
    exp_avg_sq: RealSlot
    grad_sum: Slot
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    count: jax.Array


class scale_by_dadapt_adamw(Transformation):
    r"""AdamW whose step size is an estimate of the distance to the solution.

    .. math::
        \gamma_t &= d_t\, \eta_t\, \frac{\sqrt{1-\beta_2^t}}{1-\beta_1^t}, \\
        m_t &= \beta_1 m_{t-1} + (1-\beta_1)\, \gamma_t\, g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        r_t &= b\, r_{t-1} + (1-b)\, \gamma_t \Big\langle g_t, \frac{s_{t-1}}{\sqrt{v_{t-1}} +
        \epsilon} \Big\rangle, \qquad s_t = b\, s_{t-1} + (1-b)\, \gamma_t\, g_t, \qquad
        b = \sqrt{\beta_2} \\
        d_{t+1} &= \max\Big(d_t,\, \frac{r_t}{(1-b)\, \lVert s_t \rVert_1}\Big), \qquad
        u_t = -\frac{m_t}{\sqrt{v_t} + \epsilon} - \lambda\, \gamma_t\, \theta_t

    Updates have the minus sign of descent.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule` that begins with 1.
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`.
        estim_lr0: :math:`d_0`, the first estimate; too small rather than too large.
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
        """Zeros, and the first estimate."""
        zero = jnp.zeros((), real_dtype_of(params))
        d0 = jnp.array(self.estim_lr0, zero.dtype)
        squares = slot_zeros(params, real=True)
        return ScaleByDadaptAdamwState(
            slot_zeros(params), squares, slot_zeros(params), d0, zero, zero_count()
        )

    def update(
        self, updates: Any, state: ScaleByDadaptAdamwState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByDadaptAdamwState]:
        """A step of the estimated size, and the new estimate."""
        d, count = state.estim_lr, safe_increment(state.count)
        h = numbers(self, d.dtype, state.count)
        gain = jnp.sqrt(bias_correction(h.b2, count)) / bias_correction(h.b1, count)
        decay, step = jnp.sqrt(h.b2), d * h.learning_rate * gain
        scalars = {"b1": h.b1, "b2": h.b2, "b": decay, "eps": h.eps, "step": step}
        m, v, s, products = _average(scalars, updates, state)

        rest = 1 - decay
        numerator = decay * state.numerator_weighted + rest * step * real_sum(products, d.dtype)
        length = rest * real_sum(jax.tree.map(jnp.abs, s), d.dtype)
        estimate = larger_estimate(d, numerator, length)

        def step_leaf(h: Any, m: Any, v: Any, p: Any) -> Any:
            return -m / (positive_root(v) + h["eps"]) - h["decay"] * p

        scalars = {"eps": h.eps, "decay": h.weight_decay * step}
        new = map_leaves(step_leaf, m, hyper=scalars, v=v, params=params)
        return new, ScaleByDadaptAdamwState(m, v, s, estimate, numerator, count)


def _average(scalars: Any, updates: Any, state: ScaleByDadaptAdamwState) -> Any:
    """The new averages and sums, and the inner product of the gradients with the sum before."""

    def average_leaf(h: Any, g: Any, m: Any, v: Any, s: Any) -> Any:
        # The square of a finite gradient may be infinite, and would stay so in the second moment.
        g = clip_squarable(g)
        product = jnp.conj(g) * (s / (positive_root(v) + h["eps"]))
        scaled = h["step"] * g
        v = ema(v, squared_modulus(g), h["b2"])
        return product, ema(m, scaled, h["b1"]), v, ema(s, scaled, h["b"])

    products, m, v, s = map_leaves(
        average_leaf,
        updates,
        hyper=scalars,
        outputs=4,
        exp_avg=state.exp_avg,
        exp_avg_sq=state.exp_avg_sq,
        grad_sum=state.grad_sum,
    )
    return m, v, s, products


@recipe
def dadapt_adamw(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    estim_lr0: Scalar = 1e-6,
    weight_decay: Scalar = 0.0,
) -> scale_by_dadapt_adamw:
    r"""D-Adapted AdamW: its learning rate is an estimate of the distance to the solution.

    .. math:: u_t = -\frac{m_t}{\sqrt{v_t} + \epsilon} - \lambda\, \gamma_t\, \theta_t, \qquad
              m_t = \beta_1 m_{t-1} + (1-\beta_1)\, \gamma_t\, g_t, \qquad
              \gamma_t = d_t\, \eta_t\, \frac{\sqrt{1-\beta_2^t}}{1-\beta_1^t}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule` that begins with 1.
        betas: The decays of mean and mean square.
        eps: :math:`\epsilon`.
        estim_lr0: :math:`d_0`, the first estimate; too small rather than too large.
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
