"""Adan: Adam with the change of the gradient as a third moment."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fnopt.core import (
    Leafwise,
    RealSlot,
    Scalar,
    ScalarOrSchedule,
    Slot,
    bias_correction,
    ema,
    hyper,
    positive_root,
    squared_modulus,
)
from fnopt.optimizers._recipe import recipe, write_after
from fnopt.transforms import Chain, add_decayed_weights, chain, scale_by_learning_rate


class ScaleByAdanState(NamedTuple):
    """Step count, averages of the gradient, its change and their square, the last gradient."""

    count: jax.Array
    m: Slot
    v: Slot
    n: RealSlot
    g: Slot


class scale_by_adan(Leafwise):
    r"""Adam's direction with Nesterov momentum from the change of the gradient.

    .. math::
        d_t &= g_t - g_{t-1} \;(0 \text{ at first}), \\
        m_t &= \beta_1 m_{t-1} + (1-\beta_1)\, g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1-\beta_2)\, d_t \\
        n_t &= \beta_3 n_{t-1} + (1-\beta_3)\, |g_t + \beta_2\, d_t|^2, \qquad
        u_t = \frac{\hat m_t + \beta_2\, \hat v_t}{\sqrt{\hat n_t + \bar\epsilon} + \epsilon}

    The paper writes one minus these decays.

    Args:
        b1: :math:`\beta_1`, decay of the mean gradient.
        b2: :math:`\beta_2`, decay of the mean change.
        b3: :math:`\beta_3`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        eps_root: :math:`\bar\epsilon`, added under the root.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_adan()
        >>> tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))[0]["w"].round(4)
        Array([1., 1.], dtype=float32)

    Reference:
        Xie, Zhou, Li, Lin and Yan, 2022, arXiv:2208.06677.
    """

    State = ScaleByAdanState
    carrier = "m"

    b1: Scalar = hyper(default=0.98, ge=0, lt=1)
    b2: Scalar = hyper(default=0.92, ge=0, lt=1)
    b3: Scalar = hyper(default=0.99, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    eps_root: Scalar = hyper(default=0.0, ge=0)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Bias corrections, and whether there is a gradient before this one."""
        return {
            "gain1": 1 - h.b1,
            "gain2": 1 - h.b2,
            "gain3": 1 - h.b3,
            "mean": 1 / bias_correction(h.b1, t),
            "change": h.b2 / bias_correction(h.b2, t),
            "square": 1 / bias_correction(h.b3, t),
            "later": t > 1,
        }

    def leaf(self, h: Any, g: Any, m: Any, v: Any, n: Any, previous: Any) -> Any:
        change = h.later * (g - previous)
        m = ema(m, g, h.b1, h.gain1)
        v = ema(v, change, h.b2, h.gain2)
        n = ema(n, squared_modulus(g + h.b2 * change), h.b3, h.gain3)
        u = (h.mean * m + h.change * v) / (positive_root(h.square * n + h.eps_root) + h.eps)
        # The old slot is read by v and by n: after both, XLA can overwrite it in place.
        return u, m, v, n, write_after(write_after(g, v), n)


@recipe
def adan(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.98,
    b2: Scalar = 0.92,
    b3: Scalar = 0.99,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> Chain:
    r"""Adan: Adam with Nesterov's look-ahead from the change of the gradient.

    .. math:: u_t = -\eta_t \left(\frac{\hat m_t + \beta_2\, \hat v_t}
              {\sqrt{\hat n_t + \bar\epsilon} + \epsilon} + \lambda_t\, \theta_t\right)

    The decays are one minus those of the paper, whose decay of params is implicit.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the mean gradient.
        b2: :math:`\beta_2`, decay of the mean change.
        b3: Decay of the mean square.
        eps: Added to the root.
        eps_root: Added under the root.
        weight_decay: :math:`\lambda`, a number or a `Schedule` of its own.
        mask: Which leaves decay; see `add_decayed_weights`. None for all.

    Returns:
        A chain of `scale_by_adan`, `add_decayed_weights` and `scale_by_learning_rate`, with the
        slots `m`, `v`, `n` and `g` (the last gradient).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adan(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Xie, Zhou, Li, Lin and Yan, 2022, arXiv:2208.06677.
    """
    return chain(
        scale_by_adan(b1, b2, b3, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
