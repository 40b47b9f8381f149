"""Division where the divisor may vanish."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def divide(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a / b` where `b > 0`, and 0 elsewhere."""
    a, b = jnp.broadcast_arrays(a, b)
    some = b > 0
    quotient = a / lax.select(some, b, lax.full_like(b, 1))
    return lax.select(some, quotient, lax.full_like(quotient, 0))
