"""PRNG keys as hashable fields of a transform."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import where


def key_words(key: Any) -> tuple[int, ...] | int:
    """A key as whole numbers, so that an optimizer with it can be compared and written down."""
    if isinstance(key, (int, np.integer)):
        return int(key)
    if isinstance(key, Tracer):
        raise TypeError(f"{where()}the key is traced, expected a number or a concrete key.")
    if isinstance(key, (tuple, list)):
        return tuple(int(word) for word in key)
    if hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    words = np.asarray(key)
    if words.dtype != np.uint32 or words.ndim != 1:
        raise TypeError(f"{where()}key = {key!r}, expected a whole number or a key of jax.random.")
    return tuple(int(word) for word in words)


def step_key(words: Any, count: jax.Array) -> jax.Array:
    """The key of a step: a function of the words and of the step, so a run can be restored."""
    if isinstance(words, int):
        key = jax.random.key(words)
    else:
        key = jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32))
    return jax.random.fold_in(key, count)
