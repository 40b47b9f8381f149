"""AMSGrad: Adam whose divisor never shrinks."""

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
    bias_correction,
    hyper,
    positive_root,
    static,
)
from fnopt.optimizers._adam import AdamDirection, adam_means
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, chain, scale_by_learning_rate


class ScaleByAmsgradState(NamedTuple):
    """Step count, the averages of the gradient and of its square, the largest of the latter."""

    count: jax.Array | None
    mu: Slot
    nu: RealSlot
    nu_max: RealSlot


class scale_by_amsgrad(AdamDirection):
    r"""Divide the mean gradient by the root of the largest mean square so far.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        \nu^{max}_t &= \max(\nu^{max}_{t-1}, \hat\nu_t), \qquad
        u_t = \frac{\hat\mu_t}{\sqrt{\nu^{max}_t + \bar\epsilon} + \epsilon}

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        eps_root: :math:`\bar\epsilon`, added under the root.
        mu_dtype: Storage dtype of `mu`; by default the params' own, but at least float32.
        bias_correction_mu: Whether :math:`\hat\mu_t = \mu_t / (1-\beta_1^t)`, or
            :math:`\mu_t` itself.
        bias_correction_nu: Whether :math:`\hat\nu_t = \nu_t / (1-\beta_2^t)`, or
            :math:`\nu_t` itself.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_amsgrad()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(4), state.nu_max["w"].round(4)
        (Array([1., 1.], dtype=float32), Array([64., 64.], dtype=float32))

    Reference:
        Reddi, Kale and Kumar, 2018, arXiv:1904.09237.
    """

    State = ScaleByAmsgradState

    eps_root: Scalar = hyper(default=0.0, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    bias_correction_mu: bool = static(default=True)
    bias_correction_nu: bool = static(default=True)

    @property
    def reads_step(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether an average is corrected."""
        return self.bias_correction_mu or self.bias_correction_nu

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The bias corrections that are asked for."""
        return {
            "gain1": 1 - h.b1,
            "gain2": 1 - h.b2,
            "mean": 1 / bias_correction(h.b1, t) if self.bias_correction_mu else 1.0,
            "square": 1 / bias_correction(h.b2, t) if self.bias_correction_nu else 1.0,
        }

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any, nu_max: Any) -> Any:
        mu, nu = adam_means(h, g, mu, nu)
        nu_max = jnp.maximum(nu_max, h.square * nu)
        return h.mean * mu / (positive_root(nu_max + h.eps_root) + h.eps), mu, nu, nu_max


@recipe
def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Any = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> Chain:
    r"""AMSGrad: Adam that divides by the largest root mean square so far.

    .. math:: u_t = -\eta_t\, \frac{\hat\mu_t}{\sqrt{\max_{s \le t} \hat\nu_s + \bar\epsilon} +
              \epsilon}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the mean gradient.
        b2: Decay of the mean square.
        eps: Added to the root.
        eps_root: Added under the root.
        mu_dtype: Storage dtype of the mean; by default the params' own, but at least float32.
        bias_correction_mu: Whether the mean is corrected for its start at zero.
        bias_correction_nu: Whether the mean square is.

    Returns:
        A chain of `scale_by_amsgrad` and `scale_by_learning_rate`, with the slots `mu`, `nu` and
        `nu_max`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.amsgrad(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Reddi, Kale and Kumar, 2018, arXiv:1904.09237.
    """
    direction = scale_by_amsgrad(
        b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu
    )
    return chain(direction, scale_by_learning_rate(learning_rate))
