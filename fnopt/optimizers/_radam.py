"""RAdam: Adam with a rectified variance of the step size."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from fnopt.core import Scalar, ScalarOrSchedule, hyper, static
from fnopt.numerics import bias_correction, mean_weights, positive_root
from fnopt.optimizers._adam import AdamDirection, adam_means
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import Chain


def _average_length(b2: Any, t: Any) -> tuple[Any, Any]:
    r"""Length of the simple moving average that approximates :math:`\nu_t`, and its limit.

    .. math:: \rho_\infty = \frac{2}{1-\beta_2} - 1, \qquad
              \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1-\beta_2^t}

    In the first steps, this formula is a difference of two numbers near 2000, which cancels. With
    :math:`L = -\log \beta_2` and :math:`x = L t`, the length is :math:`(2/(1-\beta_2) - 1 - 2/L) +
    (2/L)(1 - x/(e^x-1))`, whose two terms are computed by Taylor series where they would cancel.
    """
    # With numpy, the terms without `t` are computed while tracing if b2 is concrete.
    xp: Any = np if isinstance(b2, np.floating) else jnp
    # The logarithm of b2 = 0 is infinite; with 1e-6, the length differs from 1 by 2e-6.
    b2 = xp.maximum(b2, np.asarray(1e-6, b2.dtype)[()])
    gap = 1 - b2
    L = -xp.log1p(-gap)
    x = L * t.astype(b2.dtype)
    # Taylor series of 1 - x / expm1(x), which cancels for small x.
    is_small = x < 0.25
    s = jnp.where(is_small, x, 0.0) ** 2
    series = x / 2 - s / 12 * (1 - s / 60 * (1 - s / 42 * (1 - s / 40)))
    large_x = jnp.where(is_small, 1.0, x)
    difference = jnp.where(is_small, series, 1 - large_x / jnp.expm1(large_x))
    # Taylor series of 2 / gap - 1 - 2 / L, which cancels for small gaps.
    gap_series = gap / 6 * (1 + gap / 2 * (1 + 19 * gap / 30 * (1 + 27 * gap / 38)))
    offset = xp.where(gap < 0.01, gap_series, 2 / gap - 1 - 2 / L)
    return offset + 2 / L * difference, 2 / gap - 1


class scale_by_radam(AdamDirection):
    r"""Multiply Adam's direction by a variance rectification; use momentum alone in early steps.

    .. math::
        \rho_t &= \rho_\infty - \frac{2 t \beta_2^t}{1-\beta_2^t}, \qquad
        \rho_\infty = \frac{2}{1-\beta_2} - 1, \qquad
        r_t = \sqrt{\frac{(\rho_t-4)(\rho_t-2)\,\rho_\infty}
                         {(\rho_\infty-4)(\rho_\infty-2)\,\rho_t}} \\
        u_t &= \begin{cases} r_t\, \hat\mu_t / (\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon)
               & \rho_t \ge \rho_{min} \\ \hat\mu_t & \text{otherwise} \end{cases}

    where :math:`\hat\mu_t` and :math:`\hat\nu_t` are bias-corrected as in Adam, and :math:`\rho_t`
    is the length of the moving average :math:`\nu_t`.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        threshold: :math:`\rho_{min}`, the smallest length :math:`\rho_t` for which the direction is
            divided by :math:`\sqrt{\hat\nu_t}`.
        nesterov: Whether to use Nesterov momentum.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_radam()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(4)
        Array([8., 8.], dtype=float32)

    Reference:
        Liu et al., 2020, arXiv:1908.03265.
    """

    eps_root: Scalar = hyper(default=0.0, ge=0)
    # 5 in the authors' code and in optax; Liu et al. (2020) use 4.
    threshold: Scalar = hyper(default=5.0, infinite=True)
    nesterov: bool = static(default=False)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Averaging weights, bias corrections, and the rectification, which is zero if unused."""
        length, limit = _average_length(h.b2, t)
        ratio = (length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)
        is_adaptive = length >= h.threshold
        # The derivative of the root of a negative ratio would be NaN, even if unselected.
        is_rectified = is_adaptive & (ratio > 0)
        rectification = jnp.sqrt(jnp.where(is_rectified, ratio, 1.0))
        # The bias correction of nu is part of the factor, so a leaf is scaled once.
        root_correction = jnp.sqrt(bias_correction(h.b2, t))
        mean, gradient = mean_weights(h.b1, t, self.nesterov)
        return {
            "gain1": 1 - h.b1,
            "gain2": 1 - h.b2,
            "mean": mean,
            "gradient": gradient,
            "is_adaptive": is_adaptive,
            "rectification": jnp.where(is_rectified, rectification, 0.0) * root_correction,
            "scaled_eps_root": h.eps_root * root_correction * root_correction,
            "scaled_eps": h.eps * root_correction,
        }

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        mu, nu = adam_means(h, g, mu, nu)
        direction = h.mean * mu + h.gradient * g if self.nesterov else h.mean * mu
        factor = h.rectification / (positive_root(nu + h.scaled_eps_root) + h.scaled_eps)
        return jnp.where(h.is_adaptive > 0, factor, jnp.ones_like(factor)) * direction, mu, nu


@recipe
def radam(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    threshold: Scalar = 5.0,
    *,
    nesterov: bool = False,
) -> Chain:
    r"""RAdam: Adam with a rectified variance of the step size, which needs no warm-up.

    .. math:: u_t = -\eta_t\, r_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    In early steps, :math:`u_t = -\eta_t\, \hat\mu_t`. `scale_by_radam` defines the rectification
    :math:`r_t`; the averages :math:`\hat\mu_t` and :math:`\hat\nu_t` are defined in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        threshold: The smallest length of the average :math:`\nu_t` for which the direction is
            divided by :math:`\sqrt{\hat\nu_t}`: 4 in the paper, 5 in the authors' code.
        nesterov: Whether to use Nesterov momentum.

    Returns:
        A chain of `scale_by_radam` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.radam(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 0.5)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.75, 0.75], dtype=float32)

    Reference:
        Liu et al., 2020, arXiv:1908.03265.
    """
    return descend(scale_by_radam(b1, b2, eps, eps_root, threshold, nesterov), learning_rate)
