"""The metric of the trust region."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.linear import divide, norm
from fnopt.solvers.model._linearization import Linearization

_LEAST = 1e-3  # of the residual's length, for a first radius
_SIZE_FLOOR = 0.7  # of the residual's length: the least that a whole parameter counts for


def initial_scale(columns: jax.Array) -> jax.Array:
    r"""Moré's scaling: :math:`D_j = \|J_j\|`, and 1 for a parameter that has no effect yet.

    In :math:`\|D p\|` a parameter counts by how far it moves the residuals, so the method does
    not depend on the units of the params.

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory, section 6.
    """
    return jnp.where(columns > 0, columns, jnp.ones_like(columns))


def grown_scale(scale: jax.Array, columns: jax.Array) -> jax.Array:
    r"""Moré's update :math:`D_j \leftarrow \max(D_j, \|J_j\|)`.

    It never shrinks: a parameter that once was steep stays on a short lead.
    """
    return jnp.maximum(scale, columns)


def memoryless_scale(columns: jax.Array) -> jax.Array:
    """The scaling without memory, for a restart; a dead parameter gets the steepest one's."""
    top = jnp.max(columns, initial=0)
    top = jnp.where(top > 0, top, jnp.ones_like(top))
    return jnp.where(columns > 0, columns, top)


def sized_scale(point: Linearization) -> jax.Array:
    """The scaling without memory, in which no dead parameter counts for more than the residuals.

    Beside the sizes of the others no step would be tiny for it, or every one.
    """
    scale = memoryless_scale(point.columns)
    most = divide(jnp.sqrt(2 * point.cost), jnp.abs(point.x))
    dead = (point.columns <= 0) & (most > 0)
    return jnp.where(dead, jnp.minimum(scale, most), scale)


def with_size_floor(steepest: jax.Array, point: Linearization) -> jax.Array:
    r"""The scaling that also keeps a parameter without effect near its own size.

    .. math:: D_j = \max(d_j, \delta\, \|r\| / |x_j|), \qquad \delta = 0.7

    Where a parameter hardly moves the residuals (an exponential that has died out), its column
    is next to nothing, and a step within :math:`\|D p\| \le \Delta` may change it by any number
    of magnitudes: to where it has no effect at all, and never comes back. So as long as its
    whole effect, :math:`d_j |x_j|`, is less than the residuals, it changes by factors. This
    doesn't depend on its units either, and isn't remembered: the floor grows with the parameter,
    and is gone when the residuals are. A parameter that is zero has no size, and no floor.

    Args:
        steepest: `d`, the largest norms of the Jacobian's columns so far, of shape `[n]`.
        point: The point.

    Returns:
        The scaling `D`, of shape `[n]`.
    """
    length = jnp.asarray(_SIZE_FLOOR, steepest.dtype) * jnp.sqrt(2 * point.cost)
    return jnp.maximum(steepest, divide(length, jnp.abs(point.x)))


def initial_radius(factor: jax.Array, scale: jax.Array, x: jax.Array, cost: jax.Array) -> jax.Array:
    r"""The first radius, in the units of the residuals.

    .. math:: \Delta = c \max(\|D x\|, 10^{-3} \|r\|), \quad
        \text{or } c \|r\| \text{ if } D x = 0

    Where the only params that aren't zero have no effect yet, :math:`\|D x\|` alone is next to
    nothing, and no step would get anywhere.
    """
    length, residual = norm(scale * x), jnp.sqrt(2 * cost)
    length = jnp.maximum(length, jnp.where(length > 0, _LEAST, jnp.ones_like(length)) * residual)
    return factor * jnp.where(length > 0, length, jnp.ones_like(length))
