"""RAdam: Adam with a rectified variance."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from fnopt.core import Scalar, ScalarOrSchedule, hyper, static
from fnopt.numerics import bias_correction, mean_weights, positive_root
from fnopt.optimizers._adam import AdamDirection, adam_means
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import Chain


def _length(b2: Any, t: Any) -> tuple[Any, Any]:
    r"""Length of the simple moving average that approximates :math:`\nu_t`, and its limit.

    .. math:: \rho_\infty = \frac{2}{1-\beta_2} - 1, \qquad
              \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1-\beta_2^t}

    In the first steps, this formula subtracts two numbers near 2000. With :math:`L = -\log \beta_2`
    and :math:`x = L t`, the length is :math:`(2/(1-\beta_2) - 1 - 2/L) + (2/L)(1 - x/(e^x-1))`. The
    first term is small, and the second term is computed by a series.
    """
    of_b2: Any = np if isinstance(b2, np.floating) else jnp  # a concrete b2 gives concrete results
    # The logarithm of b2 = 0 is infinite; with 1e-6 the length differs from 1 by 2e-6.
    b2 = of_b2.maximum(b2, np.asarray(1e-6, b2.dtype)[()])
    gap = 1 - b2
    rate = -of_b2.log1p(-gap)
    x = rate * t.astype(b2.dtype)
    # For small x, x / expm1(x) is nearly 1 and the difference would cancel, so a series replaces
    # it.
    small = x < 0.25
    s = jnp.where(small, x, 0.0) ** 2
    series = x / 2 - s / 12 * (1 - s / 60 * (1 - s / 42 * (1 - s / 40)))
    large = jnp.where(small, 1.0, x)
    rest = jnp.where(small, series, 1 - large / jnp.expm1(large))
    near = gap < 0.01
    # A series also replaces 2/d - 1 - 2/L, where d = 1 - b2 is small.
    small_gap = gap / 6 * (1 + gap / 2 * (1 + 19 * gap / 30 * (1 + 27 * gap / 38)))
    offset = of_b2.where(near, small_gap, 2 / gap - 1 - 2 / rate)
    return offset + 2 / rate * rest, 2 / gap - 1


class scale_by_radam(AdamDirection):
    r"""Adam's direction times a variance rectification; plain momentum in early steps.

    .. math::
        \rho_t &= \rho_\infty - \frac{2 t \beta_2^t}{1-\beta_2^t}, \qquad
        \rho_\infty = \frac{2}{1-\beta_2} - 1, \qquad
        r_t = \sqrt{\frac{(\rho_t-4)(\rho_t-2)\,\rho_\infty}
                         {(\rho_\infty-4)(\rho_\infty-2)\,\rho_t}} \\
        u_t &= \begin{cases} r_t\, \hat\mu_t / (\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon)
               & \rho_t \ge \rho_{min} \\ \hat\mu_t & \text{otherwise} \end{cases}

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        threshold: :math:`\rho_{min}`, the smallest length of the average at which the variance is
            used.
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
    # Liu et al. (2019) rectify above a length of 4; 5 is in their code and in optax.
    threshold: Scalar = hyper(default=5.0, infinite=True)
    nesterov: bool = static(default=False)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Bias corrections, and the rectification term, which is zero while it isn't used."""
        length, limit = _length(h.b2, t)
        ratio = (length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)
        adapts = length >= h.threshold
        usable = adapts & (ratio > 0)  # the slope of an unused root would be NaN
        # The correction of the mean square is part of the factor, so a leaf is scaled once.
        root_correction = jnp.sqrt(bias_correction(h.b2, t))
        mean, gradient = mean_weights(h.b1, t, self.nesterov)
        return {
            "gain1": 1 - h.b1,
            "gain2": 1 - h.b2,
            "mean": mean,
            "gradient": gradient,
            "adapts": adapts,
            "rectified": jnp.where(usable, jnp.sqrt(jnp.where(usable, ratio, 1.0)), 0.0)
            * root_correction,
            "scaled_eps_root": h.eps_root * root_correction * root_correction,
            "scaled_eps": h.eps * root_correction,
        }

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        mu, nu = adam_means(h, g, mu, nu)
        direction = h.mean * mu + h.gradient * g if self.nesterov else h.mean * mu
        factor = h.rectified / (positive_root(nu + h.scaled_eps_root) + h.scaled_eps)
        return jnp.where(h.adapts > 0, factor, jnp.ones_like(factor)) * direction, mu, nu


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
    r"""RAdam: Adam with a rectified variance, which needs no warm-up.

    .. math:: u_t = -\eta_t\, r_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    Before the variance can be estimated, :math:`u_t = -\eta_t\, \hat\mu_t`; see `scale_by_radam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        threshold: The smallest length of the average at which the variance is used; 4 in the paper,
            5 in the authors' code.
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
