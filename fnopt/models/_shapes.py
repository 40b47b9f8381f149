"""Models of polynomials, decays, power laws, steps, oscillations and saturation."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import erf

from fnopt.core import static
from fnopt.models._model import Component

_TINY = 1e-15  # added to |y| in a logarithm, as in lmfit's guesses


def _polynomial(x: jax.Array, y: jax.Array, degree: int = 1, weights: Any = None) -> jax.Array:
    """Coefficients of the least-squares polynomial, with the constant first."""
    coefficients: Any = jnp.polyfit(x, y, degree, w=weights)
    return coefficients[::-1]


def _log_line(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Estimate factor and rate of an exponential, from a least-squares line for `log(|y|)`.

    The squared residuals have the weights :math:`|y|`, which are right for the logarithm of counts.
    """
    size = jnp.abs(y)
    log_factor, rate = _polynomial(x, jnp.log(size + _TINY), weights=jnp.sqrt(size))
    return jnp.sign(y[jnp.argmax(size)]) * jnp.exp(log_factor), rate


def _nearest(x: jax.Array, y: jax.Array, value: jax.Array) -> jax.Array:
    """Position `x` of the datum closest to a value."""
    return x[jnp.argmin(jnp.abs(y - value))]


class Constant(Component):
    """Constant, with the param `c`.

    Args:
        prefix: Prefix of the name of the param.

    Example:
        >>> from fnopt.models import Constant
        >>> Constant("base_").names
        ('base_c',)
    """

    @staticmethod
    def curve(x: jax.Array, c: Any) -> jax.Array:
        """Evaluate the constant for every x."""
        return jnp.broadcast_to(c, x.shape)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the median of the data."""
        return (jnp.median(y),)


class Linear(Component):
    """Straight line, `slope * x + intercept`.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import Linear
        >>> print(Linear()(2.0, slope=3.0, intercept=1.0))
        7.0
    """

    @staticmethod
    def curve(x: jax.Array, slope: Any, intercept: Any) -> jax.Array:
        """Evaluate the line."""
        return slope * x + intercept

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the least-squares line."""
        intercept, slope = _polynomial(x, y)
        return slope, intercept


class Polynomial(Component):
    r"""Polynomial, :math:`\sum_{k=0}^{d} c_k x^k`, with the params `c0`, `c1` and so on.

    Args:
        prefix: Prefix of the names of its params.
        degree: The highest power.

    Example:
        >>> from fnopt.models import Polynomial
        >>> Polynomial("b_", degree=2).names
        ('b_c0', 'b_c1', 'b_c2')
    """

    degree: int = static(default=1, least=0)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients."""
        return tuple(f"{self.prefix}c{k}" for k in range(self.degree + 1))

    @staticmethod
    def curve(x: jax.Array, *coefficients: Any) -> jax.Array:
        """Evaluate the polynomial by Horner's rule."""
        total = jnp.zeros_like(x)
        for c in reversed(coefficients):
            total = total * x + c
        return total

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the least-squares polynomial."""
        return tuple(_polynomial(x, y, self.degree))


class Exponential(Component):
    r"""Exponential decay, :math:`A e^{-x / \tau}`, with the params `amplitude` and `decay`.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import Exponential
        >>> print(f"{Exponential()(2.0, amplitude=3.0, decay=2.0):.4f}")
        1.1036
    """

    @staticmethod
    def curve(x: jax.Array, amplitude: Any, decay: Any) -> jax.Array:
        """Evaluate the exponential decay."""
        return amplitude * jnp.exp(-x / decay)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the params from a least-squares line for the logarithm of the data."""
        amplitude, rate = _log_line(x, y)
        return amplitude, -1 / rate


class PowerLaw(Component):
    r"""Power law, :math:`A x^k` for positive `x`, with the params `amplitude` and `exponent`.

    The value is 0 for nonpositive `x`.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import PowerLaw
        >>> print(PowerLaw()(2.0, amplitude=3.0, exponent=2.0))
        12.0
    """

    @staticmethod
    def curve(x: jax.Array, amplitude: Any, exponent: Any) -> jax.Array:
        """Evaluate the power law."""
        # The derivative with respect to the exponent contains log(x), so x = 0 is replaced first.
        power = jnp.where(x > 0, x, 1.0) ** exponent
        return jnp.where(x > 0, amplitude * power, 0.0)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the params from a least-squares line for the logarithms of `x` and `y`."""
        return _log_line(jnp.log(jnp.maximum(x, _TINY)), y)


class _Rise(Component):
    positive = ("sigma",)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess a step over the range of the data, 1/7 of the x range wide, as in lmfit."""
        low, high = jnp.min(y), jnp.max(y)
        return high - low, _nearest(x, y, (low + high) / 2), (jnp.max(x) - jnp.min(x)) / 7


class Step(_Rise):
    r"""Smooth step, :math:`\frac{A}{2} (1 + \operatorname{erf}((x - \mu) / \sigma))`.

    The params are `amplitude`, `center` and `sigma`. :class:`Logistic` has longer tails.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import Step
        >>> print(Step()(0.0, amplitude=3.0, center=0.0, sigma=1.0))
        1.5
    """

    @staticmethod
    def curve(x: jax.Array, amplitude: Any, center: Any, sigma: Any) -> jax.Array:
        """Evaluate the step."""
        return amplitude / 2 * (1 + erf((x - center) / sigma))


class Logistic(_Rise):
    r"""Logistic step, :math:`A / (1 + e^{-(x - \mu) / \sigma})`.

    The params are `amplitude`, `center` and `sigma`.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import Logistic
        >>> print(Logistic()(0.0, amplitude=3.0, center=0.0, sigma=1.0))
        1.5
    """

    @staticmethod
    def curve(x: jax.Array, amplitude: Any, center: Any, sigma: Any) -> jax.Array:
        """Evaluate the step."""
        return amplitude * jax.nn.sigmoid((x - center) / sigma)


class DampedOscillation(Component):
    r"""Damped oscillation, :math:`A e^{-x / \tau} \sin(\omega x + \phi)`.

    The params are `amplitude`, `decay` (:math:`\tau`), `frequency` (:math:`\omega`, in radians per
    unit of x) and `shift` (:math:`\phi`).

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import DampedOscillation
        >>> print(f"{DampedOscillation()(0.0, 2.0, 1.0, 5.0, 0.5):.4f}")  # 2 sin(0.5)
        0.9589
    """

    positive = ("decay",)

    @staticmethod
    def curve(x: jax.Array, amplitude: Any, decay: Any, frequency: Any, shift: Any) -> jax.Array:
        """Evaluate the oscillation."""
        return amplitude * jnp.exp(-x / decay) * jnp.sin(frequency * x + shift)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the frequency and the shift from the maximum of the periodogram."""
        span = jnp.max(x) - jnp.min(x)
        # The frequencies are half a cycle per span apart, up to the Nyquist frequency of the mean
        # spacing. The positions may be uneven (Lomb 1976).
        frequencies = jnp.pi / span * jnp.arange(2, x.size + 1, dtype=x.dtype)
        phases = frequencies[:, None] * x
        wave = jax.lax.complex(
            jnp.sum(y * jnp.cos(phases), axis=1), -jnp.sum(y * jnp.sin(phases), axis=1)
        )
        best = jnp.argmax(jnp.abs(wave))
        # Over complete cycles, the sum of sin(w x + shift) exp(-i w x) is -i exp(i shift) m / 2.
        return jnp.max(jnp.abs(y)), span / 2, frequencies[best], jnp.angle(wave[best]) + math.pi / 2


class MichaelisMenten(Component):
    r"""Michaelis-Menten saturation, :math:`V x / (K + x)`, with the params `vmax` and `km`.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import MichaelisMenten
        >>> print(MichaelisMenten()(2.0, vmax=3.0, km=2.0))
        1.5
    """

    positive = ("km",)

    @staticmethod
    def curve(x: jax.Array, vmax: Any, km: Any) -> jax.Array:
        """Evaluate the saturation curve."""
        return vmax * x / (km + x)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess `vmax` as the largest datum, and `km` as the position of half the largest datum."""
        vmax = y[jnp.argmax(jnp.abs(y))]
        return vmax, _nearest(x, y, vmax / 2)


class Hill(Component):
    r"""Hill equation, :math:`V x^n / (K^n + x^n)` for positive `x`.

    The params are `vmax`, `k` and `n`. The value is 0 for nonpositive `x`.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import Hill
        >>> print(f"{Hill()(2.0, vmax=3.0, k=2.0, n=4.0):.4f}")
        1.5000
    """

    positive = ("k", "n")

    @staticmethod
    def curve(x: jax.Array, vmax: Any, k: Any, n: Any) -> jax.Array:
        """Evaluate the Hill equation."""
        # The logistic function of n log(x / k), because the powers could overflow.
        log_ratio = n * (jnp.log(jnp.where(x > 0, x, 1.0)) - jnp.log(k))
        return jnp.where(x > 0, vmax * jax.nn.sigmoid(log_ratio), 0.0)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess `vmax` as the largest datum, `k` as the position of half of it, and `n` as 1."""
        vmax = y[jnp.argmax(jnp.abs(y))]
        return vmax, _nearest(x, y, vmax / 2), 1.0
