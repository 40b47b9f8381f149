"""Functions of squared lengths that are smooth at 0, with all derivatives."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

# Number of terms of the Taylor series for t <= 1: the next term, 1 / (2 * 6)! or 1 / (2 * 10)!, is
# below the unit roundoff of float32 or float64.
_TERMS, _TERMS_64 = 6, 10


def _series(t: jax.Array, first: int) -> jax.Array:
    total = jnp.zeros_like(t)
    for k in reversed(range(_TERMS_64 if t.dtype.itemsize == 8 else _TERMS)):
        total = total * t + jnp.asarray((-1) ** k / math.factorial(2 * k + first), t.dtype)
    return total


def cosine(t: jax.Array) -> jax.Array:
    r""":math:`\cos\sqrt t`."""
    safe = jnp.where(t <= 1, jnp.ones_like(t), t)
    return jnp.where(t <= 1, _series(jnp.where(t <= 1, t, 0), 0), jnp.cos(jnp.sqrt(safe)))


def sine_ratio(t: jax.Array) -> jax.Array:
    r""":math:`\sin\sqrt t / \sqrt t`."""
    safe = jnp.where(t <= 1, jnp.ones_like(t), t)
    angle = jnp.sqrt(safe)
    return jnp.where(t <= 1, _series(jnp.where(t <= 1, t, 0), 1), jnp.sin(angle) / angle)


def cosine_ratio(t: jax.Array) -> jax.Array:
    r""":math:`(1 - \cos\sqrt t) / t`, by half the angle."""
    half = sine_ratio(t / 4)
    return half * half / 2


def angle_ratio(s: jax.Array, c: jax.Array) -> jax.Array:
    r"""The angle over its sine, from the square of the sine and the cosine.

    It is undefined for a straight angle, where it returns a finite number.
    """
    # The series is that of arcsin(x) / x; its next term is below the unit roundoff.
    small = (s <= jnp.asarray(jnp.finfo(s.dtype).eps ** 0.25, s.dtype)) & (c > 0)
    root = jnp.sqrt(jnp.where(small | (s <= 0), jnp.ones_like(s), s))
    t = jnp.where(small, s, 0)
    near = 1 + t * (1 / 6 + t * (3 / 40 + t * (15 / 336 + t * (105 / 3456))))
    return jnp.where(small, near, jnp.arctan2(root, jnp.where(small, jnp.ones_like(c), c)) / root)
