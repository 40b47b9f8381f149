"""The residuals of a curve fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.curves._boxed import Boxed, call_model
from fnopt.curves._curve_model import checked_values

LIKELIHOODS = (None, "poisson")


def curve_residuals(
    f: Any, passing: str, likelihood: str | None = None, as_vector: bool = False
) -> Callable[[Any, Boxed, jax.Array], jax.Array]:
    """The function `residuals(popt, positions, y)` whose sum of squares a fit minimises.

    Args:
        f: The model.
        passing: How it takes the params; see :func:`call_model`.
        likelihood: The distribution of the data; None for normal errors.
        as_vector: Whether the residuals are raveled, for a covariance matrix.
    """

    def residuals(popt: Any, positions: Boxed, y: jax.Array) -> jax.Array:
        x = positions.opened()
        values = checked_values(call_model(f, passing, popt, x), popt, x, y)
        r = values - y if likelihood is None else deviance_residuals(values, y)
        return jnp.ravel(r) if as_vector else r

    return residuals


def deviance_residuals(mu: jax.Array, y: jax.Array) -> jax.Array:
    r"""Residuals whose squares sum to the Poisson deviance.

    .. math:: r = \operatorname{sign}(\mu - y) \sqrt{2 (\mu - y - y \ln(\mu / y))}

    NaN where :math:`\mu < 0`, or where :math:`\mu = 0` and `y` isn't. Near :math:`\mu = y` the root
    is that of the series :math:`t - \ln(1 + t) = t s - 2 \sum_k s^{2k+1} / (2k + 1)`, with
    :math:`t = \mu / y - 1` and :math:`s = t / (2 + t)`.

    Reference:
        McCullagh and Nelder (1989), Generalized linear models, section 2.4.3.
    """
    mu = jnp.broadcast_to(mu, y.shape)
    empty = y <= 0
    count = jnp.where(empty, jnp.ones_like(y), y)
    t = jnp.where(empty, jnp.ones_like(y), mu / count - 1)
    near = jnp.abs(t) < 0.1  # five terms of the series are exact to 4e-16 there
    small = jnp.where(near, t, jnp.zeros_like(t))
    w = 1 / (2 + small)
    z = jnp.square(small * w)
    tail = 1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z / 11)))
    inner = small * jnp.sqrt(w - 2 * small * w * jnp.square(w) * tail)
    large = jnp.where(near, jnp.ones_like(t), t)
    outer = jnp.sign(large) * jnp.sqrt(large - jnp.log1p(large))
    # The derivative of sqrt(2 mu) is infinite at 0.
    none = jnp.sqrt(2 * jnp.where(empty, mu, jnp.ones_like(mu)))
    return jnp.where(empty, none, jnp.sqrt(2 * count) * jnp.where(near, inner, outer))


def fisher_rows(J: jax.Array, r: jax.Array, mu: jax.Array, y: jax.Array) -> jax.Array:
    r"""The Jacobian whose Gram matrix is the Fisher information, from that of deviance residuals.

    A row of `J` is :math:`(1 - y / \mu) / r` times the derivative of :math:`\mu`, which the
    information :math:`\sum_i \nabla \mu_i \nabla \mu_i^T / \mu_i` divides by
    :math:`\sqrt{\mu}`.
    """
    mu, r, y = (jnp.ravel(v) for v in (jnp.broadcast_to(mu, y.shape), r, y))
    root = jnp.sqrt(mu)
    # At mu = y the slope is 1 / sqrt(mu); the residual's own rounding counts nearby.
    near = jnp.abs(mu - y) <= jnp.finfo(mu.dtype).eps ** 0.5 * mu
    slope = (mu - y) / jnp.where(near, jnp.ones_like(r), r) / mu
    factor = jnp.where(near, jnp.ones_like(mu), 1 / (root * slope))
    return J * factor[:, None]
