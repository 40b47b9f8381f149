r"""The curvature of every param by itself that the linear model leaves out.

Where residuals are saturated, or params have no effect at the minimum, columns of the Jacobian
vanish one by one, and what keeps the cost up is a diagonal:

.. math:: H = J^T J + \operatorname{diag}(\sigma)

A damping that is right for one of them is wrong for the others, so without it steps converge
linearly, and the more slowly, the more the sizes of the columns differ.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import matmul
from fnopt.linear import divide
from fnopt.solvers.model._linearization import Linearization

_CONFIRMED = 0.3  # of a change of slope: how far off what was learned before may be
_CLEARLY = 8.0  # rounding units


def no_own_curvature(learns: bool, x: jax.Array) -> jax.Array:
    """The curvature before anything is known of it; of shape `[0, n]` if nothing is to be."""
    return jnp.zeros((2 if learns else 0, x.size), x.dtype)


def own_learned(
    own: jax.Array, before: Linearization, after: Linearization, step: jax.Array
) -> jax.Array:
    r"""The curvature after an accepted step `s`, by the secant condition of every param.

    .. math:: y = g_+ - g - \tfrac12 (G + G_+)\, s, \qquad \sigma_j = \max(0, y_j / s_j)

    A secant knows nothing of couplings. So what one step says is only used where it foretells the
    next, :math:`\sum_j |s_j (y_j - \sigma_j s_j)| \le 0.3 \sum_j |s_j y_j|` with the `σ`
    of the step before: then there are none that matter. And only where it is more than the linear
    model's own, :math:`\sigma_j > \|J_j\|^2`, and steps by that would diverge: elsewhere they are
    better left alone, and keep their basin.

    Args:
        own: What is known, and what is used of it, of shape `[2, n]`.
        before: Where the step starts, with a triangle or a Gram matrix.
        after: Where it ends.
        step: `s`, of shape `[n]`.

    Returns:
        The same after the step.
    """
    half = jnp.asarray(0.5, step.dtype)
    moved = half * (_gram_product(before, step) + _gram_product(after, step))
    y = after.gradient - before.gradient - moved
    rounded = jnp.abs(after.gradient) + jnp.abs(before.gradient) + jnp.abs(moved)
    least = jnp.asarray(_CLEARLY * float(jnp.finfo(step.dtype).eps), step.dtype) * rounded
    known = (jnp.abs(y) > least) & (step != 0)
    found = jnp.where(known, jnp.maximum(divide(y * jnp.sign(step), jnp.abs(step)), 0), own[0])
    found = jnp.where(jnp.isfinite(found), found, 0)  # a square of columns may be out of range
    off = jnp.sum(jnp.abs(step * (y - own[0] * step)))
    share = jnp.asarray(_CONFIRMED, step.dtype)
    confirmed = off <= share * jnp.sum(jnp.abs(step * y))
    used = confirmed & (jnp.sqrt(found) > after.columns)
    return jnp.stack([found, jnp.where(used, found, jnp.zeros_like(found))])


def _gram_product(point: Linearization, v: jax.Array) -> jax.Array:
    r""":math:`J^T J v`."""
    if point.triangle is None:
        return point.J.times(v)
    L = point.triangle.L
    return matmul(L, matmul(v, L))
