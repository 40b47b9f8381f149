"""RMSProp: division by a running root mean square, uncentered or centered."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, RealSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import bias_correction, ema, positive_root, squared_modulus
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, chain, scale_by_learning_rate, trace


class ScaleByRmsState(NamedTuple):
    r"""State of `scale_by_rms`.

    Attributes:
        count: :math:`t`, the number of steps; None without bias correction.
        nu: :math:`\nu_t`, the moving average of the squared gradient.
    """

    count: jax.Array | None
    nu: RealSlot


class ScaleByStddevState(NamedTuple):
    r"""State of `scale_by_stddev`.

    Attributes:
        count: :math:`t`, the number of steps; None without bias correction.
        mu: :math:`\mu_t`, the moving average of the gradient.
        nu: :math:`\nu_t`, the moving average of the squared gradient.
    """

    count: jax.Array | None
    mu: Slot
    nu: RealSlot


class _RunningMeanSquare(Leafwise):
    """Base class of `scale_by_rms` and `scale_by_stddev`."""

    fill: ClassVar[Any] = {"nu": "initial_scale"}

    decay: Scalar = hyper(default=0.9, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    initial_scale: Scalar = hyper(default=0.0, ge=0)
    eps_in_sqrt: bool = static(default=True)
    bias_correction: bool = static(default=False)

    @property
    def reads_step(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the averages are bias-corrected."""
        return self.bias_correction

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Averaging weight of the new gradient, and the bias correction."""
        correction = 1 / bias_correction(h.decay, t) if self.bias_correction else 1.0
        return {"gain": 1 - h.decay, "correction": correction}

    def divisor(self, h: Any, variance: jax.Array) -> jax.Array:
        """Square root of a variance, with epsilon inside or outside the root."""
        # Inside the root as in TensorFlow and optax, or outside as in PyTorch.
        if self.eps_in_sqrt:
            return positive_root(variance + h.eps)
        return positive_root(variance) + h.eps


class scale_by_rms(_RunningMeanSquare):
    r"""Divide the gradient by its running root mean square.

    .. math:: \nu_t = \beta \nu_{t-1} + (1-\beta)\, |g_t|^2, \qquad
              u_t = \frac{g_t}{\sqrt{\nu_t + \epsilon}}

    Args:
        decay: :math:`\beta`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`. With 0, an element whose gradients were all zero has a zero update.
        initial_scale: :math:`\nu_0`, the initial average.
        eps_in_sqrt: Whether to add epsilon inside the square root; otherwise outside.
        bias_correction: Whether to divide :math:`\nu_t` by :math:`1 - \beta^t`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_rms(decay=0.75)
        >>> tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([2., 2.], dtype=float32)}

    Reference:
        Tieleman and Hinton, 2012, Neural networks for machine learning, lecture 6.5.
    """

    State = ScaleByRmsState

    def leaf(self, h: Any, g: Any, nu: Any) -> Any:
        nu = ema(nu, squared_modulus(g), h.decay, h.gain)
        # Without bias correction, the product with 1.0 would cost one operation per element.
        variance = h.correction * nu if self.bias_correction else nu
        return g / self.divisor(h, variance), nu


class scale_by_stddev(_RunningMeanSquare):
    r"""Divide the gradient by its running standard deviation.

    .. math::
        \mu_t &= \beta \mu_{t-1} + (1-\beta)\, g_t, \qquad
        \nu_t = \beta \nu_{t-1} + (1-\beta)\, |g_t|^2 \\
        u_t &= \frac{g_t}{\sqrt{\nu_t - |\mu_t|^2 + \epsilon}}

    Negative values of :math:`\nu_t - |\mu_t|^2`, which are rounding errors, are replaced by 0.

    Args:
        decay: :math:`\beta`, decay rate of both moving averages.
        eps: :math:`\epsilon`. It should be positive, because the variance of an element whose
            gradient doesn't change is zero.
        initial_scale: :math:`\nu_0`, the initial average of the squared gradient.
        eps_in_sqrt: Whether to add epsilon inside the square root; otherwise outside.
        bias_correction: Whether to divide both averages by :math:`1 - \beta^t`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_stddev(decay=0.5)
        >>> tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([2., 2.], dtype=float32)}

    Reference:
        Graves, 2013, arXiv:1308.0850.
    """

    State = ScaleByStddevState

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        mu = ema(mu, g, h.decay, h.gain)
        nu = ema(nu, squared_modulus(g), h.decay, h.gain)
        # For a nearly constant gradient, rounding can make the difference negative.
        variance = jnp.maximum(h.correction * nu - squared_modulus(h.correction * mu), 0)
        return g / self.divisor(h, variance), mu, nu


@recipe
def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: Scalar = 0.9,
    eps: Scalar = 1e-8,
    initial_scale: Scalar = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: Scalar | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> Chain:
    r"""RMSProp: steps along the gradient over its running root mean square.

    .. math:: \nu_t = \beta \nu_{t-1} + (1-\beta)\, |g_t|^2, \qquad
              u_t = -\eta_t\, \frac{g_t}{\sqrt{\nu_t + \epsilon}}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        decay: :math:`\beta`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`.
        initial_scale: :math:`\nu_0`, the initial average.
        eps_in_sqrt: Whether to add epsilon inside the square root; otherwise outside, as in
            PyTorch.
        centered: Whether to use the variance :math:`\nu_t - |\mu_t|^2` instead of :math:`\nu_t`,
            where :math:`\mu_t` is the moving average of the gradient.
        momentum: The decay rate of a sum of the updates; None omits momentum and its slot.
        nesterov: Whether to use Nesterov momentum.
        bias_correction: Whether to divide the averages by :math:`1 - \beta^t`.

    Returns:
        A chain of `scale_by_rms` (or `scale_by_stddev`), `scale_by_learning_rate` and, with
        momentum, `trace`. Momentum sums scaled steps, as in TensorFlow and optax. The slots are
        `nu`, `mu` (if centered) and `trace` (with momentum).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.rmsprop(0.5, decay=0.75)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0., 0.], dtype=float32)}

    Reference:
        Tieleman and Hinton, 2012, lecture 6.5; Graves, 2013, arXiv:1308.0850 (centered).
    """
    direction = scale_by_stddev if centered else scale_by_rms
    parts = [
        direction(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        scale_by_learning_rate(learning_rate),
    ]
    # Momentum sums scaled steps, as in optax; PyTorch scales the sum of unscaled steps.
    return chain(*parts) if momentum is None else chain(*parts, trace(momentum, nesterov))
