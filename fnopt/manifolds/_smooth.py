"""Functions of squared lengths whose derivatives of all orders are finite at 0."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

# Number of terms of the Taylor series for t <= 1. The first omitted term, 1 / (2 * 6)! or
# 1 / (2 * 10)!, is below the unit roundoff of float32 or float64.
_TERMS, _TERMS_64 = 6, 10


def _series(t: jax.Array, first: int) -> jax.Array:
    r"""Taylor series :math:`\sum_k (-t)^k / (2 k + \mathrm{first})!`, by Horner's scheme."""
    total = jnp.zeros_like(t)
    for k in reversed(range(_TERMS_64 if t.dtype.itemsize == 8 else _TERMS)):
        total = total * t + jnp.asarray((-1) ** k / math.factorial(2 * k + first), t.dtype)
    return total


def cosine(t: jax.Array) -> jax.Array:
    r""":math:`\cos\sqrt t`."""
    # `safe`: `where` also differentiates the branch that isn't selected, and the derivative of the
    # root at 0 is infinite.
    safe = jnp.where(t <= 1, jnp.ones_like(t), t)
    return jnp.where(t <= 1, _series(jnp.where(t <= 1, t, 0), 0), jnp.cos(jnp.sqrt(safe)))


def sine_ratio(t: jax.Array) -> jax.Array:
    r""":math:`\sin\sqrt t / \sqrt t`."""
    safe = jnp.where(t <= 1, jnp.ones_like(t), t)
    angle = jnp.sqrt(safe)
    return jnp.where(t <= 1, _series(jnp.where(t <= 1, t, 0), 1), jnp.sin(angle) / angle)


def cosine_ratio(t: jax.Array) -> jax.Array:
    r""":math:`(1 - \cos\sqrt t) / t`, computed from the sine of half the angle."""
    ratio = sine_ratio(t / 4)
    return ratio * ratio / 2


def angle_ratio(s: jax.Array, c: jax.Array) -> jax.Array:
    r"""Ratio of an angle to its sine, from the squared sine `s` and the cosine `c`.

    The ratio is undefined for the angle pi, where the function returns a finite number.
    """
    # Taylor series of arcsin(x) / x; the first omitted term is below the unit roundoff.
    is_small = (s <= jnp.asarray(jnp.finfo(s.dtype).eps ** 0.25, s.dtype)) & (c > 0)
    root = jnp.sqrt(jnp.where(is_small | (s <= 0), jnp.ones_like(s), s))
    t = jnp.where(is_small, s, 0)
    series = 1 + t * (1 / 6 + t * (3 / 40 + t * (15 / 336 + t * (105 / 3456))))
    return jnp.where(
        is_small, series, jnp.arctan2(root, jnp.where(is_small, jnp.ones_like(c), c)) / root
    )
