"""The rules by which a radius adapts: the trust region, a damping, a fraction of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.solvers._radius import next_radius, shrink_factor
from fnopt.solvers._restart import reopened_radius
from fnopt.solvers._scaling import initial_radius


class Outcome(NamedTuple):
    """The outcome of a step, as a rule sees it."""

    radius: jax.Array  # before the step
    rejections: jax.Array  # int32, refused steps in a row before it
    length: jax.Array  # ||D p||
    slope: jax.Array  # g^T p
    actual: jax.Array  # reduction of the cost
    gain: jax.Array  # actual over predicted
    full: jax.Array  # whether the step was undamped
    accepted: jax.Array


class Rule(NamedTuple):
    """The radius is that of the region, the inverse of a damping, or a fraction of the full step.

    Whatever it is, it shrinks at least by half with every refused step; so every rule ends.
    """

    first: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
    """At the start: (option, scale, x, cost)."""
    next: Callable[[Outcome], jax.Array]
    reopened: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
    """After a restart: (option, scale, x, number of restarts)."""


def _trust_region(outcome: Outcome) -> jax.Array:
    shrink = shrink_factor(outcome.actual, outcome.slope)
    return next_radius(
        outcome.radius, outcome.length, outcome.gain, shrink, outcome.full, outcome.rejections > 0
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
    third, two = jnp.asarray(1 / 3, dtype), jnp.asarray(2, dtype)
    rho = jnp.clip(outcome.gain, 0, 1)
    good = jnp.maximum(third, 1 - (2 * rho - 1) ** 3)
    nu = two ** (1 + outcome.rejections).astype(dtype)
    return _bounded(outcome.radius / jnp.where(outcome.accepted, good, nu))


def _bounded(radius: jax.Array) -> jax.Array:
    """Damping within what rounding can tell from none, and what can be inverted."""
    limits = jnp.finfo(radius.dtype)
    least = jnp.asarray(8 * limits.tiny, radius.dtype)
    return jnp.clip(radius, least, jnp.asarray(1 / limits.eps, radius.dtype))


def _fraction(outcome: Outcome) -> jax.Array:
    """The whole step again after one that is accepted, a part of it after a refused one."""
    shrink = shrink_factor(outcome.actual, outcome.slope)
    one = jnp.ones_like(outcome.radius)
    return jnp.where(outcome.accepted, one, shrink * outcome.radius)


def _given(option: jax.Array, *_: jax.Array) -> jax.Array:
    return option


TRUST_REGION = Rule(initial_radius, _trust_region, reopened_radius)
MARQUARDT = Rule(_given, _marquardt, _given)
NIELSEN = Rule(_given, _nielsen, _given)
FRACTION = Rule(_given, _fraction, _given)
