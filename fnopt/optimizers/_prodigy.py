"""Prodigy: AdamW with an estimated distance to the solution as learning rate."""

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
    r"""State of `scale_by_prodigy`.

    Attributes:
        exp_avg: :math:`m_t`, the moving average of :math:`d_t\, g_t`.
        exp_avg_sq: :math:`v_t`, the moving average of :math:`d_t^2\, |g_t|^2`.
        grad_sum: :math:`s_t`, the weighted sum of gradients.
        params0: :math:`\theta_0`, the initial parameters.
        estim_lr: :math:`d_{t+1}`, the estimated distance to the solution.
        numerator_weighted: :math:`r_t`, the numerator of the estimate.
        count: :math:`t`, the number of steps.
    """

    exp_avg: Slot
    exp_avg_sq: RealSlot
    grad_sum: Slot
    params0: Slot
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    count: jax.Array


class scale_by_prodigy(Transformation):
    r"""Multiply Adam's direction by an estimated distance to the solution.

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
        b1: :math:`\beta_1`, decay rate of :math:`m`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`v`, the moving average of the squared gradient.
        beta3: :math:`\beta_3`, decay rate of the sums :math:`r` and :math:`s`; None uses
            :math:`\sqrt{\beta_2}`.
        eps: :math:`\epsilon`, added outside the square root.
        estim_lr0: :math:`d_0`, the initial estimate. Since the estimate never decreases, choose a
            value below the distance to the solution.
        estim_lr_coef: :math:`c`, a factor of the estimate.
        weight_decay: :math:`\lambda`, the decoupled weight decay.
        safeguard_warmup: Whether to omit :math:`\gamma_t` from :math:`s_t`.

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
        """Return zero averages, the initial parameters, and the initial estimate."""
        dtype = real_dtype_of(params)
        return ScaleByProdigyState(
            slot_zeros(params),
            slot_zeros(params, real=True),
            slot_zeros(params),
            slot_copy(params),
            # A copy, because donating the state would delete the buffer of `self.estim_lr0`.
            jnp.array(self.estim_lr0, dtype),
            jnp.zeros((), dtype),
            zero_count(),
        )

    def update(
        self, updates: Any, state: ScaleByProdigyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByProdigyState]:
        """Take a step with the estimated step size, and update the estimate."""
        d, count = state.estim_lr, safe_increment(state.count)
        h = numbers(self, d.dtype, state.count)
        # The default of the authors' code.
        beta3 = jnp.sqrt(h.b2) if h.beta3 is None else h.beta3
        # One factor corrects both averages, as in Kingma and Ba (2014), section 2.
        correction = jnp.sqrt(bias_correction(h.b2, count)) / bias_correction(h.b1, count)
        step = d * h.learning_rate * correction
        # As in the authors' code, the weight is divided by d0, which cancels in the estimate.
        weight = (d / h.estim_lr0) * (d if self.safeguard_warmup else step)

        def average_leaf(h: Any, g: Any, m: Any, v: Any, s: Any, p0: Any, p: Any) -> Any:
            # An infinite square of a finite gradient would stay infinite in the average.
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
        denominator = real_sum(jax.tree.map(jnp.abs, s), d.dtype)
        estimate = larger_estimate(d, h.estim_lr_coef * numerator, denominator)

        def step_leaf(h: Any, m: Any, v: Any, p: Any) -> Any:
            # The lower bound of `positive_root` is negligible; m = 0 results in a zero step.
            return -h["step"] * (m / (positive_root(v) + h["eps"]) + h["decay"] * p)

        # sqrt(v) has the scale d |g|, so epsilon is multiplied by the estimate.
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

    `scale_by_prodigy` defines the averages :math:`m` and :math:`v` and the estimate :math:`d`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule` that begins with 1, usually a cosine
            decay.
        betas: :math:`(\beta_1, \beta_2)`, the decay rates of :math:`m` and :math:`v`.
        beta3: :math:`\beta_3`, decay rate of the sums in the estimate; None uses
            :math:`\sqrt{\beta_2}`.
        eps: :math:`\epsilon`, added outside the square root.
        estim_lr0: :math:`d_0`, the initial estimate. Since the estimate never decreases, choose a
            value below the distance to the solution.
        estim_lr_coef: :math:`c`, a factor of the estimate.
        weight_decay: :math:`\lambda`, the decoupled weight decay.
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
