"""Adam with maxima: AMSGrad, whose second moment never decreases, and AdaMax."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import RealSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import as_dtype, bias_correction, ema, nonzero, positive_root
from fnopt.optimizers._adam import AdamDirection, adam_means
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import Chain


class ScaleByAmsgradState(NamedTuple):
    """Step count, averages of the gradient and of its square, the maximum of the mean square."""

    count: jax.Array | None
    mu: Slot
    nu: RealSlot
    nu_max: RealSlot


class scale_by_amsgrad(AdamDirection):
    r"""Divide the mean gradient by the root of the running maximum of the mean square.

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
        mu_dtype: Storage dtype of `mu`; by default the dtype of the params, at least float32.
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
        """Whether an average is bias-corrected."""
        return self.bias_correction_mu or self.bias_correction_nu

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The requested bias corrections."""
        return {
            "gain1": 1 - h.b1,
            "gain2": 1 - h.b2,
            "mean": 1 / bias_correction(h.b1, t) if self.bias_correction_mu else 1.0,
            "square": 1 / bias_correction(h.b2, t) if self.bias_correction_nu else 1.0,
        }

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any, nu_max: Any) -> Any:
        mu, nu = adam_means(h, g, mu, nu)
        # The maximum is of corrected means, as in optax; the paper has no bias correction.
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
    r"""AMSGrad: Adam with the running maximum of the mean square.

    .. math:: u_t = -\eta_t\, \frac{\hat\mu_t}{\sqrt{\max_{s \le t} \hat\nu_s + \bar\epsilon} +
              \epsilon}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay rate of :math:`\mu`, the moving average of the gradient.
        b2: Decay rate of the moving average of the squared gradient.
        eps: Added to the root.
        eps_root: Added under the root.
        mu_dtype: Storage dtype of the mean; by default the dtype of the params, at least float32.
        bias_correction_mu: Whether the mean is bias-corrected.
        bias_correction_nu: Whether the mean square is bias-corrected.

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
    return descend(direction, learning_rate)


class ScaleByAdamaxState(NamedTuple):
    """Step count, the average of the gradient, and its decaying largest modulus."""

    count: jax.Array
    mu: Slot
    nu: RealSlot


class scale_by_adamax(AdamDirection):
    r"""Divide the mean gradient by its decaying maximum.

    .. math::
        \mu_t = \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \max(\beta_2 \nu_{t-1}, |g_t| + \epsilon), \qquad
        u_t = \frac{\mu_t}{(1-\beta_1^t)\, \nu_t}

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the maximum.
        eps: :math:`\epsilon`, added to the modulus. With 0, an element whose gradients were all
            zero has a zero update.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_adamax()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(4), state.nu["w"]
        (Array([1., 1.], dtype=float32), Array([8., 8.], dtype=float32))

    Reference:
        Kingma and Ba, 2014, arXiv:1412.6980, section 7.1.
    """

    State = ScaleByAdamaxState

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Bias correction of the mean; the maximum needs no correction."""
        return {"gain": 1 - h.b1, "mean": 1 / bias_correction(h.b1, t)}

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        mu = ema(mu, g, h.b1, h.gain)
        # A maximum has no bias toward zero (Kingma and Ba, section 7.1); epsilon is added inside as
        # in optax.
        nu = jnp.maximum(jnp.abs(g) + h.eps, h.b2 * nu)
        # Without an epsilon an element that never saw a gradient is 0 / 0.
        return h.mean * mu / nonzero(nu), mu, nu


@recipe
def adamax(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
) -> Chain:
    r"""AdaMax: the mean gradient over its decaying maximum.

    .. math:: u_t = -\eta_t\, \frac{\hat\mu_t}{\nu_t}, \qquad
              \nu_t = \max(\beta_2 \nu_{t-1}, |g_t| + \epsilon)

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay of the maximum.
        eps: :math:`\epsilon`.

    Returns:
        A chain of `scale_by_adamax` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adamax(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Kingma and Ba, 2014, arXiv:1412.6980, section 7.1.
    """
    return descend(scale_by_adamax(b1, b2, eps), learning_rate)


@recipe
def adamaxw(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Any = None,
) -> Chain:
    r"""AdaMax with decoupled weight decay.

    .. math:: u_t = -\eta_t \left(\frac{\hat\mu_t}{\nu_t} + \lambda_t\, \theta_t\right)

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay rate of :math:`\mu`, the moving average of the gradient.
        b2: Decay of the maximum.
        eps: Added to the modulus of the gradient.
        weight_decay: :math:`\lambda`, a number or a separate `Schedule`.
        mask: The leaves to decay; see `add_decayed_weights`. None decays all leaves.

    Returns:
        A chain of `scale_by_adamax`, `add_decayed_weights` and `scale_by_learning_rate`, with the
        slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adamaxw(0.5, weight_decay=0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.25, 0.25], dtype=float32)

    Reference:
        Kingma and Ba, 2014, arXiv:1412.6980; Loshchilov and Hutter, 2019, arXiv:1711.05101.
    """
    return descend(scale_by_adamax(b1, b2, eps), learning_rate, weight_decay, mask)
