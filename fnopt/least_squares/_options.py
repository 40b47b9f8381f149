"""Hyper-parameters as arrays of the dtype that is computed in."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

NOISE = 20


class Options(NamedTuple):
    """Numbers of the algorithm."""

    ftol: jax.Array
    xtol: jax.Array
    gtol: jax.Array
    eps: jax.Array  # rounding unit of the params
    noise: jax.Array  # relative changes of the cost below this are rounding
    radius: jax.Array
    acceleration: jax.Array


def resolved(
    dtype: jnp.dtype,
    eps: float,
    *,
    ftol: float | jax.Array | None,
    xtol: float | jax.Array | None,
    gtol: float | jax.Array | None,
    radius: float | jax.Array,
    acceleration: float | jax.Array,
) -> Options:
    r"""Fills in the defaults: 4, 4 and 1 times the rounding unit `eps` of the params.

    The cost is a sum of many rounded squares, so that its relative error is a multiple of `eps`;
    20 covers the problems of the NIST collection.
    """

    def array(value: float | jax.Array | None, default: float) -> jax.Array:
        return jnp.asarray(default if value is None else value, dtype)

    return Options(
        ftol=array(ftol, 4 * eps),
        xtol=array(xtol, 4 * eps),
        gtol=array(gtol, eps),
        eps=array(eps, 0),
        noise=array(NOISE * eps, 0),
        radius=array(radius, 1),
        acceleration=array(acceleration, 0),
    )
