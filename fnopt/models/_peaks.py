"""Peak models with lmfit's params: `amplitude` is the area, and `sigma` the width."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.models._model import Component

_TERMS = 32  # for 12 digits, Weideman (1994), table 1


@functools.cache
def _coefficients(terms: int) -> tuple[float, np.ndarray]:
    """Scale `L` of the conformal map, and the coefficients, with the highest power first."""
    scale = np.sqrt(terms / np.sqrt(2))  # Weideman (1994), eq. 38
    points = 4 * terms
    angle = np.pi * np.arange(-points // 2 + 1, points // 2) / (points // 2)
    t = scale * np.tan(angle / 2)
    f = np.concatenate([[0.0], np.exp(-np.square(t)) * (scale**2 + np.square(t))])
    series = np.real(np.fft.fft(np.fft.fftshift(f))) / points
    return float(scale), series[1 : terms + 1][::-1]


def faddeeva(x: jax.Array, y: jax.Array) -> jax.Array:
    r"""Evaluate the real part of the Faddeeva function, :math:`e^{-z^2} \operatorname{erfc}(-i z)`.

    .. math:: w(z) \approx \frac{2}{(L - i z)^2} \sum_{k=0}^{31} a_k Z^k
        + \frac{1}{\sqrt \pi (L - i z)}, \qquad Z = \frac{L + i z}{L - i z}

    with :math:`z = x + i y`. The absolute error is below 1e-12 in float64.

    Args:
        x: The real part of `z`.
        y: The imaginary part of `z`, at least 0.

    Returns:
        An array of the broadcast shape.

    Example:
        >>> from fnopt.models import faddeeva
        >>> print(f"{faddeeva(0.0, 1.0):.6f}")  # exp(1) erfc(1)
        0.427584

    Reference:
        Weideman (1994), Computation of the complex error function, SIAM J. Numer. Anal. 31.
    """
    scale, coefficients = _coefficients(_TERMS)
    x, y = jnp.broadcast_arrays(jnp.asarray(x), jnp.asarray(y))
    denominator = jax.lax.complex(scale + y, -x)  # L - i z
    ratio = jax.lax.complex(scale - y, x) / denominator
    total = jnp.zeros_like(ratio)
    for a in coefficients.tolist():
        total = total * ratio + a
    return jnp.real((2 * total / denominator + 1 / np.sqrt(np.pi).item()) / denominator)


def _nonzero_width(sigma: Any) -> jax.Array:
    """Replace a width of zero, which the bounds allow, by a small positive width."""
    sigma = jnp.asarray(sigma)
    # The square root of the smallest normal number, because the square of the width occurs in
    # derivatives.
    return jnp.maximum(sigma, jnp.finfo(sigma.dtype).tiny ** 0.5)


def _gaussian(x: jax.Array, amplitude: Any, center: Any, sigma: Any) -> jax.Array:
    sigma = _nonzero_width(sigma)
    z = (x - center) / sigma
    return amplitude / (sigma * math.sqrt(2 * math.pi)) * jnp.exp(-0.5 * jnp.square(z))


def _lorentzian(x: jax.Array, amplitude: Any, center: Any, sigma: Any) -> jax.Array:
    sigma = _nonzero_width(sigma)
    return amplitude / (math.pi * sigma * (1 + jnp.square((x - center) / sigma)))


def _voigt(x: jax.Array, amplitude: Any, center: Any, sigma: Any, gamma: Any) -> jax.Array:
    sigma = _nonzero_width(sigma)
    w = faddeeva((x - center) / (sigma * math.sqrt(2)), gamma / (sigma * math.sqrt(2)))
    return amplitude * w / (sigma * math.sqrt(2 * math.pi))


def highest(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Estimate height, position and full width at half maximum of the highest peak.

    If the minimum is farther from the median than the maximum, the peak is the deepest dip. The
    full width is twice the half width on the narrower side, because another peak may overlap the
    wider side.
    """
    is_upward = jnp.max(y) - jnp.median(y) >= jnp.median(y) - jnp.min(y)
    base = jnp.where(is_upward, jnp.min(y), jnp.max(y))
    size = jnp.abs(y - base)
    center, height = x[jnp.argmax(size)], jnp.max(size)
    distance = jnp.abs(x - center)
    half_widths = [
        jnp.min(jnp.where((size < height / 2) & side, distance, jnp.inf))
        for side in (x < center, x > center)
    ]
    half_width = jnp.minimum(*half_widths)
    # If the data don't fall below half the maximum, the peak is as wide as the data.
    half_width = jnp.where(jnp.isfinite(half_width), half_width, jnp.max(distance))
    return jnp.where(is_upward, height, -height), center, 2 * half_width


class _Peak(Component):
    positive = ("sigma",)

    @property
    def is_peak(self) -> bool:
        """True, so that a sum guesses peaks after all other terms."""
        return True


class Gaussian(_Peak):
    r"""Gaussian peak, :math:`\frac{A}{\sigma \sqrt{2 \pi}} e^{-(x - \mu)^2 / (2 \sigma^2)}`.

    The params are `amplitude` (the area :math:`A`), `center` (:math:`\mu`) and `sigma`.

    Args:
        prefix: Prefix of the names of the params.

    Example:
        >>> from fnopt.models import Gaussian
        >>> peak = Gaussian("a_")
        >>> peak.names
        ('a_amplitude', 'a_center', 'a_sigma')
        >>> print(f"{peak(0.0, 1.0, 0.0, 1.0):.4f}")
        0.3989
    """

    curve = staticmethod(_gaussian)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the params from the highest peak of the data."""
        height, center, width = highest(x, y)
        sigma = width / math.sqrt(8 * math.log(2))
        return height * sigma * math.sqrt(2 * math.pi), center, sigma


class Lorentzian(_Peak):
    r"""Lorentzian peak, :math:`\frac{A}{\pi} \frac{\sigma}{(x - \mu)^2 + \sigma^2}`.

    The params are `amplitude` (the area :math:`A`), `center` (:math:`\mu`) and `sigma` (the half
    width at half maximum).

    Args:
        prefix: Prefix of the names of the params.

    Example:
        >>> from fnopt.models import Lorentzian
        >>> print(f"{Lorentzian()(1.0, 1.0, 0.0, 1.0):.4f}")  # 1 / (2 pi)
        0.1592
    """

    curve = staticmethod(_lorentzian)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the params from the highest peak of the data."""
        height, center, width = highest(x, y)
        return height * width * math.pi / 2, center, width / 2


class Voigt(_Peak):
    r"""Voigt profile, the convolution of a Gaussian with width `sigma` and a Lorentzian.

    .. math:: \frac{A}{\sigma \sqrt{2 \pi}} \Re w\!\left(
        \frac{x - \mu + i \gamma}{\sigma \sqrt 2} \right)

    with the Faddeeva function :math:`w`, see :func:`fnopt.models.faddeeva`. The params are
    `amplitude` (the area :math:`A`), `center` (:math:`\mu`), `sigma` and `gamma` (the half width of
    the Lorentzian). lmfit ties `gamma` to `sigma`. In fnopt, pass
    `constraints={"gamma": fnopt.tied(lambda p: p["sigma"])}` to tie them.

    Args:
        prefix: Prefix of the names of the params.

    Example:
        >>> from fnopt.models import Voigt
        >>> print(f"{Voigt()(0.0, 1.0, 0.0, 1.0, 1.0):.4f}")
        0.2087
    """

    positive = ("sigma", "gamma")
    curve = staticmethod(_voigt)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the params from the highest peak of the data, with `gamma` equal to `sigma`."""
        height, center, width = highest(x, y)
        # The full width for gamma = sigma = 1, Olivero and Longbothum (1977).
        sigma = width / 3.6013
        return height * sigma / _voigt(jnp.zeros(()), 1.0, 0.0, 1.0, 1.0), center, sigma, sigma


class PseudoVoigt(_Peak):
    r"""Weighted sum of a Gaussian and a Lorentzian of the same width.

    .. math:: (1 - \eta)\, G(x; A, \mu, \sigma / \sqrt{2 \ln 2}) + \eta\, L(x; A, \mu, \sigma)

    The params are `amplitude` (the area :math:`A`), `center` (:math:`\mu`), `sigma` (the half width
    at half maximum) and `fraction` (:math:`\eta`, between 0 and 1).

    Args:
        prefix: Prefix of the names of the params.

    Example:
        >>> from fnopt.models import PseudoVoigt
        >>> print(f"{PseudoVoigt()(1.0, 1.0, 0.0, 1.0, 1.0):.4f}")
        0.1592
    """

    @staticmethod
    def curve(x: jax.Array, amplitude: Any, center: Any, sigma: Any, fraction: Any) -> jax.Array:
        """Evaluate the weighted sum of both peaks."""
        gaussian = _gaussian(x, amplitude, center, sigma / math.sqrt(2 * math.log(2)))
        return (1 - fraction) * gaussian + fraction * _lorentzian(x, amplitude, center, sigma)

    @property
    def bounds(self) -> dict[str, tuple[float | None, float | None]]:
        """Lower bound 0 for `sigma`; bounds 0 and 1 for `fraction`."""
        return super().bounds | {f"{self.prefix}fraction": (0.0, 1.0)}

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the params from the highest peak of the data, with a `fraction` of 0.5."""
        height, center, width = highest(x, y)
        unit_height = self.curve(jnp.zeros(()), 1.0, 0.0, 1.0, 0.5)
        return height * width / 2 / unit_height, center, width / 2, 0.5
