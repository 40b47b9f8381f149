"""MARS: AdamW on gradients whose noise is reduced."""

from __future__ import annotations

from typing import Any

from fnopt.core import Scalar, ScalarOrSchedule
from fnopt.optimizers._adam import scale_by_adam
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import (
    Chain,
    add_decayed_weights,
    chain,
    reduce_variance,
    scale_by_learning_rate,
)


@recipe
def mars(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.95,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    gamma: Scalar = 0.025,
    max_norm: Scalar = 1.0,
    mask: Any = None,
    mu_dtype: Any = None,
) -> Chain:
    r"""MARS-AdamW: AdamW on gradients that are corrected by their change.

    .. math::
        c_t &= g_t + \gamma\, \frac{\beta_1}{1-\beta_1}\, (g_t - g_{t-1}), \qquad
        \tilde c_t = \frac{c_t}{\max(1,\, \lVert c_t \rVert / r)} \\
        u_t &= -\eta_t \left(\frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon} + \lambda_t\,
        \theta_t\right)

    with AdamW's means :math:`\mu, \nu` of :math:`\tilde c`. The authors leave vectors to AdamW:
    `partition` does that. With another method behind it, see `reduce_variance`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay of the mean.
        b2: Decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda`, a number or a `Schedule` of its own.
        gamma: :math:`\gamma`, how much of the change is added.
        max_norm: :math:`r`, the largest norm of a leaf's gradient; `math.inf` for no bound.
        mask: Which leaves decay; see `add_decayed_weights`. None for all.
        mu_dtype: Storage dtype of the mean; by default the params' own, but at least float32.

    Returns:
        A chain of `reduce_variance`, `scale_by_adam`, `add_decayed_weights` and
        `scale_by_learning_rate`, with the slots `last_grad`, `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.mars(0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.9, 0.9], dtype=float32)

    Reference:
        Yuan, Liu, Wu, Zhou and Gu, 2024, arXiv:2411.10438.
    """
    return chain(
        reduce_variance(b1, gamma, max_norm),
        scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
