"""Evenly spaced (quasi-random) points in a cube, which cover it better than random points."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def spread(key: jax.Array, count: int, d: int) -> jax.Array:
    r"""Return a randomly shifted Kronecker sequence in the unit cube of `d` dimensions.

    .. math:: x_i = (s + i \alpha) \bmod 1, \qquad \alpha_k = \phi^{-k}, \qquad
        \phi^{d+1} = \phi + 1

    Over random shifts, each point is uniformly distributed, so means over the points are unbiased.

    Args:
        key: PRNG key of the shift `s`.
        count: Number of points.
        d: Dimension of the cube.

    Returns:
        Points `[count, d]`.

    Reference:
        Cranley and Patterson (1976), Randomization of number theoretic methods for multiple
        integration (the shift); Roberts (2018), The unreasonable effectiveness of quasirandom
        sequences (the generalized golden ratio).
    """
    phi = 2.0
    for _ in range(60):  # fixed-point iteration, which is a contraction
        phi = (1 + phi) ** (1 / (d + 1))
    shift = jax.random.uniform(key, (d,))
    alpha = jnp.asarray([phi**-k for k in range(1, d + 1)], shift.dtype)
    return (shift + jnp.arange(count, dtype=shift.dtype)[:, None] * alpha) % 1
