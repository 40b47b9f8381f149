"""The trust region from step to step, and the steps that are proposed in it.

Nothing is evaluated here or in the judgement of a step: the caller does, between the two. So the
driver, which keeps the Jacobian of a point until it leaves the point, and the (init, update) pair,
which trusts nothing of the last batch, share every line of the method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import matmul, row_total
from fnopt.linear import DampedStep, System, divide, norm
from fnopt.solvers.convergence._options import Options
from fnopt.solvers.model._curvature import no_curvature
from fnopt.solvers.model._linearization import Linearization
from fnopt.solvers.model._own_curvature import no_own_curvature
from fnopt.solvers.model._scaling import (
    grown_scale,
    initial_scale,
    sized_scale,
    with_size_floor,
)
from fnopt.solvers.trust_region._acceleration import accelerated, geodesic_acceleration
from fnopt.solvers.trust_region._length import newton_length, second_order_reduction
from fnopt.solvers.trust_region._rules import RadiusRule


class TrustRegionState(NamedTuple):
    """The state of the trust region, from step to step."""

    radius: jax.Array  # the radius of a step: of the trust region, in scaled variables, if any
    steepest: jax.Array  # [n], the largest norms of the Jacobian's columns so far
    scale: jax.Array  # [n], D
    rejections: jax.Array  # int32, in a row
    restarts: jax.Array  # int32
    lam: jax.Array  # the damping of the last step, a guess of the next one's
    rows: jax.Array  # [k, n], W: curvature that the linear model leaves out; k = 0 for none
    idle: jax.Array  # int32, accepted steps in a row that gained no more than rounding
    own: jax.Array  # [2, n]: curvature of each param, as learned and as used; [0, n] for none


class Trial(NamedTuple):
    """A proposed step."""

    step: jax.Array  # [n]
    length: jax.Array  # ||D p||
    slope: jax.Array  # g^T p
    predicted: jax.Array  # reduction of the cost, by the best model there is
    attainable: jax.Array  # reduction of the cost, by the most hopeful model
    lam: jax.Array  # damping
    excess: jax.Array  # curvature of the residuals along the step over the linear model's
    seconds: jax.Array  # int32, second derivatives that were taken
    edge: jax.Array  # where the region is found to end; infinite if that isn't known


def begin(
    point: Linearization,
    options: Options,
    rule: RadiusRule,
    memory: int = 0,
    learns_own: bool = False,
) -> TrustRegionState:
    """The state at a first point; it remembers `memory` rows of curvature."""
    steepest = initial_scale(point.columns)
    zero = jnp.zeros((), jnp.int32)
    radius = rule.first(options.radius, steepest, point.x, point.cost)
    rows = no_curvature(memory, point.x)
    scale = _scale(steepest, point, options)
    own = no_own_curvature(learns_own, point.x)
    none = jnp.zeros_like(radius)
    return TrustRegionState(radius, steepest, scale, zero, zero, none, rows, zero, own)


def arrive(search: TrustRegionState, point: Linearization, options: Options) -> TrustRegionState:
    """The state at a next point, whose Jacobian grows the scaling."""
    steepest = grown_scale(search.steepest, point.columns)
    return search._replace(steepest=steepest, scale=_scale(steepest, point, options))


def _scale(steepest: jax.Array, point: Linearization, options: Options) -> jax.Array:
    """The scaling, with a size floor where steps follow each other and few params are enough."""
    return with_size_floor(steepest, point) if options.sized else steepest


def straight(point: Linearization, search: TrustRegionState, step: DampedStep) -> Trial:
    """A step of the linear model as it is."""
    p = step.p / search.scale
    return Trial(
        step=p,
        length=norm(step.p),
        slope=matmul(point.gradient, p),
        predicted=step.predicted,
        attainable=step.predicted,
        lam=step.lam,
        excess=jnp.zeros_like(step.lam),
        seconds=jnp.zeros((), jnp.int32),
        edge=jnp.full_like(step.lam, jnp.inf),
    )


def bent(
    point: Linearization,
    system: System,
    search: TrustRegionState,
    curvature: Callable[[jax.Array], jax.Array],
    options: Options,
    step: DampedStep,
) -> Trial:
    """A step of the linear model corrected to second order: its length and its direction.

    Args:
        point: Where the step starts.
        system: The linear model there, in scaled variables.
        search: The trust region.
        curvature: `v -> r''_vv` at the point.
        options: The numbers.
        step: The step of the linear model.

    Returns:
        The step and what the second-order model says of it.
    """
    v = step.p / search.scale
    second_derivative = curvature(v)
    slope = matmul(point.gradient, v)
    rest = row_total(matmul(point.r, second_derivative))
    exact = step.model_norm + rest
    t = newton_length(slope, exact, norm(step.p), search.radius, step.lam)
    half = geodesic_acceleration(system, second_derivative, step)
    scaled = accelerated(step.p, half, t, options.acceleration)
    predicted = second_order_reduction(t, slope, exact, step.predicted)
    p = scaled / search.scale
    attainable = jnp.maximum(step.predicted, predicted)
    excess = divide(rest, step.model_norm)
    return Trial(
        step=p,
        length=norm(search.scale * p),
        slope=matmul(point.gradient, p),
        predicted=predicted,
        attainable=attainable,
        lam=step.lam,
        excess=excess,
        seconds=jnp.ones((), jnp.int32),
        edge=jnp.full_like(step.lam, jnp.inf),
    )


def turning(trial: Trial, step: DampedStep) -> Trial:
    r"""A bent step at the edge of the region, from which the region learns its size.

    A damped step that is cut short along its direction tells that the region is too large, and so
    that the direction, which depends on its size, isn't the right one. Its end is the new edge, and
    its gain is measured against the linear model that chose the direction. Otherwise the region
    stays as it is, step after step is cut short in it, and the search ends in other basins.

    Args:
        trial: The bent step.
        step: The step of the linear model.
    """
    damped = step.lam > 0
    edge = jnp.where(damped, trial.length, trial.edge)
    predicted = jnp.where(damped, step.predicted, trial.predicted)
    return trial._replace(predicted=predicted, edge=edge)


def restart(
    point: Linearization, search: TrustRegionState, options: Options, rule: RadiusRule
) -> TrustRegionState:
    """The state begun again, without what it remembers of other points."""
    steepest = sized_scale(point)
    scale = _scale(steepest, point, options)
    radius = rule.reopened(options.radius, scale, point.x, search.restarts)
    none = jnp.zeros_like(search.rejections)
    lam, rows = jnp.zeros_like(radius), jnp.zeros_like(search.rows)
    own = jnp.zeros_like(search.own)
    restarts = search.restarts + 1
    return TrustRegionState(radius, steepest, scale, none, restarts, lam, rows, none, own)


def choose(choice: jax.Array, a: TrustRegionState, b: TrustRegionState) -> TrustRegionState:
    """The state `a` where `choice` holds, else `b`."""
    return TrustRegionState(*(jnp.where(choice, x, y) for x, y in zip(a, b, strict=True)))
