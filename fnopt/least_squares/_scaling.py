"""The metric of the trust region."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.linear import norm

_LEAST = 1e-3  # of the residual's length, for a first radius


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


def fresh_scale(columns: jax.Array) -> jax.Array:
    """The scaling without memory, for a rescue; a dead parameter gets the steepest one's."""
    top = jnp.max(columns, initial=0)
    top = jnp.where(top > 0, top, jnp.ones_like(top))
    return jnp.where(columns > 0, columns, top)


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
