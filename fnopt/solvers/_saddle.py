r"""Directions along which the cost may fall although it is level: those of a saddle.

The linear model knows no negative curvature: at a saddle it has nothing to offer, as at a minimum.
Symmetric starts (two equal terms of a sum) slide along a ridge to one. Its signs cost nothing: the
curvature of the cost along the last step that showed any was negative, or not that of the linear
model; or the Jacobian is singular, so that only the residuals' own curvature decides. One
direction is tried, which need not be the one along which a saddle falls.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import matmul, row_parts
from fnopt.linear import divide, norm, numerical_rank
from fnopt.solvers._linearization import Linearization
from fnopt.solvers._scaling import fresh_scale

_CLEARLY = 3.0  # times the rounding of the residuals
_PART = 0.3  # of the curvature that the linear model explains
_OWN = 0.1  # of the size of a param, by which it changes at most


class Bend(NamedTuple):
    """The curvature of the cost along the last step that showed any."""

    step: jax.Array  # [n], if the cost bends down along it, else zeros
    unexplained: jax.Array  # whether it isn't that of the linear model


def no_bend(x: jax.Array) -> Bend:
    """No step yet."""
    return Bend(jnp.zeros_like(x), jnp.zeros((), bool))


def bend(
    before: Linearization, after: Linearization, step: jax.Array, noise: jax.Array
) -> tuple[jax.Array, Bend]:
    r"""Whether a step shows the curvature along it, and what that is.

    .. math:: C = s^T (g_+ - g) \approx \|J s\|^2 + s^T S s

    with the curvature `S` that the linear model leaves out. It shows if it is more than what the
    rounding :math:`\rho` of the residuals explains, some :math:`\rho \|J s\|`.

    Args:
        before: The point where the step starts, with a triangle.
        after: The point where it ends.
        step: `s`, of shape `[n]`.
        noise: :math:`\rho`.
    """
    assert before.triangle is not None
    length = norm(matmul(step, before.triangle.L))
    curvature = matmul(after.gradient - before.gradient, step)
    clearly = jnp.asarray(_CLEARLY, noise.dtype) * noise * length
    rest = jnp.abs(curvature - jnp.square(length))
    part = jnp.asarray(_PART, noise.dtype) * jnp.square(length)
    down = jnp.where(curvature < 0, step, jnp.zeros_like(step))
    known = jnp.maximum(jnp.abs(curvature), jnp.square(length)) > clearly
    return known, Bend(down, (rest > part) & (rest > clearly))


def saddle_direction(point: Linearization, seen: Bend) -> jax.Array:
    """A step downhill along which a saddle would show, or zeros; of shape `[n]`.

    Args:
        point: The point, with a triangle.
        seen: The curvature along the last step.
    """
    weakest = _weakest(point, seen.unexplained)
    step = jnp.where(jnp.any(seen.step != 0), seen.step, weakest)
    step = own_share(step, point.x, _OWN) * step
    return jnp.where(matmul(point.gradient, step) > 0, -step, step)


def _weakest(point: Linearization, doubtful: jax.Array) -> jax.Array:
    """The direction that moves the residuals least, in units of the params.

    Zeros, where that is enough for the linear model to decide; and where a param has no effect at
    all, which it doesn't have near by either.
    """
    assert point.triangle is not None
    scale = fresh_scale(point.columns)
    _, s, Vt = jnp.linalg.svd((point.triangle.L / scale[:, None]).T)
    weak = doubtful | (numerical_rank(s, point.r.size * row_parts()) < s.size)
    weak &= jnp.all(point.columns > 0)
    return jnp.where(weak, Vt[-1] / scale, jnp.zeros_like(scale))


def own_share(step: jax.Array, x: jax.Array, share: float) -> jax.Array:
    """The factor at which a step changes no param by more than a share of its own size.

    A param that is zero has no size, and doesn't count; 0 if none does.
    """
    most = jnp.max(divide(jnp.abs(step), jnp.abs(x)), initial=0)
    return divide(jnp.asarray(share, x.dtype), most)
