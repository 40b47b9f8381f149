"""The damping of the next step, and the radius that says how much of it is enough."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.curves.batched._judge import LaneTrial
from fnopt.curves.batched._lanes import Lanes, Params
from fnopt.solvers import TRUST_REGION, Outcome, gain_ratio, nielsen_shrink

_LEAST_SHRINK = 0.1  # to which part damping may fall by a gain
_LESS = 0.01  # to which part it falls if it was too much by magnitudes


def next_damping(
    lanes: Lanes, trial: LaneTrial, accepted: jax.Array
) -> tuple[jax.Array, jax.Array]:
    r"""Smooth in the gain ratio, and rising ever faster while steps are refused.

    .. math:: \lambda \leftarrow \lambda \max(\tfrac1{10}, 1 - (2 \rho - 1)^3), \; \nu \leftarrow 2
        \qquad\text{or}\qquad \lambda \leftarrow \lambda \nu, \; \nu \leftarrow 2 \nu

    Reference:
        Nielsen (1999), Damping parameter in Marquardt's method, IMM-REP-1999-05.
    """
    shrunk = lanes.lam * nielsen_shrink(gain_ratio(trial.actual, trial.predicted), _LEAST_SHRINK)
    lam = jnp.where(accepted, shrunk, lanes.lam * lanes.growth)
    growth = jnp.where(accepted, jnp.full_like(lam, 2), 2 * lanes.growth)
    hold = lanes.fresh | trial.negligible
    # A gain that drowns in rounding says nothing, except that so much damping is of no use.
    one = jnp.ones_like(lanes.lam)
    tenth = jnp.asarray(_LEAST_SHRINK, lam.dtype)
    held = jnp.maximum(tenth * lanes.lam, jnp.minimum(lanes.lam, one))
    held = jnp.where(lanes.fresh, lanes.lam, held)
    return jnp.where(hold, held, lam), jnp.where(hold, lanes.growth, growth)


def next_radius(lanes: Lanes, trial: LaneTrial, accepted: jax.Array) -> jax.Array:
    """The radius within which the linear model holds, by the rule of the trust region."""
    length = jnp.sqrt(trial.length)
    outcome = Outcome(
        radius=lanes.radius,
        rejections=(lanes.growth > 2).astype(jnp.int32),
        length=length,
        slope=trial.slope,
        actual=trial.actual,
        gain=gain_ratio(trial.actual, trial.predicted),
        full=jnp.zeros_like(accepted),
        accepted=accepted,
    )
    return jnp.where(lanes.fresh | trial.negligible, lanes.radius, TRUST_REGION.next(outcome))


def enough_damping(lanes: Lanes, s: Params, before: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""The damping, unless less of it is enough to keep the step within the radius.

    .. math:: \lambda \le \|S J^T r\| / \Delta \quad\text{since}\quad
        \|(S J^T J S + \lambda I)^{-1} S J^T r\| \le \|S J^T r\| / \lambda

    The metric never forgets how steep a param once was. Where it has become flat, by magnitudes (an
    exponential whose height was the first thing to go), a damping that only falls by a tenth a
    step would hold it where it is.

    Args:
        lanes: The problems, after a trial was judged.
        s: :math:`S = D^{-1}` there.
        before: The damping of that trial.

    Returns:
        The damping, and whether it had been too much for what the trial did to show anything.
    """
    lam = lanes.lam
    square, flattest = jnp.zeros_like(lam), jnp.ones_like(lam)
    for s_i, g_i, row in zip(s, lanes.sums.g, lanes.sums.A, strict=True):
        square += jnp.square(s_i * g_i)
        size = row[-1] * jnp.square(s_i)
        flattest = jnp.where(size > 0, jnp.minimum(flattest, size), flattest)
    known = lanes.radius > 0
    most = jnp.sqrt(square) / jnp.where(known, lanes.radius, jnp.ones_like(lam))
    lam = jnp.where(known, jnp.minimum(lam, most), lam)
    # Less is no damping beside what the flattest of them counts.
    lam = jnp.maximum(lam, jnp.asarray(jnp.finfo(lam.dtype).eps, lam.dtype) * flattest)
    lam = jnp.where(lanes.fresh, lanes.lam, lam)
    return lam, (lam < jnp.asarray(_LESS, lam.dtype) * before) & (before > flattest)
