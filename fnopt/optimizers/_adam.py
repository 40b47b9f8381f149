"""Adam, Nadam, AdamW and NadamW."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import lax

from fnopt.core import Leafwise, RealSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import (
    as_dtype,
    bias_correction,
    ema,
    is_static_zero,
    mean_weights,
    positive_root,
    squared_modulus,
)
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import Chain


class ScaleByAdamState(NamedTuple):
    r"""State of Adam and of its variants with two slots.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the gradient.
        nu: :math:`\nu_t`, the second moment. In Adam, it is the moving average of the squared
            gradient.
    """

    count: jax.Array
    mu: Slot
    nu: RealSlot


def adam_means(h: Any, g: Any, mu: Any, nu: Any) -> tuple[Any, Any]:
    """Update the moving averages of the gradient and of the squared gradient."""
    return ema(mu, g, h.b1, h.gain1), ema(nu, squared_modulus(g), h.b2, h.gain2)


def adam_scalars(h: Any, t: Any, nesterov: bool = False) -> dict[str, Any]:
    """Compute the averaging weights and bias corrections of one step of Adam.

    The bias correction of `nu` is moved to `mu` and to epsilon. Then each leaf is scaled only once,
    and a small `nu` isn't divided by a small number.
    """
    # (m / s1) / (sqrt(v / s2) + eps) = (sqrt(s2) / s1) m / (sqrt(v) + eps sqrt(s2))
    steps = lax.convert_element_type(t, h.b2.dtype)  # one conversion for both corrections
    square_correction = bias_correction(h.b2, steps)
    root_correction = lax.sqrt(square_correction)
    numbers = {
        "gain1": 1 - h.b1,
        "gain2": 1 - h.b2,
        "root_correction": root_correction,
        "square_correction": square_correction,
        "scaled_eps": h.eps * root_correction,
    }
    if not nesterov:
        return numbers | {"mean": root_correction / bias_correction(h.b1, steps)}
    mean, gradient = mean_weights(h.b1, t, nesterov)
    return numbers | {"mean": mean * root_correction, "gradient": gradient * root_correction}


class AdamDirection(Leafwise):
    """Base class of Adam and its variants; a variant overrides `second_moment` or `leaf`."""

    State = ScaleByAdamState
    # Squares are clipped to finite values, so only `mu` can propagate an infinite gradient.
    carrier = "mu"

    # Defaults from Kingma and Ba (2014), algorithm 1.
    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Scalars of Adam, in Nesterov's form if the field `nesterov` is True."""
        return adam_scalars(h, t, getattr(self, "nesterov", False))

    def second_moment(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        """Update `nu`; `mu` already includes the gradient of this step."""
        return ema(nu, squared_modulus(g), h.b2, h.gain2)

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        mu = ema(mu, g, h.b1, h.gain1)
        nu = self.second_moment(h, g, mu, nu)
        direction = h.mean * mu + h.gradient * g if hasattr(h, "gradient") else h.mean * mu
        # `nu` isn't divided by its bias correction, so the epsilon inside the root is multiplied
        # by the correction instead.
        radicand = nu + h.scaled_eps_root if hasattr(h, "scaled_eps_root") else nu
        return direction / (positive_root(radicand) + h.scaled_eps), mu, nu


class scale_by_adam(AdamDirection):
    r"""Divide the averaged gradient by the root of the averaged squared gradient.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        u_t &= \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}, \qquad
        \hat\mu_t = \frac{\mu_t}{1-\beta_1^t}, \quad \hat\nu_t = \frac{\nu_t}{1-\beta_2^t}

    With `nesterov`, :math:`\hat\mu_t = \beta_1 \mu_t / (1-\beta_1^{t+1}) +
    (1-\beta_1) g_t / (1-\beta_1^t)`.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root. If both epsilons are zero, an element
            whose gradients were all zero has a zero update, because 0/0 is defined as 0.
        eps_root: :math:`\bar\epsilon`, added inside the square root. Hyper-gradients are finite
            even for 0, because the derivative of the root at 0 is defined as 0.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        nesterov: Whether to use Nesterov momentum (Nadam).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_adam()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(4), state.count
        (Array([1., 1.], dtype=float32), Array(1, dtype=int32))

    Reference:
        Kingma and Ba, 2014, arXiv:1412.6980; Dozat, 2016 (Nesterov).
    """

    eps_root: Scalar = hyper(default=0.0, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    nesterov: bool = static(default=False)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Scalars of Adam, and the epsilon inside the square root."""
        numbers = super().scalars(h, t)
        # A concrete zero is omitted, which saves one addition per element.
        if is_static_zero(h.eps_root):
            return numbers
        return numbers | {"scaled_eps_root": h.eps_root * numbers["square_correction"]}


@recipe
def adam(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> Chain:
    r"""Adam: steps along the averaged gradient over the root of the averaged squared gradient.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        u_t &= -\eta_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}, \qquad
        \hat\mu_t = \frac{\mu_t}{1-\beta_1^t}, \quad \hat\nu_t = \frac{\nu_t}{1-\beta_2^t}

    For complex params, pass `fnopt.tree.conj(jax.grad(loss)(params))` as the gradient. Along the
    unconjugated gradient of `jax.grad`, a step increases the loss in the imaginary parts.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        nesterov: Whether to use Nesterov momentum (Nadam).

    Returns:
        A chain of `scale_by_adam` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adam(0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.9, 0.9], dtype=float32)}

    Reference:
        Kingma and Ba, 2014, arXiv:1412.6980.
    """
    return descend(scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov), learning_rate)


@recipe
def nadam(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Any = None,
) -> Chain:
    r"""Nadam: Adam with Nesterov momentum.

    .. math:: u_t = -\frac{\eta_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon} \left(
              \frac{\beta_1 \mu_t}{1-\beta_1^{t+1}} + \frac{(1-\beta_1)\, g_t}{1-\beta_1^t}\right)

    The averages :math:`\mu_t` and :math:`\hat\nu_t` are defined in `adam`. In PyTorch and Keras,
    Nadam increases :math:`\beta_1` over the steps; in fnopt, :math:`\beta_1` is constant.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Returns:
        A chain of `scale_by_adam` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.nadam(0.1)
        >>> params = {"w": jnp.ones(())}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> print(f"{updates['w']:.4f}")
        -0.1474

    Reference:
        Dozat, 2016, Incorporating Nesterov momentum into Adam.
    """
    return adam(learning_rate, b1, b2, eps, eps_root, mu_dtype, nesterov=True)


@recipe
def adamw(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Any = None,
    *,
    nesterov: bool = False,
) -> Chain:
    r"""Adam with decoupled weight decay.

    .. math:: u_t = -\eta_t \left(\frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon} +
              \lambda_t\, \theta_t\right)

    The bias-corrected averages :math:`\hat\mu_t` and :math:`\hat\nu_t` are defined in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`. The
            parameters decay by the product of learning rate and weight decay.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.
        nesterov: Whether to use Nesterov momentum (Nadam).

    Returns:
        A chain of `scale_by_adam`, `add_decayed_weights` and `scale_by_learning_rate`, with the
        slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adamw(0.1, weight_decay=0.5, mask="*/kernel")
        >>> params = {"kernel": jnp.ones(2), "bias": jnp.ones(2)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'bias': Array([0.9, 0.9], dtype=float32), 'kernel': Array([0.85, 0.85], dtype=float32)}

    Reference:
        Loshchilov and Hutter, 2019, arXiv:1711.05101.
    """
    return descend(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov), learning_rate, weight_decay, mask
    )


@recipe
def nadamw(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Any = None,
) -> Chain:
    r"""NadamW: Adam with Nesterov momentum and decoupled weight decay.

    .. math:: u_t = -\eta_t \left(\frac{1}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon} \left(
              \frac{\beta_1 \mu_t}{1-\beta_1^{t+1}} + \frac{(1-\beta_1)\, g_t}{1-\beta_1^t}\right)
              + \lambda_t\, \theta_t\right)

    The averages :math:`\mu_t` and :math:`\hat\nu_t` are defined in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

    Returns:
        `adamw` with `nesterov=True`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.nadamw(0.1, weight_decay=0.5)
        >>> params = {"w": jnp.ones(())}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> print(f"{updates['w']:.4f}")
        -0.1974

    Reference:
        Dozat, 2016; Loshchilov and Hutter, 2019, arXiv:1711.05101.
    """
    return adamw(learning_rate, b1, b2, eps, eps_root, mu_dtype, weight_decay, mask, nesterov=True)
