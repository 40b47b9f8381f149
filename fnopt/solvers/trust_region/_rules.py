"""The rules by which a radius adapts: the trust region, a damping, a fraction of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.solvers.model._scaling import initial_radius
from fnopt.solvers.trust_region._restart import reopened_radius


class Outcome(NamedTuple):
    """The outcome of a step, as a rule sees it."""

    radius: jax.Array  # before the step
    edge: jax.Array  # of the trust region, as the step found it; infinite if it didn't
    rejections: jax.Array  # int32, refused steps in a row before it
    length: jax.Array  # ||D p||
    slope: jax.Array  # g^T p
    actual: jax.Array  # reduction of the cost
    gain: jax.Array  # actual over predicted
    full: jax.Array  # whether the step was undamped
    accepted: jax.Array


class RadiusRule(NamedTuple):
    """The radius is that of the region, the inverse of a damping, or a fraction of the full step.

    Whatever it is, it shrinks at least by half with every refused step; so every rule ends.
    """

    first: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
    """At the start: (option, scale, x, cost)."""
    next: Callable[[Outcome], jax.Array]
    reopened: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
    """After a restart: (option, scale, x, number of restarts)."""


def _shrink_factor(actual: jax.Array, slope: jax.Array) -> jax.Array:
    r"""The minimum of the parabola through the known values and slope, within [0.1, 0.5].

    Along the step, the cost starts with the slope :math:`g^T p` and ends :math:`-\delta f` lower;
    the parabola through these has its minimum at

    .. math:: \mu = \frac{\tfrac12 g^T p}{g^T p + \delta f}.

    Reference:
        Moré (1978), section 7; Dennis and Schnabel (1983), section 6.3.2.
    """
    dtype = actual.dtype
    half, low = jnp.asarray(0.5, dtype), jnp.asarray(0.1, dtype)
    tiny = jnp.asarray(jnp.finfo(dtype).tiny, dtype)
    mu = half * slope / jnp.minimum(slope + actual, -tiny)
    mu = jnp.where(jnp.isfinite(mu), jnp.clip(mu, low, half), low)
    return jnp.where(actual >= 0, half, mu)


def _next_radius(
    radius: jax.Array,
    length: jax.Array,
    gain: jax.Array,
    shrink: jax.Array,
    newton: jax.Array,
    refused: jax.Array,
) -> jax.Array:
    r"""Shrinks after a poor step, grows after a good one.

    .. math:: \Delta \leftarrow \begin{cases}
        \mu \min(\Delta, 10 \|D p\|) & \rho < 0.25 \\
        \max(\Delta, 2 \|D p\|) & \rho > 0.75 \text{ or } \lambda = 0 \\
        \Delta & \text{otherwise, and right after a refused step} \end{cases}

    Args:
        radius: The radius now.
        length: The length of the step, :math:`\|D p\|`.
        gain: The gain ratio.
        shrink: The factor :math:`\mu`.
        newton: Whether the step was undamped.
        refused: Whether the step before it was refused. The radius was too large then, so it
            doesn't grow back at once: else every second step of a crawl in a valley is refused.

    Returns:
        The next radius.
    """
    dtype = radius.dtype
    # A radius far beyond the step didn't limit it: shrinking that alone would repeat the same step.
    smaller = shrink * jnp.minimum(radius, jnp.asarray(10, dtype) * length)
    larger = jnp.maximum(radius, jnp.asarray(2, dtype) * length)
    good = ((gain > jnp.asarray(0.75, dtype)) | newton) & ~refused
    kept = jnp.where(good, larger, radius)
    return jnp.where(gain < jnp.asarray(0.25, dtype), smaller, kept)


def _trust_region(outcome: Outcome) -> jax.Array:
    shrink = _shrink_factor(outcome.actual, outcome.slope)
    return _next_radius(
        jnp.minimum(outcome.radius, outcome.edge),
        outcome.length,
        outcome.gain,
        shrink,
        outcome.full,
        outcome.rejections > 0,
    )


def _marquardt(outcome: Outcome) -> jax.Array:
    r"""Ten times less damping after a step that is accepted, ten times more after a refused one.

    Reference:
        Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters.
    """
    ten = jnp.asarray(10, outcome.radius.dtype)
    return _bounded(jnp.where(outcome.accepted, outcome.radius * ten, outcome.radius / ten))


def _nielsen(outcome: Outcome) -> jax.Array:
    r"""Damping by how well the model predicted, without a jump between good and poor.

    .. math:: \lambda \leftarrow \lambda \max(\tfrac13, 1 - (2 \rho - 1)^3)
        \text{ if accepted, else } \lambda \leftarrow \nu \lambda \text{ with }
        \nu = 2, 4, 8, \ldots

    Reference:
        Nielsen (1999), Damping parameter in Marquardt's method; Madsen, Nielsen and Tingleff
        (2004), Methods for non-linear least squares problems, section 3.2.
    """
    dtype = outcome.radius.dtype
    good = nielsen_shrink(outcome.gain, 1 / 3)
    nu = jnp.asarray(2, dtype) ** (1 + outcome.rejections).astype(dtype)
    return _bounded(outcome.radius / jnp.where(outcome.accepted, good, nu))


def nielsen_shrink(gain: jax.Array, least: float) -> jax.Array:
    r"""What is left of a damping after an accepted step.

    .. math:: \max(\nu, 1 - (2 \rho - 1)^3)

    Args:
        gain: The gain ratio :math:`\rho`.
        least: :math:`\nu`.
    """
    t = 2 * jnp.clip(gain, 0, 1) - 1
    return jnp.maximum(jnp.asarray(least, gain.dtype), 1 - t * t * t)


def _bounded(radius: jax.Array) -> jax.Array:
    """Damping within what rounding can tell from none, and what can be inverted."""
    limits = jnp.finfo(radius.dtype)
    least = jnp.asarray(8 * limits.tiny, radius.dtype)
    return jnp.clip(radius, least, jnp.asarray(1 / limits.eps, radius.dtype))


def _fraction(outcome: Outcome) -> jax.Array:
    """The whole step again after one that is accepted, a part of it after a refused one."""
    shrink = _shrink_factor(outcome.actual, outcome.slope)
    one = jnp.ones_like(outcome.radius)
    return jnp.where(outcome.accepted, one, shrink * outcome.radius)


def _given(option: jax.Array, *_: jax.Array) -> jax.Array:
    return option


TRUST_REGION = RadiusRule(initial_radius, _trust_region, reopened_radius)
MARQUARDT = RadiusRule(_given, _marquardt, _given)
NIELSEN = RadiusRule(_given, _nielsen, _given)
FRACTION = RadiusRule(_given, _fraction, _given)
