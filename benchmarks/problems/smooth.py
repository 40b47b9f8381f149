"""Smooth functions to minimize, with and without bounds: initial guesses, bounds and minima.

Sums of squares come from Moré, Garbow and Hillstrom; the others are textbook functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from benchmarks.problems import mgh_fixed as fixed
from benchmarks.problems import mgh_variable as variable

SIZE = 10  # common length of all padded parameter vectors, so all functions share one program


class Smooth(NamedTuple):
    """A function of the first `n` entries of a vector, an initial guess, and bounds or None."""

    name: str
    f: Callable[[Any], Any]
    start: tuple[float, ...]
    bounds: tuple[Any, Any] | None = None

    @property
    def n(self) -> int:
        """Number of params."""
        return len(self.start)


def _squares(residuals: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(residuals(x) ** 2)


def _like(x: Any, values: Any) -> Any:
    return jnp.asarray(values, x.dtype)


def chained_rosenbrock(x: Any) -> Any:
    """Rosenbrock's function in n dimensions."""
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def dixon_price(x: Any) -> Any:
    """The function of Dixon and Price."""
    i = _like(x, np.arange(2, x.size + 1))
    return (x[0] - 1) ** 2 + jnp.sum(i * (2 * x[1:] ** 2 - x[:-1]) ** 2)


def ill_conditioned(x: Any) -> Any:
    """A quadratic of condition 1e6."""
    return jnp.sum(_like(x, np.logspace(0, 6, x.size)) * (x - 1) ** 2) / 2


def rotated(x: Any) -> Any:
    """A quadratic of condition 1e4 whose axes are not those of the params."""
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((x.size, x.size)))[0]
    u = jnp.sum(_like(x, Q) * (x - 1), axis=1)
    return jnp.sum(_like(x, np.logspace(0, 4, x.size)) * u**2) / 2


def logistic(x: Any) -> Any:
    """Logistic regression with a small penalty."""
    rng = np.random.default_rng(1)
    A, noise = rng.standard_normal((60, x.size)), rng.standard_normal(60)
    y = np.where(A @ np.linspace(-1, 1, x.size) + noise > 0, 1.0, -1.0)
    margin = jnp.sum(_like(x, A * y[:, None]) * x, axis=1)
    return jnp.sum(jnp.logaddexp(_like(x, 0), -margin)) + _like(x, 0.05) * jnp.sum(x**2)


def booth(x: Any) -> Any:
    """Booth's function."""
    return (x[0] + 2 * x[1] - 7) ** 2 + (2 * x[0] + x[1] - 5) ** 2


def styblinski_tang(x: Any) -> Any:
    """The function of Styblinski and Tang."""
    return jnp.sum(x**4 - 16 * x**2 + 5 * x) / 2


def trid(x: Any) -> Any:
    """A quadratic with a band."""
    return jnp.sum((x - 1) ** 2) - jnp.sum(x[1:] * x[:-1])


def entropy(x: Any) -> Any:
    """A function that is no number for negative params."""
    return jnp.sum(x * jnp.log(x)) - jnp.sum(x * _like(x, np.linspace(-1, 1, x.size)))


UNBOUNDED = [
    Smooth("rosenbrock", _squares(fixed.rosenbrock), (-1.2, 1)),
    Smooth("freudenstein_roth", _squares(fixed.freudenstein_roth), (0.5, -2)),
    Smooth("beale", _squares(fixed.beale), (1, 1)),
    Smooth("helical_valley", _squares(fixed.helical_valley), (-1, 0, 0)),
    Smooth("bard", _squares(fixed.bard), (1, 1, 1)),
    Smooth("box", _squares(fixed.box), (0, 10, 20)),
    Smooth("powell_singular", _squares(fixed.powell_singular), (3, -1, 0, 1)),
    Smooth("wood", _squares(fixed.wood), (-3, -1, -3, -1)),
    Smooth("kowalik_osborne", _squares(fixed.kowalik_osborne), (0.25, 0.39, 0.415, 0.39)),
    Smooth("brown_dennis", _squares(fixed.brown_dennis), (25, 5, -5, -1)),
    Smooth("biggs", _squares(fixed.biggs), (1, 2, 1, 1, 1, 1)),
    Smooth("extended_rosenbrock", _squares(variable.extended_rosenbrock), (-1.2, 1) * 5),
    Smooth(
        "variably_dimensioned",
        _squares(variable.variably_dimensioned),
        tuple(1 - np.arange(1, 11) / 10),
    ),
    Smooth("broyden_tridiagonal", _squares(variable.broyden_tridiagonal), (-1.0,) * 10),
    Smooth("trigonometric", _squares(variable.trigonometric), (0.1,) * 10),
    Smooth("chained_rosenbrock", chained_rosenbrock, (-1.2, 1) * 5),
    Smooth("dixon_price", dixon_price, (1.0,) * 10),
    Smooth("quadratic_1e6", ill_conditioned, (0.0,) * 10),
    Smooth("rotated_1e4", rotated, (0.0,) * 10),
    Smooth("logistic", logistic, (0.0,) * 10),
    Smooth("booth", booth, (0.0, 0.0)),
    Smooth("styblinski_tang", styblinski_tang, (1.0,) * 5),
]

BOUNDED = [
    Smooth("rosenbrock", _squares(fixed.rosenbrock), (-1.2, 1), (-1.5, 0.8)),
    Smooth("beale", _squares(fixed.beale), (1, 1), (0.6, 2.5)),
    Smooth("helical_valley", _squares(fixed.helical_valley), (-1, 0.1, 0), (-2.0, 0.8)),
    Smooth("bard", _squares(fixed.bard), (1, 1, 1), (0.1, 2.0)),
    Smooth("powell_singular", _squares(fixed.powell_singular), (3, 1, 0.5, 1), (0.1, 20.0)),
    Smooth("wood", _squares(fixed.wood), (-3, -1, -3, -1), (-4.0, 0.5)),
    Smooth("biggs", _squares(fixed.biggs), (1, 2, 1, 1, 1, 1), (0.0, 8.0)),
    Smooth(
        "extended_rosenbrock", _squares(variable.extended_rosenbrock), (-1.2, 1) * 5, (-2.0, 0.9)
    ),
    Smooth("chained_rosenbrock", chained_rosenbrock, (-1.2, 1) * 5, (-1.5, 0.7)),
    Smooth("dixon_price", dixon_price, (1.0,) * 10, (0.55, 3.0)),
    Smooth("quadratic_1e6", ill_conditioned, (0.0,) * 10, (-1.0, 0.5)),
    Smooth("rotated_1e4", rotated, (0.0,) * 10, (-0.9, 0.9)),
    Smooth("logistic", logistic, (0.0,) * 10, (-0.4, 0.4)),
    Smooth("booth", booth, (0.0, 0.0), (-10.0, 2.0)),
    Smooth("styblinski_tang", styblinski_tang, (1.0,) * 5, (-2.0, 4.0)),
    Smooth("trid", trid, (0.0,) * 10, (-5.0, 6.0)),
    Smooth("entropy", entropy, (0.9,) * 10, (1e-3, 1.0)),
    Smooth(
        "broyden_tridiagonal", _squares(variable.broyden_tridiagonal), (-1.0,) * 10, (-1.5, -0.45)
    ),
]
