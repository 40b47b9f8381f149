"""Restarts of a trust region that collapsed where the cost still falls."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.linear import norm
from fnopt.solvers.model._linearization import Linearization

MOST_RESTARTS = 3
SLOPING = 1e-5  # of the residual's length; leaning by less counts as a stationary point
_HOPE = 0.01  # of the cost, that the linear model would take off it without any damping
NOISE = 30  # how far above that estimate rounding was seen to reach


def is_sloping(point: Linearization, scaled_gradient: jax.Array, noise: jax.Array) -> jax.Array:
    r"""Whether the scaled gradient is larger than rounding explains.

    Rounding moves a residual by about :math:`\epsilon \|J_j x_j\|` for each parameter, and with
    it the scaled gradient by

    .. math:: \epsilon\, \| (\|J_j\| x_j)_j \|,

    the `noise`, which is large where the residuals are small against what they are differences of.
    """
    floor = jnp.asarray(SLOPING, scaled_gradient.dtype) * jnp.sqrt(2 * point.cost)
    return scaled_gradient > jnp.maximum(floor, jnp.asarray(NOISE, scaled_gradient.dtype) * noise)


def is_hopeful(point: Linearization, noise: jax.Array) -> jax.Array:
    r"""Whether the linear model, undamped, would lower the cost by some per cent.

    .. math:: \tfrac12 \| P r \|^2 > 0.01 f, \qquad \| P r \| > 30 \rho

    with the projection `P` on the range of the Jacobian, and the rounding :math:`\rho` of the
    residuals. A triangle shows it, other factors don't; nor does one from which the columns of held
    params were taken.
    """
    if point.triangle is None:
        return jnp.zeros((), bool)
    c = point.triangle.c
    # Of params that are held on a bound the rest of the residual still has its share in there.
    known = jnp.all(point.columns > 0)
    much = norm(c) > jnp.asarray(NOISE, c.dtype) * noise
    return (
        known & much & (norm(c) > jnp.asarray((2 * _HOPE) ** 0.5, c.dtype) * jnp.sqrt(point.cost))
    )


def reopened_radius(
    option: jax.Array, scale: jax.Array, x: jax.Array, restarts: jax.Array
) -> jax.Array:
    r"""The radius after a restart, which forgets the history of the scaling.

    Moré's scaling never forgets: a parameter that was steep once, far from here, can hold all
    steps down to nothing. The scaling starts anew from this point's columns, with the radius

    .. math:: \Delta = 10^{-1-k} \|D x\|

    at the `k`-th restart. The number of restarts is bounded, so this ends.

    Args:
        option: Not used.
        scale: The fresh scaling, of shape `[n]`.
        x: The params, of shape `[n]`.
        restarts: How many there were, an int32 scalar.

    Returns:
        The radius.
    """
    del option
    length = norm(scale * x)
    length = jnp.where(length > 0, length, jnp.ones_like(length))
    tenth = jnp.asarray(0.1, x.dtype)
    return length * tenth ** (1 + restarts).astype(x.dtype)
