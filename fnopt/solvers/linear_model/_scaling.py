"""Scaling of the params in the trust region."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.linear import divide
from fnopt.solvers.linear_model._linearization import Linearization

# Lower bound of |D_j x_j|, relative to the residual norm. Measured on the 162 initial guesses of
# NIST and of Moré, Garbow and Hillstrom, and on 1,200 distant initial guesses. Without the bound, 7
# of the 162 and 51 of the 1,200 problems are solved no longer. With a bound of 0.5, these are 2 and
# 17 problems; with a bound of 1, 2 and 3.
_RELATIVE = 0.7
# Decay of the scaling per step: a tenth remains after 22 steps. Measured on the initial guesses of
# NIST, of Moré, Garbow and Hillstrom, and on distant ones (docs/performance.md): 0.8 and 0.95 solve
# as many problems as 0.9, up to one or two. 0.5 and 1 solve fewer.
_DECAY = 0.9


def initial_scale(columns: jax.Array) -> jax.Array:
    r"""Return Moré's scaling: :math:`D_j = \|J_j\|`, and 1 for zero columns.

    The norm :math:`\|D p\|` weights each param by its effect on the residuals, so the method
    doesn't depend on the units of the params.

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory, section 6.
    """
    return jnp.where(columns > 0, columns, jnp.ones_like(columns))


def grown_scale(scale: jax.Array, columns: jax.Array) -> jax.Array:
    r"""Update Moré's scaling with decay, :math:`D_j \leftarrow \max(0.9\, D_j, \|J_j\|)`.

    Without decay (Moré's update), a param with a large column at one iterate takes short steps in
    all later iterations. A search from an initial guess with a large Jacobian is then slow. Without
    memory (:math:`D_j = \|J_j\|`), steps repeatedly overshoot regions with a large Jacobian.
    """
    return jnp.maximum(jnp.asarray(_DECAY, scale.dtype) * scale, columns)


def with_relative_bound(scale: jax.Array, point: Linearization) -> jax.Array:
    r"""Increase the scaling, to bound the relative change of params with little effect.

    .. math:: D_j \leftarrow \max(D_j, \delta\, \|r\| / |x_j|), \qquad \delta = 0.7

    If a param hardly changes the residuals (such as the rate of an exponential that has decayed),
    its column is nearly zero. A step within :math:`\|D p\| \le \Delta` may then change the param by
    many orders of magnitude, to a range without any effect. Therefore the relative change of the
    param is bounded if :math:`D_j |x_j|` is less than :math:`\delta \|r\|`. The bound loses its
    effect as the residuals decrease. A param of zero has no bound.

    Args:
        scale: The decayed maximum norms of the Jacobian's columns, `[n]`.
        point: The linearization at the current iterate.

    Returns:
        The scaling `D`, of shape `[n]`.
    """
    length = jnp.asarray(_RELATIVE, scale.dtype) * jnp.sqrt(2 * point.cost)
    return jnp.maximum(scale, divide(length, jnp.abs(point.x)))
