"""Levenberg-Marquardt over lanes: propose a step, judge it, adapt the damping."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.curves.batched._bounds import LaneBox, bounded
from fnopt.curves.batched._damping import enough_damping, next_damping, next_radius
from fnopt.curves.batched._judge import examine, improves, status_after
from fnopt.curves.batched._lanes import Lanes, LaneTolerances, Params, choose, is_running
from fnopt.curves.batched._metric import grown, metric
from fnopt.linear import NormalEquations, scaled, unrolled_cholesky, unrolled_solve


def propose(lanes: Lanes, s: Params, box: LaneBox | None = None) -> Params:
    r"""The minimum of the damped linear model.

    .. math:: x - S z, \qquad (S J^T J S + \lambda I)\, z = S J^T r, \qquad S = D^{-1}

    In the metric `D` neither the damping nor the error of the factorisation depends on the units
    of the params.
    """
    x, sums, lam = lanes.x, lanes.sums, lanes.lam
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
    lam, growth = next_damping(lanes, trial, accepted)
    after = lanes._replace(
        x=choose(accepted, lanes.trial, lanes.x),
        sums=choose(accepted, new, lanes.sums),
        lam=lam,
        growth=growth,
        radius=next_radius(lanes, trial, accepted),
        steps=lanes.steps + (running & ~lanes.fresh).astype(jnp.int32),
        peak=choose(accepted, grown(lanes.peak, new), lanes.peak),
    )
    s = metric(after.x, after.sums, after.peak, tol.size_floor)
    lam, short = enough_damping(after, s, lanes.lam)
    lam, radius = choose(running, (lam, after.radius), (lanes.lam, lanes.radius))
    after = after._replace(lam=lam, radius=radius)
    status = status_after(lanes, after, trial, short, tol, box)
    status = jnp.where(is_running(status) & (after.steps >= most), Status.MAX_STEPS.array, status)
    return after._replace(
        trial=propose(after, s, box),
        status=jnp.where(running, status, lanes.status),
        fresh=jnp.zeros_like(lanes.fresh),
    )


def once(condition: jax.Array) -> jax.Array:
    """A condition behind a barrier: the compiler would otherwise compute it anew for each user.

    XLA merges cheap arithmetic into everything that uses it, again and again. It never does that
    to a square root.
    """
    return jnp.sqrt(condition.astype(jnp.float32)) > 0
