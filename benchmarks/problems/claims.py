"""Fifty-five smooth functions of up to 12 params for `benchmarks.cases.minimize_claims`.

The unbounded ones of `smooth`, the smaller sums of squares of Moré, Garbow and Hillstrom that
aren't among these, and the functions of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.mgh import PROBLEMS
from benchmarks.problems.smooth import UNBOUNDED, Smooth, chained_rosenbrock

SIZE = 12  # of all params: shorter ones are the first entries, so one program serves all


def _like(x: Any, values: Any) -> Any:
    return jnp.asarray(values, x.dtype)


def himmelblau(x: Any) -> Any:
    """Four minima of value 0."""
    return (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


def zakharov(x: Any) -> Any:
    """Gradients of 5e7 at the start."""
    s = jnp.sum(_like(x, np.arange(1, x.size + 1)) * x) / 2
    return jnp.sum(x**2) + s**2 + s**4


def softmax(x: Any) -> Any:
    """A regression of 40 data on three classes."""
    rng = np.random.default_rng(3)
    A, y = rng.standard_normal((40, 3)), rng.integers(0, 3, 40)
    logits = jnp.sum(_like(x, A)[:, :, None] * x.reshape(3, 3)[None], axis=1)
    loss = jax.nn.logsumexp(logits, axis=1) - logits[np.arange(40), y]
    return jnp.mean(loss) + _like(x, 1e-3) * jnp.sum(x**2)


def poisson(x: Any) -> Any:
    """A regression on counts."""
    rng = np.random.default_rng(4)
    A = rng.standard_normal((50, x.size)) / 2
    y = rng.poisson(np.exp(A @ np.linspace(-1, 1, x.size)))
    eta = jnp.sum(_like(x, A) * x, axis=1)
    return jnp.sum(jnp.exp(eta) - _like(x, y) * eta)


def svm(x: Any) -> Any:
    """A support vector machine with squared margins."""
    rng = np.random.default_rng(5)
    A = rng.standard_normal((50, x.size))
    y = np.sign(A @ np.ones(x.size) + rng.standard_normal(50))
    margin = jnp.sum(_like(x, A * y[:, None]) * x, axis=1)
    return jnp.sum(jnp.maximum(1 - margin, 0) ** 2) + _like(x, 0.5) * jnp.sum(x**2)


def separable(x: Any) -> Any:
    """A logistic regression whose minimum is at infinity."""
    rng = np.random.default_rng(6)
    A = rng.standard_normal((30, x.size))
    y = np.sign(A @ np.ones(x.size))
    return jnp.sum(jax.nn.softplus(-jnp.sum(_like(x, A * y[:, None]) * x, axis=1)))


def net(x: Any) -> Any:
    """A network of three units."""
    t = np.linspace(-1, 1, 15)
    h = jnp.tanh(_like(x, t)[:, None] * x[:3] + x[3:6])
    out = jnp.sum(h * x[6:9], axis=1) + x[9]
    return jnp.mean((out - _like(x, np.sin(3 * t))) ** 2) + _like(x, 1e-3) * jnp.sum(x**2)


def offset(x: Any) -> Any:
    """A value of 1,000 at the minimum."""
    return chained_rosenbrock(x) + _like(x, 1000.0)


def cosh(x: Any) -> Any:
    """Slopes of 1 far away."""
    return jnp.sum(jnp.log(jnp.cosh(x - _like(x, np.arange(x.size)))))


def quartic(x: Any) -> Any:
    """No curvature at the minimum."""
    return jnp.sum((x - 1) ** 4)


def saddle(x: Any) -> Any:
    """Minima between saddles."""
    return jnp.sum(x**4 - x**2) + jnp.sum(x[1:] * x[:-1]) / 4


def _squares(residuals: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(residuals(x) ** 2)


def _sums_of_squares() -> list[Smooth]:
    names = {p.name[:8] for p in UNBOUNDED}
    names |= {"watson9", "watson12"}
    few = [p for p in PROBLEMS if len(p.start) <= SIZE]
    problems = [p for p in few if p.name not in names and p.name[:8] not in names]
    return [Smooth(p.name, _squares(p.residuals), tuple(p.start)) for p in problems]


OWN = [
    Smooth("himmelblau", himmelblau, (0.0, 1.0)),
    Smooth("zakharov", zakharov, (5.0,) * 10),
    Smooth("softmax", softmax, (0.0,) * 9),
    Smooth("poisson", poisson, (0.1,) * 6),
    Smooth("svm", svm, (0.1,) * 6),
    Smooth("separable", separable, (0.1,) * 4),
    Smooth("net", net, tuple(np.random.default_rng(0).standard_normal(10))),
    Smooth("offset", offset, (-1.2, 1.0) * 3),
    Smooth("cosh", cosh, (3.0,) * 5),
    Smooth("quartic", quartic, (3.0, -2.0)),
    Smooth("saddle", saddle, (0.5, -0.3, 1.0)),
]

FUNCTIONS = [*UNBOUNDED, *_sums_of_squares(), *OWN]
