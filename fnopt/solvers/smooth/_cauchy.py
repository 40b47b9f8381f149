"""The generalised Cauchy point: the first minimum of the model along the projected gradient."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.residuals import Box
from fnopt.solvers.smooth._compact import Compact
from fnopt.solvers.smooth._method import Point


class Cauchy(NamedTuple):
    """The point, and which params are off their bounds there."""

    x: jax.Array
    free: jax.Array


def cauchy_point(B: Compact, box: Box, point: Point) -> Cauchy:
    r"""Minimises the model along :math:`P(x - t g)`, piece by piece.

    .. math:: m'_k = -\|d_k\|^2 + \theta\, t_k \|d_k\|^2 - p_k^T M^{-1} c_k, \qquad
              m''_k = \theta \|d_k\|^2 - p_k^T M^{-1} p_k

    On the piece between the breakpoints :math:`t_k` and :math:`t_{k+1}`, where :math:`d_k` is the
    descent direction of the params that still move, :math:`p_k = W^T d_k`, and :math:`c_k = W^T
    (x(t_k) - x)`. All pieces are looked at in one pass over the sorted breakpoints, with sums from
    the far end, which don't cancel.

    Args:
        B: The matrix of the model.
        box: The bounds.
        point: Where the model is made.

    Returns:
        The Cauchy point.
    """
    x, g = point.x, point.gradient
    t, d = _breakpoints(box, x, g)
    order = jnp.argsort(t)
    t_sorted, d_sorted, W = t[order], d[order], B.W[order]
    zero = jnp.zeros((1,), t.dtype)
    start = jnp.concatenate([zero, t_sorted])  # of the pieces: [n + 1]
    end = jnp.concatenate([t_sorted, jnp.full((1,), jnp.inf, t.dtype)])
    moving = W * d_sorted[:, None]
    square = _from_the_end(jnp.square(d_sorted))
    p = _from_the_end(moving)
    stopped = jnp.where(jnp.isfinite(t_sorted), t_sorted, 0)[:, None] * moving
    still = jnp.concatenate([jnp.zeros_like(stopped[:1]), jnp.cumsum(stopped, axis=0)])
    finite_start = jnp.where(jnp.isfinite(start), start, 0)
    c = still + finite_start[:, None] * p
    inside = B.solved(jnp.stack([p, c]))
    slope = -square + B.theta * finite_start * square - jnp.sum(p * inside[1], axis=1)
    curvature = B.theta * square - jnp.sum(p * inside[0], axis=1)
    least = jnp.asarray(jnp.finfo(t.dtype).eps, t.dtype) * B.theta * square
    curvature = jnp.maximum(curvature, least)
    going = (slope < 0) & (square > 0)
    forward = jnp.where(going, -slope / jnp.where(going, curvature, jnp.ones_like(slope)), 0)
    best = finite_start + forward
    ends_here = ~going | (best <= end)
    at = best[jnp.argmax(ends_here)]
    arrived = t <= at
    bound = jnp.where(d > 0, box.upper, box.lower)
    there = jnp.where(arrived & (d != 0), bound, x + at * d)
    there = box.nearest(there)
    return Cauchy(there, (there > box.lower) & (there < box.upper))


def _breakpoints(box: Box, x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """When every param reaches its bound on the way down the gradient, and how fast it moves."""
    room = jnp.where(g < 0, box.upper - x, x - box.lower)
    moves = (g != 0) & (room > 0)
    t = jnp.where(moves, room / jnp.where(moves, jnp.abs(g), jnp.ones_like(g)), 0)
    t = jnp.where(g == 0, jnp.asarray(jnp.inf, t.dtype), t)
    return t, jnp.where(moves, -g, jnp.zeros_like(g))


def _from_the_end(rows: jax.Array) -> jax.Array:
    """Sums over rows k, k + 1, ...; the last is 0."""
    sums = lax.cumsum(rows, axis=0, reverse=True)
    return jnp.concatenate([sums, jnp.zeros_like(rows[:1])])
