"""Averages of gradients: the arithmetic that the adaptive methods share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def as_dtype(dtype: Any) -> Any:
    """A storage dtype in its canonical, hashable form; None stays None."""
    return None if dtype is None else jnp.dtype(dtype)


def ema(mean: jax.Array, x: jax.Array, decay: jax.Array) -> jax.Array:
    r"""One step of an exponential average: :math:`\beta m + (1-\beta) x`."""
    return decay * mean + (1 - decay) * x


def squared(x: jax.Array) -> jax.Array:
    """The squared modulus: real for complex gradients too."""
    return jnp.real(x) ** 2 + jnp.imag(x) ** 2 if jnp.iscomplexobj(x) else x * x


def bias_correction(decay: jax.Array, count: jax.Array) -> jax.Array:
    r"""What an average that started at zero has seen after `count` steps: :math:`1-\beta^t`."""
    return 1 - decay ** count.astype(decay.dtype)
