"""Element-wise arithmetic of optimizers: clipped moduli, and slots that are written in place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.sharding import sharded_full_like


def clip_modulus(x: jax.Array, most: jax.Array) -> jax.Array:
    """Clip the modulus of elements to `most`; complex ones keep their phase."""
    if not jnp.iscomplexobj(x):
        return jnp.clip(x, -most, most)
    modulus = jnp.abs(x)
    is_long = modulus > most
    return jnp.where(
        is_long, x * (most / jnp.where(is_long, modulus, sharded_full_like(modulus, 1))), x
    )


def write_after(new: jax.Array, reader: jax.Array) -> jax.Array:
    """The new value of a slot, written after `reader`, an array made from the old value.

    XLA writes a donated slot in place only if every loop that reads the old value is known to run
    before. This selection makes it so, which reads `reader` once; otherwise XLA copies the slot.

    Args:
        new: The new value.
        reader: An array of the same shape.

    Returns:
        `new`, but NaN where `reader` is NaN.
    """
    unknown = reader if reader.dtype == new.dtype else sharded_full_like(new, jnp.nan)
    return lax.select(lax.ne(reader, reader), unknown, new)
