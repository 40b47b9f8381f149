"""AdaBelief: Adam with the variance about the mean."""

from __future__ import annotations

from typing import Any

from fnopt.core import (
    Scalar,
    ScalarOrSchedule,
    ema,
    hyper,
    positive_root,
    squared_modulus,
    static,
)
from fnopt.optimizers._adam import AdamDirection
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, add_decayed_weights, chain, scale_by_learning_rate


class scale_by_belief(AdamDirection):
    r"""Divide the mean gradient by the root mean square of the gradient's distance from it.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t - \mu_t|^2 + \bar\epsilon \\
        u_t &= \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean squared distance.
        eps: :math:`\epsilon`, added to the root.
        eps_root: :math:`\bar\epsilon`, added to the mean squared distance at every step, as in
            the paper.
        nesterov: Whether to look ahead.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_belief()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(4)
        Array([1.1111, 1.1111], dtype=float32)

    Reference:
        Zhuang et al., 2020, arXiv:2010.07468.
    """

    eps: Scalar = hyper(default=1e-16, ge=0)
    eps_root: Scalar = hyper(default=1e-16, ge=0)
    nesterov: bool = static(default=False)

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        mu = ema(mu, g, h.b1, h.gain1)
        # Adding a number last would make XLA repeat the whole sum in the loop of the update, which
        # then reads the old slot too, and copies it.
        nu = h.b2 * nu + (h.gain2 * squared_modulus(g - mu) + h.eps_root)
        direction = h.mean * mu + h.gradient * g if self.nesterov else h.mean * mu
        return direction / (positive_root(nu) + h.beside_root), mu, nu


@recipe
def adabelief(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-16,
    eps_root: Scalar = 1e-16,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: Any = None,
    *,
    nesterov: bool = False,
) -> Chain:
    r"""AdaBelief: large steps where the gradient is close to its mean.

    .. math:: u_t = -\eta_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}, \qquad
              \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t - \mu_t|^2 + \bar\epsilon

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the mean gradient.
        b2: :math:`\beta_2`, decay of the mean squared distance from it.
        eps: :math:`\epsilon`, added to the root.
        eps_root: :math:`\bar\epsilon`, added at every step.
        weight_decay: Decoupled decay, a number or a `Schedule`; None for no such member.
        weight_decay_mask: Which leaves decay; see `add_decayed_weights`. None for all.
        nesterov: Whether to look ahead.

    Returns:
        A chain of `scale_by_belief`, `add_decayed_weights` (with `weight_decay`) and
        `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adabelief(0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.8889, 0.8889], dtype=float32)

    Reference:
        Zhuang et al., 2020, arXiv:2010.07468.
    """
    direction = scale_by_belief(b1, b2, eps, eps_root, nesterov)
    step = scale_by_learning_rate(learning_rate)
    if weight_decay is None:
        return chain(direction, step)
    return chain(direction, add_decayed_weights(weight_decay, weight_decay_mask), step)
