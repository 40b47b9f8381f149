"""What is found out about a claim of convergence once it is made, outside of the loop of steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import Status, is_converged
from fnopt.curves.batched._bounds import LaneBox, faced
from fnopt.curves.batched._evidence import HARDLY, SLOPING, goes_far, lost_effect
from fnopt.curves.batched._judge import least_gain
from fnopt.curves.batched._lanes import Lanes, LaneTolerances, Params
from fnopt.linear import jacobi_scale, scaled, unrolled_cholesky, unrolled_solve
from fnopt.solvers import SHARE

_ROUGH = 0.01  # of a param, by which the linear model moves it at most where a claim stands


def settled(
    lanes: Lanes,
    start: Params,
    inverse: jax.Array,
    rank: jax.Array,
    tol: LaneTolerances,
    box: LaneBox | None,
) -> jax.Array:
    r"""The status of every lane, except that some claims are none.

    A param that had an effect on the way and has none any more where it went (a decay time of
    1e12) was thrown away. The others may be stationary there, at a limit at infinity, but that is
    no solution. Nor is one behind which params went on together, their terms cancelling, or a point
    where the linear model without damping would lower the cost by a visible part, or move params
    by a visible part of what they are: there the steps were only too short.

    Args:
        lanes: The problems.
        start: Where they began.
        inverse: :math:`(J^T J)^{-1}`, of shape `[lanes, n, n]`.
        rank: How many params the data determine.
        tol: The tolerances.
        box: The bounds.

    Returns:
        An int32 array.
    """
    square, claims = lanes.sums.square, is_converged(lanes.status)
    lost = (square > 0) & (
        _any_vanished(lanes, start, rank) | _any_ran_away(lanes, start, inverse, rank)
    )
    open_ = _is_open(lanes, inverse, tol, box)
    status = jnp.where(claims & open_, Status.STALLED.array, lanes.status)
    return jnp.where(claims & lost, Status.NO_EFFECT.array, status)


def _is_open(
    lanes: Lanes, inverse: jax.Array, tol: LaneTolerances, box: LaneBox | None
) -> jax.Array:
    r"""Whether the undamped linear model has something to offer, beyond rounding.

    .. math:: -g^T p > \sigma \|r\|^2, \qquad p = -(J^T J)^{-1} g

    with a share of 1e-4, or of 1e-10 where a step goes far,

    .. math:: |p_j|\, \|J_j\| > \tfrac1{100} \max(|x_j|\, \|J_j\|, \|r\|).

    Params with hardly any effect (a peak beside all data) gain next to nothing by a step and yet
    go far, to where they have one.
    """
    square = lanes.sums.felt
    g = jnp.stack(faced(lanes.sums, lanes.x, box).g)
    p = -jnp.sum(jnp.moveaxis(inverse, 0, -1) * g, axis=1)
    gain = -jnp.sum(p * g, axis=0)
    lengths = jnp.sqrt(jnp.stack([row[-1] for row in lanes.sums.A]))
    whole = jnp.maximum(jnp.abs(jnp.stack(lanes.x)) * lengths, jnp.sqrt(square))
    far = jnp.any(jnp.abs(p) * lengths > jnp.asarray(_ROUGH, g.dtype) * whole, axis=0)
    flat = jnp.maximum(jnp.asarray(SLOPING**2, g.dtype), tol.ftol)
    share = jnp.where(far, flat, jnp.asarray(SHARE, g.dtype))
    return gain > jnp.maximum(share * square, least_gain(lanes))


def _any_vanished(lanes: Lanes, start: Params, rank: jax.Array) -> jax.Array:
    """Whether a param has lost its effect on the way.

    Where the data don't determine all of them, the others may have taken over what it did: then
    what is left of it counts as nothing, however far it has come.
    """
    columns = jnp.sqrt(jnp.stack([row[-1] for row in lanes.sums.A]))
    x = jnp.stack(lanes.x)
    reach = jnp.maximum(jnp.abs(x - jnp.stack(start)), jnp.abs(x))
    reach = jnp.where(rank < len(start), jnp.zeros_like(reach), reach)
    peak = jnp.sqrt(jnp.stack(lanes.peak))
    return jnp.any(lost_effect(columns, peak, reach, jnp.sqrt(lanes.sums.felt)), axis=0)


def _any_ran_away(lanes: Lanes, start: Params, inverse: jax.Array, rank: jax.Array) -> jax.Array:
    r"""Whether params went far along directions that the data don't determine any more.

    .. math:: |x_j| > 100\, |x_{0,j}|, \quad |d_j| > \tfrac12 |x_j|, \quad
        |x_j| < 0.01\, \|r\| \sqrt{(J^T J)^{-1}_{jj}}, \qquad
        d = S\, \mu (S A S + \mu I)^{-1} S^{-1} (x - x_0)

    The matrix is the projection on these directions, as far as rounding in `A` tells them apart;
    the last condition says nothing where the inverse has not all of them. So does
    :func:`fnopt.least_squares`, by singular vectors.
    """
    s = jacobi_scale(tuple((p,) for p in lanes.peak))
    mu = jnp.full_like(lanes.lam, 8 * len(s) * float(jnp.finfo(lanes.lam.dtype).eps))
    factor = unrolled_cholesky(scaled(lanes.sums.A, s), mu)
    moved = [(x - x0) / s_i for x, x0, s_i in zip(lanes.x, start, s, strict=True)]
    unseen = unrolled_solve(factor, moved)
    hardly = jnp.asarray(HARDLY, mu.dtype) * jnp.sqrt(lanes.sums.felt)
    any_ran = jnp.zeros(mu.shape, bool)
    for j, (x, d) in enumerate(zip(lanes.x, unseen, strict=True)):
        size = jnp.abs(x)
        loose = (rank < len(s)) | (size <= hardly * jnp.sqrt(inverse[:, j, j]))
        any_ran |= goes_far(x, start[j]) & (jnp.abs(mu * s[j] * d) > size / 2) & loose
    return any_ran
