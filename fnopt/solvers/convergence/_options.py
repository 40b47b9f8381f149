"""Hyper-parameters as arrays of the dtype that is computed in."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_SHARP = 1e-10  # of the cost


class Options(NamedTuple):
    """Numbers of the algorithm."""

    ftol: jax.Array
    sharp: jax.Array  # the tolerance of the cost where its slope has more digits than it has
    xtol: jax.Array
    gtol: jax.Array
    eps: jax.Array  # rounding unit of the params
    noise: jax.Array  # relative changes of the cost below this are rounding
    radius: jax.Array  # the first radius of a step
    acceleration: jax.Array  # the largest one, relative to the step
    sized: bool = False  # whether params that hardly have an effect change by factors

    def with_radius(
        self, radius: float | jax.Array, acceleration: float | jax.Array = 0.0
    ) -> Options:
        """These options with what a method says of its steps."""
        dtype = self.eps.dtype
        return self._replace(
            radius=jnp.asarray(radius, dtype), acceleration=jnp.asarray(acceleration, dtype)
        )


def resolved(
    dtype: jnp.dtype,
    eps: float,
    *,
    ftol: float | jax.Array | None,
    xtol: float | jax.Array | None,
    gtol: float | jax.Array | None,
) -> Options:
    r"""Fills in the defaults, which go by the rounding unit `eps` of the params.

    Differences of costs are computed from differences of residuals, so they are good to a few
    `eps` of the cost, and the tests can be as sharp as that. What the model predicts is good to
    the square of it, if its Jacobian has full rank. At :math:`10^{-10}` of the cost params are
    within :math:`10^{-5} \sqrt m` of their standard errors; at float32's unit it is 3e-4.
    """

    def array(value: float | jax.Array | None, default: float) -> jax.Array:
        return jnp.asarray(default if value is None else value, dtype)

    return Options(
        ftol=array(ftol, eps),
        sharp=array(ftol, min(eps, max(_SHARP, eps**2))),
        xtol=array(xtol, 4 * eps),
        gtol=array(gtol, eps),
        eps=array(eps, 0),
        noise=array(4 * eps, 0),
        radius=array(1.0, 1),
        acceleration=array(0.0, 0),
    )
