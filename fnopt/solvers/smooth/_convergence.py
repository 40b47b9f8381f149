"""Convergence tests of `minimize`, and the statuses that follow from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.solvers._convergence import first_of
from fnopt.solvers.smooth._method import FAILED, MOVED, Aim, Point

_FLAT_STEPS = 3  # in a row, where the gradient is small only beside the value


class StoppingTolerances(NamedTuple):
    """Numbers to stop at, and the units that the iteration works in."""

    ftol: jax.Array  # of the value
    least: jax.Array  # of a value of 1, where the value itself is smaller
    xtol: jax.Array
    gtol: jax.Array
    unit: jax.Array  # what a gradient of 1 is to the user
    worth: jax.Array  # what a value of 1 is to the user


def tolerances(
    dtype: Any, eps: float, ftol: Any, xtol: Any, gtol: Any, unit: jax.Array, worth: jax.Array
) -> StoppingTolerances:
    """The tolerances as arrays, with the defaults filled in."""

    def number(x: Any, default: float) -> jax.Array:
        return jnp.asarray(default if x is None else x, dtype)

    return StoppingTolerances(
        number(ftol, max(2.2e-9, 16 * eps)),
        number(ftol, 2.2e-9),
        number(xtol, 4 * eps),
        number(gtol, max(1e-5, eps**0.5)),
        unit,
        worth,
    )


def largest(v: jax.Array) -> jax.Array:
    """The largest magnitude of a vector; 0 for an empty one."""
    return jnp.max(jnp.abs(v), initial=0)


def reference(point: Point, steepest: jax.Array) -> jax.Array:
    r"""The size of a gradient that matters: the largest so far, or :math:`|f| / \|x\|_\infty`."""
    size = largest(point.x)
    typical = jnp.abs(point.value) / jnp.where(size > 0, size, jnp.ones_like(size))
    return jnp.maximum(steepest, jnp.where(size > 0, typical, jnp.zeros_like(typical)))


def is_stationary(pull: jax.Array, scale: jax.Array, tol: StoppingTolerances) -> jax.Array:
    r"""Whether the gradient is small, to the user and for this problem.

    .. math:: \|g\|_\infty \le \epsilon_g \quad\text{and}\quad \|g\|_\infty \le \epsilon_g\, G

    with the size of a gradient that matters, :math:`G`. A gradient that is small only because the
    params or the function have large units passes the first test, not the second.
    """
    return (pull <= 0) | ((pull * tol.unit <= tol.gtol) & (pull <= tol.gtol * scale))


def judged(
    verdict: jax.Array,
    before: Point,
    after: Point,
    aim: Aim,
    pull: jax.Array,
    scale: jax.Array,
    first: jax.Array,
    flat_steps: jax.Array,
    tol: StoppingTolerances,
) -> tuple[jax.Array, jax.Array]:
    r"""The status after an evaluation, and how many steps in a row were flat.

    Small, of a value, is :math:`\epsilon_f \max(|f|, \min(1, f_0 - f))`, with 2.2e-9 for
    :math:`\epsilon_f` of the second if nothing was given. However little is predicted
    and gained, with a large gradient nothing is claimed: it may be a flat place of a valley. Not
    large is one that is small to the user, or a tiny part of the largest on the way; or one that
    is small beside the value, if three steps in a row gain so little: a large offset of the value
    hides what one of them gains.
    """
    moved, failed = verdict == MOVED, verdict == FAILED
    value = jnp.abs(after.value)
    unseen = jnp.minimum(1 / tol.worth, first - after.value)
    fine = jnp.maximum(tol.ftol * value, tol.least * unseen)
    loose = jnp.clip(jnp.asarray(1e-3, pull.dtype), tol.gtol, 100 * tol.gtol)
    strict = jnp.minimum(0.1 * tol.gtol, 1e-5)
    small = (pull * tol.unit <= loose) | (pull <= strict * scale)
    small_for_the_value = pull * tol.unit <= loose * value * tol.worth
    gentle = (pull <= loose * scale) & (small | small_for_the_value)
    unpromising = (aim.predicted <= fine) & gentle
    gained = before.value - after.value
    is_flat = unpromising & (gained <= fine)
    count = jnp.where(is_flat, flat_steps + 1, jnp.zeros_like(flat_steps))
    flat_steps = jnp.where(moved, count, flat_steps)
    flat = moved & is_flat & (small | (flat_steps >= _FLAT_STEPS))
    rest = jnp.all(jnp.abs(aim.step) <= tol.xtol * jnp.abs(after.x)) & gentle
    status = first_of(
        ((moved | failed) & is_stationary(pull, scale, tol), Status.CONVERGED_GRADIENT),
        (flat | (failed & unpromising), Status.CONVERGED_COST),
        ((moved | failed) & rest, Status.CONVERGED_STEP),
        (failed, Status.STALLED),
    )
    return status, flat_steps
