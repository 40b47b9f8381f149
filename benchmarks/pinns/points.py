"""Points that fill a cube evenly: fewer of them tell as much of a function as random ones do."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def spread(key: jax.Array, count: int, d: int) -> jax.Array:
    r"""Kronecker's sequence in the unit cube of `d` dimensions, shifted at random.

    .. math:: x_i = (s + i \alpha) \bmod 1, \qquad \alpha_k = \phi^{-k}, \qquad
        \phi^{d+1} = \phi + 1

    Each point alone is uniform, whatever the key, so means over them are unbiased.

    Args:
        key: Of the shift `s`.
        count: How many points.
        d: Their dimension.

    Returns:
        Points `[count, d]`.

    Reference:
        Cranley and Patterson (1976), Randomization of number theoretic methods for multiple
        integration (the shift); Roberts (2018), The unreasonable effectiveness of quasirandom
        sequences (the generalized golden ratio).
    """
    phi = 2.0
    for _ in range(60):  # a contraction
        phi = (1 + phi) ** (1 / (d + 1))
    shift = jax.random.uniform(key, (d,))
    alpha = jnp.asarray([phi**-k for k in range(1, d + 1)], shift.dtype)
    return (shift + jnp.arange(count, dtype=shift.dtype)[:, None] * alpha) % 1
