"""DiffGrad."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    RealSlot,
    Scalar,
    ScalarOrSchedule,
    Slot,
    as_dtype,
    positive_root,
    static,
)
from fnopt.optimizers._adam import AdamDirection, adam_means
from fnopt.optimizers._arithmetic import write_after
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, chain, scale_by_learning_rate


class ScaleByDiffgradState(NamedTuple):
    """Step count, the averages of the gradient and of its square, and the last gradient."""

    count: jax.Array
    mu: Slot
    nu: RealSlot
    previous: Slot


class scale_by_diffgrad(AdamDirection):
    r"""Adam's direction times a friction that depends on how much the gradient changed.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        \xi_t &= \frac{1}{1 + e^{-|g_{t-1} - g_t|}}, \qquad
        u_t = \xi_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    :math:`\hat\mu_t` and :math:`\hat\nu_t` are corrected for their start at zero as in Adam, and
    :math:`g_0 = 0`. The friction :math:`\xi_t` is between 1/2 (no change) and 1.

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        mu_dtype: Storage dtype of `mu`; by default the params' own, but at least float32.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_diffgrad()
        >>> g, state = {"w": jnp.full(2, 50.0)}, tx.init({"w": jnp.ones(2)})
        >>> first, state = tx.update(g, state)
        >>> second, state = tx.update(g, state)
        >>> first["w"].round(4), second["w"].round(4)
        (Array([1., 1.], dtype=float32), Array([0.5, 0.5], dtype=float32))

    Reference:
        Dubey, Chakraborty, Roy, Mukherjee, Singh and Chaudhuri, 2019, arXiv:1909.11015.
    """

    State = ScaleByDiffgradState

    mu_dtype: Any = static(default=None, convert=as_dtype)

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any, previous: Any) -> Any:
        mu, nu = adam_means(h, g, mu, nu)
        friction = jax.nn.sigmoid(jnp.abs(previous - g))
        u = friction * (h.mean * mu) / (positive_root(nu) + h.beside_root)
        return u, mu, nu, write_after(g, u)


@recipe
def diffgrad(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    mu_dtype: Any = None,
) -> Chain:
    r"""DiffGrad: Adam with smaller steps where the gradient hardly changes.

    .. math:: \xi_t = \frac{1}{1 + e^{-|g_{t-1} - g_t|}}, \qquad
              u_t = -\eta_t\, \xi_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the mean gradient.
        b2: Decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        mu_dtype: Storage dtype of the mean; by default the params' own, but at least float32.

    Returns:
        A chain of `scale_by_diffgrad` and `scale_by_learning_rate`, with the slots `mu`, `nu` and
        `previous` (the last gradient).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.diffgrad(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 50.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Dubey, Chakraborty, Roy, Mukherjee, Singh and Chaudhuri, 2019, arXiv:1909.11015.
    """
    return chain(scale_by_diffgrad(b1, b2, eps, mu_dtype), scale_by_learning_rate(learning_rate))
