"""Variants of Adam: StableAdamW, MARS and QHAdam."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, RealSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import as_dtype, bias_correction, positive_root, squared_modulus
from fnopt.optimizers._adam import AdamDirection, adam_means, scale_by_adam
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import (
    Chain,
    add_decayed_weights,
    chain,
    reduce_variance,
    rms,
    scale_by_learning_rate,
)


class scale_by_stable_adam(AdamDirection):
    r"""Scale down Adam's direction in leaves whose gradient exceeds its running root mean square.

    .. math:: u_t = \frac{1}{\max(1,\, \mathrm{RMS}_t)} \left(\frac{\hat\mu_t}
              {\sqrt{\hat\nu_t} + \epsilon} + \lambda_t\, \theta_t\right), \qquad
              \mathrm{RMS}_t = \Big( \mathrm{mean}_i \frac{|g_{t,i}|^2}
              {\max(\hat\nu_{t,i}, \epsilon^2)} \Big)^{1/2}

    The bias-corrected averages :math:`\hat\mu_t` and :math:`\hat\nu_t` are defined in `adam`. Since
    :math:`\hat\nu_t` lags behind a growing gradient, Adam's steps would be too long. The divisor is
    Adafactor's update clipping, applied to the learning rate of each leaf.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_stable_adam(0.0, 0.5), {"w": jnp.zeros(1)}
        >>> _, state = tx.update({"w": jnp.ones(1)}, tx.init(params), params)
        >>> tx.update({"w": jnp.full(1, 7.0)}, state, params)[0]["w"].round(4)
        Array([1.], dtype=float32)

    Reference:
        Wortsman et al., 2023, arXiv:2304.13013.
    """

    needs_params = True
    carrier = None  # `excess` already propagates an infinite gradient

    b2: Scalar = hyper(default=0.99, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-6, ge=0)
    weight_decay: ScalarOrSchedule = hyper(default=0.0, ge=0, schedule=True)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def leaf(self, h: Any, g: Any, p: Any, mu: Any, nu: Any) -> Any:
        mu, nu = adam_means(h, g, mu, nu)
        root = positive_root(nu)
        # Wortsman et al. (2023), algorithm 2: RMS of g / sqrt(nu), with nu bias-corrected.
        excess = rms(h.root_correction * g / jnp.maximum(root, h.scaled_eps))
        direction = h.mean * mu / (root + h.scaled_eps) + h.weight_decay * p
        return direction / jnp.maximum(excess, jnp.ones_like(excess)), mu, nu


@recipe
def stable_adamw(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-6,
    weight_decay: ScalarOrSchedule = 1e-4,
    mu_dtype: Any = None,
) -> Chain:
    r"""StableAdamW: AdamW with Adafactor's update clipping.

    .. math:: u_t = -\frac{\eta_t}{\max(1,\, \mathrm{RMS}_t)} \left(\frac{\hat\mu_t}
              {\sqrt{\hat\nu_t} + \epsilon} + \lambda_t\, \theta_t\right)

    `scale_by_stable_adam` defines :math:`\mathrm{RMS}_t`, the size of a leaf's gradient relative to
    the running root mean square. StableAdamW needs no gradient clipping. The divisor also scales
    the weight decay of a leaf. To exclude leaves from weight decay, use `param_groups`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Returns:
        A chain of `scale_by_stable_adam` and `scale_by_learning_rate`, with the slots `mu` and
        `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.stable_adamw(0.1, weight_decay=0.0)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.9, 0.9], dtype=float32)

    Reference:
        Wortsman et al., 2023, arXiv:2304.13013.
    """
    return descend(scale_by_stable_adam(b1, b2, eps, weight_decay, mu_dtype), learning_rate)


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
    r"""MARS-AdamW: AdamW with variance-reduced gradients.

    .. math::
        c_t &= g_t + \gamma\, \frac{\beta_1}{1-\beta_1}\, (g_t - g_{t-1}), \qquad
        \tilde c_t = \frac{c_t}{\max(1,\, \lVert c_t \rVert / r)} \\
        u_t &= -\eta_t \left(\frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon} + \lambda_t\,
        \theta_t\right)

    where :math:`\hat\mu` and :math:`\hat\nu` are Adam's bias-corrected averages of :math:`\tilde
    c`. The authors train vectors with plain AdamW; use `partition` to do so. To combine the
    correction with another method, use `reduce_variance`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of :math:`\tilde c`.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of
            :math:`|\tilde c|^2`.
        eps: :math:`\epsilon`, added outside the square root.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        gamma: :math:`\gamma`, the weight of the gradient's change.
        max_norm: :math:`r`, the largest norm of a leaf of :math:`\tilde c`; `math.inf` disables
            clipping.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

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


class ScaleByQhadamState(NamedTuple):
    r"""State of `scale_by_qhadam`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the gradient.
        nu: :math:`\nu_t`, the moving average of the squared gradient.
    """

    count: jax.Array
    mu: Slot
    nu: RealSlot


class scale_by_qhadam(Leafwise):
    r"""Interpolate between the gradient and its average, in Adam's numerator and denominator.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        u_t &= \frac{(1-v_1)\, g_t + v_1\, \hat\mu_t}
                    {\sqrt{(1-v_2)\, |g_t|^2 + v_2\, \hat\nu_t} + \epsilon}

    where :math:`\hat\mu_t` and :math:`\hat\nu_t` are bias-corrected as in Adam. With :math:`v_2 =
    1`, the method is Adam for :math:`v_1 = 1`, nearly Nadam for :math:`v_1 = \beta_1`, and
    bias-corrected RMSProp for :math:`v_1 = 0`.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        v1: :math:`v_1`, the weight of the averaged gradient.
        v2: :math:`v_2`, the weight of the averaged squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_qhadam()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(4), state.count
        (Array([1., 1.], dtype=float32), Array(1, dtype=int32))

    Reference:
        Ma and Yarats, 2018, arXiv:1810.06801.
    """

    State = ScaleByQhadamState

    # Ma and Yarats (2018) recommend b1, b2, v1 and v2 as defaults without tuning.
    b1: Scalar = hyper(default=0.995, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    v1: Scalar = hyper(default=0.7, ge=0, le=1)
    v2: Scalar = hyper(default=1.0, ge=0, le=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Interpolation weights, divided by the bias corrections."""
        return {
            "gain1": 1 - h.b1,
            "gain2": 1 - h.b2,
            "mean": h.v1 / bias_correction(h.b1, t),
            "mean_square": h.v2 / bias_correction(h.b2, t),
            "gradient": 1 - h.v1,
            "square": 1 - h.v2,
        }

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        mu, nu = adam_means(h, g, mu, nu)
        second_moment = h.square * squared_modulus(g) + h.mean_square * nu
        return (h.gradient * g + h.mean * mu) / (positive_root(second_moment) + h.eps), mu, nu


@recipe
def qhadam(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.995,
    b2: Scalar = 0.999,
    v1: Scalar = 0.7,
    v2: Scalar = 1.0,
    eps: Scalar = 1e-8,
    mu_dtype: Any = None,
) -> Chain:
    r"""QHAdam: Adam with an interpolation between the gradient and its average.

    .. math:: u_t = -\eta_t\, \frac{(1-v_1)\, g_t + v_1\, \hat\mu_t}
                    {\sqrt{(1-v_2)\, |g_t|^2 + v_2\, \hat\nu_t} + \epsilon}

    The bias-corrected averages :math:`\hat\mu_t` and :math:`\hat\nu_t` are defined in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        v1: :math:`v_1`, the weight of the averaged gradient.
        v2: :math:`v_2`, the weight of the averaged squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Returns:
        A chain of `scale_by_qhadam` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.qhadam(0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.9, 0.9], dtype=float32)}

    Reference:
        Ma and Yarats, 2018, arXiv:1810.06801.
    """
    return descend(scale_by_qhadam(b1, b2, v1, v2, eps, mu_dtype), learning_rate)
