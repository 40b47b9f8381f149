r"""Directions along which the cost may fall although it is level: those of a saddle.

The linear model knows no negative curvature: at a saddle it has nothing to offer, as at a minimum.
Symmetric starts (two equal terms of a sum) slide along a ridge to one. Its signs cost nothing: the
cost bent down along the last step that showed its curvature; or the Jacobian is singular, so that
only the residuals' own curvature decides. One direction is tried, which need not be the one along
which a saddle falls.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import matmul, row_parts
from fnopt.linear import divide, norm, numerical_rank
from fnopt.solvers._linearization import Linearization
from fnopt.solvers._scaling import fresh_scale

_CLEARLY = 3.0  # times the rounding of the residuals
_OWN = 0.1  # of the size of a param, by which it changes at most


def no_bend(x: jax.Array) -> jax.Array:
    """No step yet, of shape `[n]`."""
    return jnp.zeros_like(x)


def bend(
    before: Linearization, after: Linearization, step: jax.Array, noise: jax.Array
) -> tuple[jax.Array, jax.Array]:
    r"""Whether a step shows the curvature along it, and the step if the cost bends down there.

    .. math:: C = s^T (g_+ - g)

    It shows if it is more than what the rounding :math:`\rho` of the residuals explains, some
    :math:`\rho \|J s\|`.

    Args:
        before: The point where the step starts, with a triangle.
        after: The point where it ends.
        step: `s`, of shape `[n]`.
        noise: :math:`\rho`.

    Returns:
        Whether it shows; and `s` if `C` is negative, else zeros.
    """
    assert before.triangle is not None
    length = norm(matmul(step, before.triangle.L))
    curvature = matmul(after.gradient - before.gradient, step)
    clearly = jnp.asarray(_CLEARLY, noise.dtype) * noise * length
    known = jnp.maximum(jnp.abs(curvature), jnp.square(length)) > clearly
    return known, jnp.where(curvature < 0, step, jnp.zeros_like(step))


def saddle_direction(point: Linearization, concave: jax.Array) -> jax.Array:
    """A step downhill along which a saddle would show, or zeros; of shape `[n]`.

    Args:
        point: The point, with a triangle.
        concave: The last step that showed its curvature, if the cost bends down along it; else
            zeros.
    """
    step = jnp.where(jnp.any(concave != 0), concave, _null_vector(point))
    step = own_share(step, point.x, _OWN) * step
    return jnp.where(matmul(point.gradient, step) > 0, -step, step)


def _null_vector(point: Linearization) -> jax.Array:
    """A direction that the Jacobian doesn't see, in units of the params; zeros if there is none.

    A param without any effect has none near by either.
    """
    assert point.triangle is not None
    scale = fresh_scale(point.columns)
    _, s, Vt = jnp.linalg.svd((point.triangle.L / scale[:, None]).T)
    singular = (numerical_rank(s, point.r.size * row_parts()) < s.size) & jnp.all(point.columns > 0)
    return jnp.where(singular, Vt[-1] / scale, jnp.zeros_like(scale))


def own_share(step: jax.Array, x: jax.Array, share: float) -> jax.Array:
    """The factor at which a step changes no param by more than a share of its own size.

    A param that is zero has no size, and doesn't count; 0 if none does.
    """
    most = jnp.max(divide(jnp.abs(step), jnp.abs(x)), initial=0)
    return divide(jnp.asarray(share, x.dtype), most)
