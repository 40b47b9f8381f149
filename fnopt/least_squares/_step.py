"""One step of the method on vectors: propose, then judge.

The two halves don't evaluate anything: the caller does, between them. So the driver, which keeps
the Jacobian of a point until it leaves the point, and the (init, update) pair, which trusts
nothing of the last batch, share every line of the method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.least_squares._acceleration import accelerated, geodesic_acceleration
from fnopt.least_squares._convergence import (
    cost_converged,
    first_of,
    is_stationary,
    step_converged,
)
from fnopt.least_squares._gain import (
    gain_ratio,
    is_accepted,
    is_negligible,
    predicted_reduction,
)
from fnopt.least_squares._length import newton_length, second_order_reduction
from fnopt.least_squares._options import Options
from fnopt.least_squares._point import Point, gradient_cosine
from fnopt.least_squares._radius import next_radius, shrink_factor
from fnopt.least_squares._rescue import MOST_RESCUES, is_sloping, reopened
from fnopt.least_squares._scaling import grown_scale, initial_radius, initial_scale
from fnopt.linear import SingularFactors, norm, singular_factors, trust_region_solution

_MOST_REJECTIONS = 80  # the radius shrinks at least by half each time


class Search(NamedTuple):
    """What the method remembers from step to step."""

    radius: jax.Array  # of the trust region, in scaled variables
    scale: jax.Array  # [n], D
    rejections: jax.Array  # int32, in a row
    rescues: jax.Array  # int32


class Trial(NamedTuple):
    """A proposed step."""

    step: jax.Array  # [n]
    length: jax.Array  # ||D p||
    slope: jax.Array  # g^T p
    predicted: jax.Array  # reduction of the cost, by the best model there is
    attainable: jax.Array  # reduction of the cost, by the most hopeful model
    lam: jax.Array  # damping


class Straight(NamedTuple):
    """The step of the linear model."""

    velocity: jax.Array  # [n], in scaled variables
    z: jax.Array  # [k], in the singular basis
    lam: jax.Array  # damping
    linear: jax.Array  # the promise: reduction of the cost


def begin(point: Point, options: Options) -> Search:
    """The search at a first point."""
    scale = initial_scale(point.columns)
    zero = jnp.zeros((), jnp.int32)
    return Search(initial_radius(options.radius, scale, point.x), scale, zero, zero)


def arrive(search: Search, point: Point) -> Search:
    """The search at a next point, whose Jacobian grows the scaling."""
    return search._replace(scale=grown_scale(search.scale, point.columns))


def factorise(point: Point, search: Search) -> SingularFactors:
    """The factors of the scaled Jacobian."""
    return singular_factors(point.J / search.scale, point.r)


def propose(
    point: Point,
    factors: SingularFactors,
    search: Search,
    curvature: Callable[[jax.Array], jax.Array] | None,
    options: Options,
) -> Trial:
    r"""The step that the linear model takes within the trust region, bent by its curvature.

    Args:
        point: Where the step starts.
        factors: The factors of the scaled Jacobian there.
        search: The trust region.
        curvature: `v -> r''_vv` at the point; None for a straight step.
        options: The numbers.

    Returns:
        The step and what the model says of it.
    """
    lam, z = trust_region_solution(factors, search.radius, point.r.size)
    linear = predicted_reduction(factors, z, lam)
    straight = Straight(-(factors.Vt.T @ z), z, lam, linear)
    if curvature is None:
        scaled, predicted = straight.velocity, linear
    else:
        scaled, predicted = _bent(point, factors, search, curvature, options, straight)
    step = scaled / search.scale
    attainable = jnp.maximum(linear, predicted)
    return Trial(step, norm(scaled), point.gradient @ step, predicted, attainable, lam)


def _bent(
    point: Point,
    factors: SingularFactors,
    search: Search,
    curvature: Callable[[jax.Array], jax.Array],
    options: Options,
    straight: Straight,
) -> tuple[jax.Array, jax.Array]:
    """The straight step corrected to second order (its length, its bend), and its promise."""
    velocity, z, lam, linear = straight
    v = velocity / search.scale
    bend = curvature(v)
    slope = point.gradient @ v
    exact = jnp.sum(jnp.square(factors.s * z)) + point.r @ bend
    t = newton_length(slope, exact, norm(velocity), search.radius, lam)
    half = geodesic_acceleration(factors, (bend @ point.J) / search.scale, lam)
    scaled = accelerated(velocity, half, t, options.acceleration)
    return scaled, second_order_reduction(t, slope, exact, linear)


def improves(point: Point, trial: Trial, actual: jax.Array, options: Options) -> jax.Array:
    """Whether the actual reduction of the cost is good enough to go there."""
    negligible = is_negligible(actual, trial.predicted, point.cost, options.noise)
    return is_accepted(actual, gain_ratio(actual, trial.predicted), negligible)


def judge(
    point: Point, trial: Trial, actual: jax.Array, search: Search, options: Options
) -> tuple[jax.Array, jax.Array, Search]:
    """Accepts or rejects a trial, and adapts the search.

    Args:
        point: Where the step starts.
        trial: The step.
        actual: By how much it lowers the cost; minus infinity if its end isn't finite.
        search: The search before it.
        options: The numbers.

    Returns:
        Whether it is accepted, the status, and the next search.
    """
    gain = gain_ratio(actual, trial.predicted)
    negligible = is_negligible(actual, trial.predicted, point.cost, options.noise)
    accepted = improves(point, trial, actual, options)
    shrink = shrink_factor(actual, trial.slope)
    radius = next_radius(
        search.radius, trial.length, gain, shrink, trial.lam == 0, search.rejections > 0
    )
    radius = jnp.where(negligible, search.radius, radius)
    rejections = jnp.where(accepted, jnp.zeros_like(search.rejections), search.rejections + 1)
    search = search._replace(radius=radius, rejections=rejections)
    status, search = _stop_or_rescue(point, trial, actual, search, options)
    return accepted, status, search


def _stop_or_rescue(
    point: Point, trial: Trial, actual: jax.Array, search: Search, options: Options
) -> tuple[jax.Array, Search]:
    size = norm(search.scale * point.x)
    cosine = gradient_cosine(point)
    flat = cost_converged(actual, trial.attainable, point.cost, options.ftol, options.noise)
    # A step that was refused where gains are noise would only be proposed again.
    negligible = is_negligible(actual, trial.predicted, point.cost, options.noise)
    flat = flat | (negligible & (search.rejections > 0))
    tiny = step_converged(trial.length, size, options.xtol)
    stuck = search.rejections > _MOST_REJECTIONS
    done = is_stationary(point.cost, cosine, options.gtol) | flat
    collapsed = ~done & (tiny | stuck) & is_sloping(point, cosine, options.eps)
    rescued = collapsed & (search.rescues < MOST_RESCUES)
    status = first_of(
        (is_stationary(point.cost, cosine, options.gtol), Status.CONVERGED_GRADIENT),
        (flat, Status.CONVERGED_COST),
        (rescued, Status.RUNNING),
        (collapsed & ~jnp.isfinite(actual), Status.NONFINITE_STEP),
        (collapsed, Status.STALLED),
        (tiny, Status.CONVERGED_STEP),
        (stuck, Status.STALLED),
    )
    return status, choose(rescued, _rescue(point, search), search)


def _rescue(point: Point, search: Search) -> Search:
    radius, scale = reopened(point.x, point.columns, search.rescues)
    return Search(radius, scale, jnp.zeros_like(search.rejections), search.rescues + 1)


def choose(choice: jax.Array, a: Search, b: Search) -> Search:
    """The search `a` where `choice` holds, else `b`."""
    return Search(*(jnp.where(choice, x, y) for x, y in zip(a, b, strict=True)))
