"""The distributions that functions are perturbed with."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Value


class Normal(Value):
    r"""Standard normal noise: :math:`p(z) \propto e^{-z^2 / 2}`.

    Example:
        >>> from fnopt.discrete import Normal
        >>> Normal().sample(jax.random.key(0), (2, 3)).shape
        (2, 3)
    """

    def sample(self, key: Any, sample_shape: tuple[int, ...] = (), dtype: Any = float) -> jax.Array:
        """Independent numbers of the given shape."""
        return jax.random.normal(key, sample_shape, dtype)

    def log_prob(self, inputs: jax.Array) -> jax.Array:
        """The logarithm of the density, up to a constant."""
        return -0.5 * jnp.square(inputs)


class Gumbel(Value):
    r"""Standard Gumbel noise: :math:`p(z) = e^{-z - e^{-z}}`.

    The largest of scores with such noise is distributed as their softmax.

    Example:
        >>> from fnopt.discrete import Gumbel
        >>> Gumbel().sample(jax.random.key(0), (2, 3)).shape
        (2, 3)
    """

    def sample(self, key: Any, sample_shape: tuple[int, ...] = (), dtype: Any = float) -> jax.Array:
        """Independent numbers of the given shape."""
        return jax.random.gumbel(key, sample_shape, dtype)

    def log_prob(self, inputs: jax.Array) -> jax.Array:
        """The logarithm of the density."""
        return -inputs - jnp.exp(-inputs)
