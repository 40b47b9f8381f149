"""Models of decays, steps, saturation, oscillations, and polynomials."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import erf

from fnopt.core import static
from fnopt.models._model import Component

_LEAST = 1e-15  # smallest |y| in a logarithm, as in lmfit's guesses


def _line(x: jax.Array, y: jax.Array, degree: int = 1, weights: Any = None) -> jax.Array:
    """Coefficients of the least-squares polynomial, constant first."""
    found: Any = jnp.polyfit(x, y, degree, w=weights)
    return found[::-1]


def _log_line(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Factor and rate of an exponential, from a least-squares line through the logarithm.

    Squared residuals have the weight :math:`|y|`, as for the logarithm of counts.
    """
    size = jnp.abs(y)
    height, rate = _line(x, jnp.log(size + _LEAST), weights=jnp.sqrt(size))
    return jnp.sign(y[jnp.argmax(size)]) * jnp.exp(height), rate


def _nearest(x: jax.Array, y: jax.Array, value: jax.Array) -> jax.Array:
    """Return the x at which the data are closest to a value."""
    return x[jnp.argmin(jnp.abs(y - value))]


class Constant(Component):
    """A constant `c`.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import Constant
        >>> Constant("base_").names
        ('base_c',)
    """

    @staticmethod
    def curve(x: jax.Array, c: Any) -> jax.Array:
        """The constant for every x."""
        return jnp.broadcast_to(c, x.shape)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Median of the data."""
        return (jnp.median(y),)


class Linear(Component):
    """A straight line, `slope * x + intercept`.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import Linear
        >>> print(Linear()(2.0, slope=3.0, intercept=1.0))
        7.0
    """

    @staticmethod
    def curve(x: jax.Array, slope: Any, intercept: Any) -> jax.Array:
        """Values of the line."""
        return slope * x + intercept

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Least-squares line."""
        intercept, slope = _line(x, y)
        return slope, intercept


class Polynomial(Component):
    r"""A polynomial, :math:`\sum_{k=0}^{d} c_k x^k`, with params `c0`, `c1` and so on.

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
        """Values of the polynomial, by Horner's rule."""
        total = jnp.zeros_like(x)
        for c in reversed(coefficients):
            total = total * x + c
        return total

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Least-squares polynomial."""
        return tuple(_line(x, y, self.degree))


class Exponential(Component):
    r"""An exponential decay, :math:`A e^{-x / \tau}`, with params `amplitude` and `decay`.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import Exponential
        >>> print(f"{Exponential()(2.0, amplitude=3.0, decay=2.0):.4f}")
        1.1036
    """

    @staticmethod
    def curve(x: jax.Array, amplitude: Any, decay: Any) -> jax.Array:
        """Values of the decay."""
        return amplitude * jnp.exp(-x / decay)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Least-squares line through the logarithm."""
        amplitude, rate = _log_line(x, y)
        return amplitude, -1 / rate


class PowerLaw(Component):
    r"""A power law, :math:`A x^k`, with params `amplitude` and `exponent`.

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
        """Values of the power law; the derivative in the exponent contains `log(x)`."""
        power = jnp.where(x > 0, x, 1.0) ** exponent
        return jnp.where(x > 0, amplitude * power, 0.0)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Least-squares line through the logarithms."""
        return _log_line(jnp.log(jnp.maximum(x, _LEAST)), y)


class _Rise(Component):
    positive = ("sigma",)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess of a step over the range of the data, a seventh of the x range wide (lmfit)."""
        low, high = jnp.min(y), jnp.max(y)
        return high - low, _nearest(x, y, (low + high) / 2), (jnp.max(x) - jnp.min(x)) / 7


class Step(_Rise):
    r"""A smooth step, :math:`\frac{A}{2} (1 + \operatorname{erf}((x - \mu) / \sigma))`.

    Its params are `amplitude`, `center` and `sigma`; :class:`Logistic` is another smooth step.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import Step
        >>> print(Step()(0.0, amplitude=3.0, center=0.0, sigma=1.0))
        1.5
    """

    @staticmethod
    def curve(x: jax.Array, amplitude: Any, center: Any, sigma: Any) -> jax.Array:
        """Values of the step."""
        return amplitude / 2 * (1 + erf((x - center) / sigma))


class Logistic(_Rise):
    r"""A logistic step, :math:`A / (1 + e^{-(x - \mu) / \sigma})`.

    Its params are `amplitude`, `center` and `sigma`.

    Args:
        prefix: Prefix of the names of its params.

    Example:
        >>> from fnopt.models import Logistic
        >>> print(Logistic()(0.0, amplitude=3.0, center=0.0, sigma=1.0))
        1.5
    """

    @staticmethod
    def curve(x: jax.Array, amplitude: Any, center: Any, sigma: Any) -> jax.Array:
        """Values of the step."""
        return amplitude * jax.nn.sigmoid((x - center) / sigma)


class DampedOscillation(Component):
    r"""A damped oscillation, :math:`A e^{-x / \tau} \sin(\omega x + \phi)`.

    Its params are `amplitude`, `decay`, `frequency` (in radians per unit of x) and `shift`.

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
        """Values of the oscillation."""
        return amplitude * jnp.exp(-x / decay) * jnp.sin(frequency * x + shift)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess by the largest entry of the periodogram."""
        span = jnp.max(x) - jnp.min(x)
        # Frequencies half a cycle apart, up to the Nyquist frequency of the mean sampling (Lomb,
        # 1976).
        frequencies = jnp.pi / span * jnp.arange(2, x.size + 1, dtype=x.dtype)
        phases = frequencies[:, None] * x
        wave = jax.lax.complex(
            jnp.sum(y * jnp.cos(phases), axis=1), -jnp.sum(y * jnp.sin(phases), axis=1)
        )
        best = jnp.argmax(jnp.abs(wave))
        # Over whole cycles the sum of sin(w x + shift) exp(-i w x) is -i exp(i shift) m / 2.
        return jnp.max(jnp.abs(y)), span / 2, frequencies[best], jnp.angle(wave[best]) + math.pi / 2


class MichaelisMenten(Component):
    r"""Michaelis-Menten saturation, :math:`V x / (K + x)`, with params `vmax` and `km`.

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
        """Values of the saturation curve."""
        return vmax * x / (km + x)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Largest value, and the position of half of it."""
        top = y[jnp.argmax(jnp.abs(y))]
        return top, _nearest(x, y, top / 2)


class Hill(Component):
    r"""Hill's law, :math:`V x^n / (K^n + x^n)` for positive `x`, with params `vmax`, `k` and `n`.

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
        """Values, by a logistic function of the logarithm, which avoids overflow of powers."""
        ratio = n * (jnp.log(jnp.where(x > 0, x, 1.0)) - jnp.log(k))
        return jnp.where(x > 0, vmax * jax.nn.sigmoid(ratio), 0.0)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Largest value, and the position of half of it."""
        top = y[jnp.argmax(jnp.abs(y))]
        return top, _nearest(x, y, top / 2), 1.0
