"""AMSGrad and AdaMax: Adam with maxima in the denominator."""

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
    r"""State of AMSGrad and AMSBound.

    Attributes:
        count: :math:`t`, the number of steps; None without bias corrections.
        mu: :math:`\mu_t`, the moving average of the gradient.
        nu: :math:`\nu_t`, the moving average of the squared gradient.
        nu_max: :math:`\nu^{max}_t`, the running maximum of the second moment.
    """

    count: jax.Array | None
    mu: Slot
    nu: RealSlot
    nu_max: RealSlot


class scale_by_amsgrad(AdamDirection):
    r"""Divide the averaged gradient by the root of the running maximum of the second moment.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        \nu^{max}_t &= \max(\nu^{max}_{t-1}, \hat\nu_t), \qquad
        u_t = \frac{\hat\mu_t}{\sqrt{\nu^{max}_t + \bar\epsilon} + \epsilon}

    where :math:`\hat\mu_t` and :math:`\hat\nu_t` are bias-corrected as in Adam.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        bias_correction_mu: Whether :math:`\hat\mu_t = \mu_t / (1-\beta_1^t)`; otherwise
            :math:`\hat\mu_t = \mu_t`.
        bias_correction_nu: Whether :math:`\hat\nu_t = \nu_t / (1-\beta_2^t)`; otherwise
            :math:`\hat\nu_t = \nu_t`.

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
        # As in optax, the maximum is taken after the bias correction, which the paper omits.
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
    r"""AMSGrad: Adam with the running maximum of the second moment.

    .. math:: u_t = -\eta_t\, \frac{\hat\mu_t}{\sqrt{\max_{s \le t} \hat\nu_s + \bar\epsilon} +
              \epsilon}

    The bias-corrected averages :math:`\hat\mu_t` and :math:`\hat\nu_t` are defined in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        bias_correction_mu: Whether to bias-correct :math:`\mu`.
        bias_correction_nu: Whether to bias-correct :math:`\nu`.

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
    r"""State of `scale_by_adamax`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the gradient.
        nu: :math:`\nu_t`, the decaying maximum of the gradient's modulus.
    """

    count: jax.Array
    mu: Slot
    nu: RealSlot


class scale_by_adamax(AdamDirection):
    r"""Divide the averaged gradient by the decaying maximum of the gradient's modulus.

    .. math::
        \mu_t = \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \max(\beta_2 \nu_{t-1}, |g_t| + \epsilon), \qquad
        u_t = \frac{\mu_t}{(1-\beta_1^t)\, \nu_t}

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the maximum of the modulus.
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
        """Averaging weight and bias correction of `mu`; the maximum needs no correction."""
        return {"gain": 1 - h.b1, "mean": 1 / bias_correction(h.b1, t)}

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        mu = ema(mu, g, h.b1, h.gain)
        # As in optax, epsilon is added before the maximum.
        nu = jnp.maximum(jnp.abs(g) + h.eps, h.b2 * nu)
        # With eps = 0, an element whose gradients were all zero would be 0 / 0.
        return h.mean * mu / nonzero(nu), mu, nu


@recipe
def adamax(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
) -> Chain:
    r"""AdaMax: the averaged gradient over the decaying maximum of the gradient's modulus.

    .. math:: u_t = -\eta_t\, \frac{\hat\mu_t}{\nu_t}, \qquad
              \nu_t = \max(\beta_2 \nu_{t-1}, |g_t| + \epsilon)

    where :math:`\hat\mu_t` is the bias-corrected average of the gradient, as in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the maximum of the modulus.
        eps: :math:`\epsilon`, added to the modulus.

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

    .. math:: u_t = -\eta_t \left(\frac{\hat\mu_t}{\nu_t} + \lambda_t\, \theta_t\right), \qquad
              \nu_t = \max(\beta_2 \nu_{t-1}, |g_t| + \epsilon)

    where :math:`\hat\mu_t` is the bias-corrected average of the gradient, as in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the maximum of the modulus.
        eps: :math:`\epsilon`, added to the modulus.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

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
