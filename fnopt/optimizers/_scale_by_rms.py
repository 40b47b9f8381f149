"""Scaling by a running root mean square, about zero or about the mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    Slot,
    Transformation,
    hyper,
    increment,
    map_leaves,
    slot_zeros,
    static,
    zero_count,
)
from fnopt.transforms import bias_correction, ema, nonzero, root, squared


class ScaleByRmsState(NamedTuple):
    """Step count, and the average of the squared gradient."""

    count: jax.Array
    nu: Slot


class ScaleByStddevState(NamedTuple):
    """Step count, and the averages of the gradient and of its square."""

    count: jax.Array
    mu: Slot
    nu: Slot


def _seen(on: bool, decay: jax.Array, count: jax.Array) -> jax.Array:
    return bias_correction(decay, count) if on else jnp.ones_like(decay)


def _divisor(variance: jax.Array, eps: jax.Array, eps_in_sqrt: bool) -> jax.Array:
    return nonzero(root(variance + eps) if eps_in_sqrt else root(variance) + eps)


class scale_by_rms(Transformation):
    r"""Divides the gradient by its running root mean square.

    .. math:: \nu_t = \beta \nu_{t-1} + (1-\beta)\, |g_t|^2, \qquad
              u_t = \frac{g_t}{\sqrt{\nu_t + \epsilon}}

    Args:
        decay: :math:`\beta`.
        eps: :math:`\epsilon`. With 0, an element that never saw a gradient gets a zero update.
        initial_scale: :math:`\nu_0`.
        eps_in_sqrt: Whether epsilon stands under the root; else it is added to the root.
        bias_correction: Whether to divide :math:`\nu_t` by :math:`1 - \beta^t`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_rms(decay=0.75)
        >>> tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([2., 2.], dtype=float32)}

    Reference:
        Tieleman and Hinton, 2012, Neural networks for machine learning, lecture 6.5.
    """

    decay: Scalar = hyper(default=0.9, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    initial_scale: Scalar = hyper(default=0.0, ge=0)
    eps_in_sqrt: bool = static(default=True)
    bias_correction: bool = static(default=False)

    def init(self, params: Any) -> ScaleByRmsState:
        """An average that starts at `initial_scale`."""
        nu = slot_zeros(params, fill=self.initial_scale, real=True)
        return ScaleByRmsState(zero_count(), nu)

    def update(
        self, updates: Any, state: ScaleByRmsState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByRmsState]:
        """One step of the average, and the quotient."""
        count = increment(state.count)

        def leaf(h: Any, g: Any, nu: Any) -> Any:
            nu = ema(nu, squared(g), h.decay)
            variance = nu / _seen(self.bias_correction, h.decay, count)
            return g / _divisor(variance, h.eps, self.eps_in_sqrt), nu

        updates, nu = map_leaves(leaf, updates, hyper=self, outputs=2, nu=state.nu)
        return updates, ScaleByRmsState(count, nu)


class scale_by_stddev(Transformation):
    r"""Divides the gradient by its running standard deviation (centred root mean square).

    .. math::
        \mu_t &= \beta \mu_{t-1} + (1-\beta)\, g_t, \qquad
        \nu_t = \beta \nu_{t-1} + (1-\beta)\, |g_t|^2 \\
        u_t &= \frac{g_t}{\sqrt{\nu_t - |\mu_t|^2 + \epsilon}}

    The variance is kept at zero or above: rounding makes the difference negative where the
    gradient is almost constant.

    Args:
        decay: :math:`\beta`.
        eps: :math:`\epsilon`. With 0, an element whose gradient never changes is passed on as is.
        initial_scale: :math:`\nu_0`.
        eps_in_sqrt: Whether epsilon stands under the root; else it is added to the root.
        bias_correction: Whether to divide both averages by :math:`1 - \beta^t`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_stddev(decay=0.5)
        >>> tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([2., 2.], dtype=float32)}

    Reference:
        Graves, 2013, arXiv:1308.0850.
    """

    decay: Scalar = hyper(default=0.9, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    initial_scale: Scalar = hyper(default=0.0, ge=0)
    eps_in_sqrt: bool = static(default=True)
    bias_correction: bool = static(default=False)

    def init(self, params: Any) -> ScaleByStddevState:
        """A zero mean, and a mean square that starts at `initial_scale`."""
        nu = slot_zeros(params, fill=self.initial_scale, real=True)
        return ScaleByStddevState(zero_count(), slot_zeros(params), nu)

    def update(
        self, updates: Any, state: ScaleByStddevState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByStddevState]:
        """One step of both averages, and the quotient."""
        count = increment(state.count)

        def leaf(h: Any, g: Any, mu: Any, nu: Any) -> Any:
            mu = ema(mu, g, h.decay)
            nu = ema(nu, squared(g), h.decay)
            seen = _seen(self.bias_correction, h.decay, count)
            variance = jnp.maximum(nu / seen - squared(mu / seen), 0)
            return g / _divisor(variance, h.eps, self.eps_in_sqrt), mu, nu

        slots = {"mu": state.mu, "nu": state.nu}
        updates, mu, nu = map_leaves(leaf, updates, hyper=self, outputs=3, **slots)
        return updates, ScaleByStddevState(count, mu, nu)
