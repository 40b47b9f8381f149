"""A normal distribution of independent numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class MultiNormalDiagFromLogScale:
    """A normal distribution by its means and the logarithms of its standard deviations."""

    def __init__(self, loc: Any, log_scale: Any) -> None:
        self._mean, self._log_scale = jnp.asarray(loc), jnp.asarray(log_scale)
        self._shape = jnp.broadcast_shapes(self._mean.shape, self._log_scale.shape)

    def sample(self, shape: Any, key: Any) -> jax.Array:
        """Random vectors, as many as `shape` says."""
        dtype = jnp.result_type(self._mean, self._log_scale)
        noise = jax.random.normal(key, (*shape, *self._shape), dtype)
        return noise * jnp.exp(self._log_scale) + self._mean

    def log_prob(self, x: Any) -> jax.Array:
        """The logarithm of the density at vectors."""
        scaled = (jnp.asarray(x) - self._mean) * jnp.exp(-self._log_scale)
        each = -0.5 * jnp.square(scaled) - self._log_scale - 0.5 * jnp.log(2 * jnp.pi)
        return jnp.sum(each, axis=tuple(range(-len(self._shape), 0)))

    @property
    def log_scale(self) -> jax.Array:
        """The logarithms of the standard deviations."""
        return self._log_scale

    @property
    def params(self) -> list[jax.Array]:
        """Means, and logarithms of standard deviations."""
        return [self._mean, self._log_scale]


def multi_normal(loc: Any, log_scale: Any) -> MultiNormalDiagFromLogScale:
    """A normal distribution by its means and the logarithms of its standard deviations."""
    return MultiNormalDiagFromLogScale(loc, log_scale)
