"""The metric of the trust region."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.linear import divide
from fnopt.solvers.linear_model._linearization import Linearization

# Of the residuals' length: the least that a whole parameter counts for. Measured on the starts of
# NIST and of Moré, Garbow and Hillstrom (162), and on 1,200 far ones: 7 and 51 fewer are solved
# without the bound, 2 and 17 fewer with 0.5, 2 and 3 fewer with 1.
_RELATIVE = 0.7
# Of the scaling, that is left after a step: a tenth after 22 steps. Measured on the starts of NIST,
# of Moré, Garbow and Hillstrom, and far ones (docs/performance.md): 0.8 and 0.95 solve as many but
# for one or two, 0.5 and 1 fewer.
_DECAY = 0.9


def initial_scale(columns: jax.Array) -> jax.Array:
    r"""Moré's scaling: :math:`D_j = \|J_j\|`, and 1 for a parameter that has no effect yet.

    In :math:`\|D p\|` a parameter counts by how far it moves the residuals, so the method does
    not depend on the units of the params.

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory, section 6.
    """
    return jnp.where(columns > 0, columns, jnp.ones_like(columns))


def grown_scale(scale: jax.Array, columns: jax.Array) -> jax.Array:
    r"""Moré's update with a fading memory, :math:`D_j \leftarrow \max(0.9\, D_j, \|J_j\|)`.

    Moré's own, without the factor, keeps a parameter that was steep once on a short lead for ever:
    from a start where it was steeper by magnitudes a search crawls. Without memory it is thrown
    across steep regions again and again.
    """
    return jnp.maximum(jnp.asarray(_DECAY, scale.dtype) * scale, columns)


def with_relative_bound(scale: jax.Array, point: Linearization) -> jax.Array:
    r"""The scaling in which a parameter with little effect changes by factors of its own size.

    .. math:: D_j \leftarrow \max(D_j, \delta\, \|r\| / |x_j|), \qquad \delta = 0.7

    Where a parameter hardly moves the residuals (an exponential that has died out), its column
    is next to nothing, and a step within :math:`\|D p\| \le \Delta` may change it by any number
    of magnitudes: to where it has no effect at all. So as long as its whole effect,
    :math:`D_j |x_j|`, is less than the residuals, it changes by factors. The bound goes with the
    residuals. A parameter that is zero has no size, and no bound.

    Args:
        scale: The largest norms of the Jacobian's columns, older ones with less weight, `[n]`.
        point: The point.

    Returns:
        The scaling `D`, of shape `[n]`.
    """
    length = jnp.asarray(_RELATIVE, scale.dtype) * jnp.sqrt(2 * point.cost)
    return jnp.maximum(scale, divide(length, jnp.abs(point.x)))
