"""Levenberg-Marquardt over lanes: propose a step, judge it, adapt the damping."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.curves.batched._bounds import LaneBox, bounded
from fnopt.curves.batched._judge import LaneTrial, examine, improves, status_after
from fnopt.curves.batched._lanes import Lanes, LaneTolerances, Params, choose, is_running
from fnopt.curves.batched._metric import grown, metric
from fnopt.linear import NormalEquations, scaled, unrolled_cholesky, unrolled_solve

_LEAST_SHRINK = 0.1  # to which part damping may fall in one step


def propose(lanes: Lanes, size_floor: jax.Array, box: LaneBox | None = None) -> Params:
    r"""The minimum of the damped linear model.

    .. math:: x - S z, \qquad (S J^T J S + \lambda I)\, z = S J^T r, \qquad S = D^{-1}

    In the metric `D` neither the damping nor the error of the factorisation depends on the units
    of the params.
    """
    x, sums, lam = lanes.x, lanes.sums, lanes.lam
    s = metric(x, sums, lanes.peak, size_floor)
    if box is not None:
        return bounded(x, sums, lam, s, box)
    factor = unrolled_cholesky(scaled(sums.A, s), lam)
    z = unrolled_solve(factor, [s_i * g_i for s_i, g_i in zip(s, sums.g, strict=True)])
    return tuple(x_i - s_i * z_i for x_i, s_i, z_i in zip(x, s, z, strict=True))


def advance(
    lanes: Lanes,
    new: NormalEquations,
    tol: LaneTolerances,
    most: jax.Array,
    box: LaneBox | None = None,
) -> Lanes:
    """Judges the trials by the sums there, moves, and proposes the next ones.

    A lane that is done is left as it is, bit by bit, whatever its trial was.

    Args:
        lanes: The problems.
        new: The sums at `lanes.trial`.
        tol: The tolerances.
        most: The most steps of a lane.
        box: The bounds.

    Returns:
        The problems one step later.
    """
    running = is_running(lanes.status)
    trial = examine(lanes, new, tol, box)
    accepted = once(running & jnp.where(lanes.fresh, trial.finite, improves(trial)))
    lam, growth = _next_damping(lanes, trial, accepted)
    sums = choose(accepted, new, lanes.sums)
    after = lanes._replace(
        x=choose(accepted, lanes.trial, lanes.x),
        sums=sums,
        lam=lam,
        growth=growth,
        steps=lanes.steps + (running & ~lanes.fresh).astype(jnp.int32),
        peak=choose(accepted, grown(lanes.peak, new), lanes.peak),
    )
    status = status_after(lanes, after, trial, tol, box)
    status = jnp.where(is_running(status) & (after.steps >= most), Status.MAX_STEPS.array, status)
    return after._replace(
        trial=propose(after, tol.size_floor, box),
        status=jnp.where(running, status, lanes.status),
        fresh=jnp.zeros_like(lanes.fresh),
    )


def once(condition: jax.Array) -> jax.Array:
    """A condition behind a barrier: the compiler would otherwise compute it anew for each user.

    XLA merges cheap arithmetic into everything that uses it, again and again. It never does that
    to a square root.
    """
    return jnp.sqrt(condition.astype(jnp.float32)) > 0


def _next_damping(
    lanes: Lanes, trial: LaneTrial, accepted: jax.Array
) -> tuple[jax.Array, jax.Array]:
    r"""Smooth in the gain ratio, and rising ever faster while steps are refused.

    .. math:: \lambda \leftarrow \lambda \max(\tfrac1{10}, 1 - (2 \rho - 1)^3), \; \nu \leftarrow 2
        \qquad\text{or}\qquad \lambda \leftarrow \lambda \nu, \; \nu \leftarrow 2 \nu

    Reference:
        Nielsen (1999), Damping parameter in Marquardt's method, IMM-REP-1999-05.
    """
    dtype = lanes.lam.dtype
    safe = jnp.where(trial.predicted > 0, trial.predicted, jnp.ones_like(trial.predicted))
    t = 2 * trial.actual / safe - 1
    shrunk = lanes.lam * jnp.maximum(jnp.asarray(_LEAST_SHRINK, dtype), 1 - t * t * t)
    lam = jnp.where(accepted, shrunk, lanes.lam * lanes.growth)
    growth = jnp.where(accepted, jnp.full_like(lam, 2), 2 * lanes.growth)
    hold = lanes.fresh | trial.negligible
    # A gain that drowns in rounding says nothing, except that so much damping is of no use.
    one = jnp.ones_like(lanes.lam)
    held = jnp.maximum(jnp.asarray(_LEAST_SHRINK, dtype) * lanes.lam, jnp.minimum(lanes.lam, one))
    held = jnp.where(lanes.fresh, lanes.lam, held)
    floor = jnp.asarray(jnp.finfo(dtype).eps, dtype)  # less is no damping beside a column's one
    return (
        jnp.where(hold, held, jnp.maximum(lam, floor)),
        jnp.where(hold, lanes.growth, growth),
    )
