"""AdaBound and AMSBound: Adam with bounds on the elementwise step sizes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnopt.core import Leafwise, Scalar, ScalarOrSchedule, hyper, static
from fnopt.numerics import as_dtype, bias_correction, positive_root
from fnopt.optimizers._adam import ScaleByAdamState, adam_means
from fnopt.optimizers._amsgrad import ScaleByAmsgradState
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import Chain


class _Bounded(Leafwise):
    """Base class of AdaBound and AMSBound."""

    carrier = "mu"

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    final_ratio: Scalar = hyper(default=100.0, gt=0)
    gamma: Scalar = hyper(default=1e-3, gt=0)
    eps: Scalar = hyper(default=1e-8, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Bias correction and bounds of the step sizes."""
        progress = h.gamma * t.astype(h.gamma.dtype)
        return {
            "gain1": 1 - h.b1,
            "gain2": 1 - h.b2,
            "correction": jnp.sqrt(bias_correction(h.b2, t)) / bias_correction(h.b1, t),
            # x / (x + 1), because 1 - 1 / (x + 1) cancels for the small x of the first steps.
            "lower": h.final_ratio * progress / (progress + 1),
            "upper": h.final_ratio * (1 + 1 / progress),
        }

    def clip_step(self, h: Any, mu: Any, nu: Any) -> Any:
        """Multiply the averaged gradient by the clipped step sizes."""
        factor = h.correction / (positive_root(nu) + h.eps)
        return jnp.clip(factor, h.lower, h.upper) * mu


class scale_by_adabound(_Bounded):
    r"""Multiply Adam's averaged gradient by step sizes between two converging bounds.

    .. math::
        u_t = \operatorname{clip}\left(\frac{\sqrt{1-\beta_2^t} / (1-\beta_1^t)}
        {\sqrt{\nu_t} + \epsilon},\; \rho \Big(1 - \frac{1}{\gamma t + 1}\Big),\;
        \rho \Big(1 + \frac{1}{\gamma t}\Big)\right) \mu_t

    with :math:`\mu` and :math:`\nu` as in Adam. The method starts as Adam and converges to SGD with
    momentum, with :math:`\rho` times the learning rate. As in the authors' code, the averages are
    bias-corrected, and the learning rate isn't divided by :math:`\sqrt t`.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        final_ratio: :math:`\rho`, the ratio of the final step size to the learning rate
            (`final_lr / lr` in the authors' code).
        gamma: :math:`\gamma`, the rate at which the bounds converge.
        eps: :math:`\epsilon`, added outside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_adabound(final_ratio=2.0, gamma=1.0)
        >>> tx.update({"w": jnp.full(1, 0.01)}, tx.init({"w": jnp.ones(1)}))[0]["w"].round(4)
        Array([0.004], dtype=float32)

    Reference:
        Luo, Xiong, Liu and Sun, 2019, arXiv:1902.09843.
    """

    State = ScaleByAdamState

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        mu, nu = adam_means(h, g, mu, nu)
        return self.clip_step(h, mu, nu), mu, nu


class scale_by_amsbound(_Bounded):
    r"""Multiply Adam's averaged gradient by bounded step sizes, with AMSGrad's second moment.

    .. math:: u_t = \operatorname{clip}\left(\frac{\sqrt{1-\beta_2^t} / (1-\beta_1^t)}
              {\sqrt{\max_{i \le t} \nu_i} + \epsilon},\;
              \rho \Big(1 - \frac{1}{\gamma t + 1}\Big),\;
              \rho \Big(1 + \frac{1}{\gamma t}\Big)\right) \mu_t

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        final_ratio: :math:`\rho`, the ratio of the final step size to the learning rate.
        gamma: :math:`\gamma`, the rate at which the bounds converge.
        eps: :math:`\epsilon`, added outside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_amsbound(final_ratio=2.0, gamma=1.0)
        >>> tx.update({"w": jnp.full(1, 0.01)}, tx.init({"w": jnp.ones(1)}))[0]["w"].round(4)
        Array([0.004], dtype=float32)

    Reference:
        Luo, Xiong, Liu and Sun, 2019, arXiv:1902.09843.
    """

    State = ScaleByAmsgradState

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any, nu_max: Any) -> Any:
        mu, nu = adam_means(h, g, mu, nu)
        # As in the authors' code, the maximum is taken before the bias correction.
        nu_max = jnp.maximum(nu_max, nu)
        return self.clip_step(h, mu, nu_max), mu, nu, nu_max


@recipe
def adabound(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    final_ratio: Scalar = 100.0,
    gamma: Scalar = 1e-3,
    eps: Scalar = 1e-8,
    mu_dtype: Any = None,
) -> Chain:
    r"""AdaBound: Adam with bounds on step sizes that converge to a constant step size.

    .. math:: u_t = -\eta_t\, \operatorname{clip}\left(\frac{\sqrt{1-\beta_2^t} / (1-\beta_1^t)}
              {\sqrt{\nu_t} + \epsilon},\; \rho \Big(1 - \frac{1}{\gamma t + 1}\Big),\;
              \rho \Big(1 + \frac{1}{\gamma t}\Big)\right) \mu_t

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        final_ratio: :math:`\rho`; the method converges to SGD with momentum and the learning rate
            :math:`\rho \eta`. The authors' `final_lr=0.1` and `lr=1e-3` correspond to 100.
        gamma: :math:`\gamma`, the rate at which the bounds converge.
        eps: :math:`\epsilon`, added outside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Returns:
        A chain of `scale_by_adabound` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adabound(0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.9, 0.9], dtype=float32)

    Reference:
        Luo, Xiong, Liu and Sun, 2019, arXiv:1902.09843.
    """
    direction = scale_by_adabound(b1, b2, final_ratio, gamma, eps, mu_dtype)
    return descend(direction, learning_rate)


@recipe
def amsbound(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    final_ratio: Scalar = 100.0,
    gamma: Scalar = 1e-3,
    eps: Scalar = 1e-8,
    mu_dtype: Any = None,
) -> Chain:
    r"""AMSBound: AdaBound with the running maximum of the second moment.

    .. math:: u_t = -\eta_t\, \operatorname{clip}\left(\frac{\sqrt{1-\beta_2^t} / (1-\beta_1^t)}
              {\sqrt{\max_{i \le t} \nu_i} + \epsilon},\;
              \rho \Big(1 - \frac{1}{\gamma t + 1}\Big),\;
              \rho \Big(1 + \frac{1}{\gamma t}\Big)\right) \mu_t

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        final_ratio: :math:`\rho`, the ratio of the final step size to the learning rate.
        gamma: :math:`\gamma`, the rate at which the bounds converge.
        eps: :math:`\epsilon`, added outside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Returns:
        A chain of `scale_by_amsbound` and `scale_by_learning_rate`, with the slots `mu`, `nu` and
        `nu_max`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.amsbound(0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.9, 0.9], dtype=float32)

    Reference:
        Luo, Xiong, Liu and Sun, 2019, arXiv:1902.09843.
    """
    direction = scale_by_amsbound(b1, b2, final_ratio, gamma, eps, mu_dtype)
    return descend(direction, learning_rate)
