"""Yogi: Adam whose mean square changes by bounded amounts."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    ScalarOrSchedule,
    ema,
    hyper,
    positive_root,
    squared_modulus,
)
from fnopt.optimizers._adam import AdamDirection
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, chain, scale_by_learning_rate


class scale_by_yogi(AdamDirection):
    r"""Divide the mean gradient by the root of a second moment with additive updates.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \nu_{t-1} - (1-\beta_2) \operatorname{sign}(\nu_{t-1} - |g_t|^2)\, |g_t|^2 \\
        u_t &= \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        eps_root: :math:`\bar\epsilon`, added under the root.
        initial_accumulator_value: :math:`\mu_0` and :math:`\nu_0`. The paper's listing begins at 0,
            and corrects no bias.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_yogi()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(3)
        Array([1., 1.], dtype=float32)

    Reference:
        Zaheer, Reddi, Sachan, Kale and Kumar, 2018, Adaptive methods for nonconvex optimization.
    """

    eps: Scalar = hyper(default=1e-3, ge=0)
    eps_root: Scalar = hyper(default=0.0, ge=0)
    initial_accumulator_value: Scalar = hyper(default=1e-6, ge=0)

    def fill(self, slot: str) -> Any:
        """Both averages start at `initial_accumulator_value`."""
        del slot
        return self.initial_accumulator_value

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The scalars of Adam, and the epsilon under the root."""
        numbers = super().scalars(h, t)
        return numbers | {"under_root": h.eps_root * numbers["seen_square"]}

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        mu = ema(mu, g, h.b1, h.gain1)
        square = squared_modulus(g)
        nu = nu - h.gain2 * jnp.sign(nu - square) * square
        return h.mean * mu / (positive_root(nu + h.under_root) + h.beside_root), mu, nu


@recipe
def yogi(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-3,
) -> Chain:
    r"""Yogi: Adam with additive updates of the second moment.

    .. math:: \nu_t = \nu_{t-1} - (1-\beta_2) \operatorname{sign}(\nu_{t-1} - |g_t|^2)\, |g_t|^2,
              \qquad u_t = -\eta_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the mean gradient.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.

    Returns:
        A chain of `scale_by_yogi` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.yogi(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(3)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Zaheer, Reddi, Sachan, Kale and Kumar, 2018, Adaptive methods for nonconvex optimization.
    """
    return chain(scale_by_yogi(b1, b2, eps), scale_by_learning_rate(learning_rate))
