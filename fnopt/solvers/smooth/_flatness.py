"""How small a gradient is, beside all that it may be small beside."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.solvers.smooth._method import Evaluation
from fnopt.solvers.smooth._progress import Sizes
from fnopt.solvers.smooth._tolerances import StoppingTolerances

_GENTLE = 1e-2  # of the value: what all of a param would change it by, at the slope of a minimum
_STEEP = 0.1  # the same, where rounding may be what a search fails by
_AFAR = 1e-3  # the same for both, where params went so far that the value may fall for ever: a log


def largest(v: jax.Array) -> jax.Array:
    """The largest magnitude of a vector; 0 for an empty one."""
    return jnp.max(jnp.abs(v), initial=0)


def reference(point: Evaluation, steepest: jax.Array, promising: Any = False) -> jax.Array:
    r"""The size of a gradient that matters: the largest so far, or :math:`|f| / \|x\|_\infty`.

    The latter not while the next step promises more than nothing: on a long way the params are
    no measure of what is to come.
    """
    size = jnp.where(promising, jnp.zeros_like(steepest), largest(point.x))
    typical = jnp.abs(point.value) / jnp.where(size > 0, size, jnp.ones_like(size))
    return jnp.maximum(steepest, jnp.where(size > 0, typical, jnp.zeros_like(typical)))


def is_stationary(
    pull: jax.Array, scale: jax.Array, one: jax.Array, tol: StoppingTolerances
) -> jax.Array:
    r"""Whether the gradient is small: to the user, if he said what that is, else for this problem.

    .. math:: \|g\|_\infty \le \epsilon_g\, o, \qquad\text{by default also}\quad
              \|g\|_\infty \le \epsilon_g\, G

    with the unit of the value, :math:`o`, and the size of a gradient that matters, :math:`G`. A
    gradient that is small only because the params have large units passes the first test, not the
    second.
    """
    gnorm, small = largest(pull), largest(pull * tol.unit) <= tol.gtol * one
    if not tol.given:
        small &= gnorm <= tol.gtol * scale
    return small | (gnorm <= 0)


def starts_stationary(point: Evaluation, pull: jax.Array, tol: StoppingTolerances) -> jax.Array:
    """Whether nothing is to be done: a gradient that is tiny beside the value over the params.

    Smaller than it has to be on the way: nothing else is known yet of the problem's units.
    """
    tiny = jnp.asarray(max(1e-8, 10 * float(jnp.finfo(pull.dtype).eps)), pull.dtype)
    scale = reference(point, jnp.zeros_like(point.value)) * (tiny / tol.gtol)
    return is_stationary(pull, scale, jnp.ones_like(scale), tol)


def is_steep(pull: jax.Array, point: Evaluation, part: Any = _STEEP) -> jax.Array:
    """Whether all of a param would change the value by so much that no rounding explains it."""
    return largest(pull * point.x) > part * jnp.abs(point.value)


class Flatness(NamedTuple):
    """How small a gradient is."""

    small: jax.Array  # to the user
    tiny: jax.Array  # that, or beside the largest on the way
    beside_the_value: jax.Array
    stationary: jax.Array
    gentle: jax.Array  # whether the params, changed by a part, would change the value by less
    steep: jax.Array  # whether by so much more that no rounding explains it


def flatness_of(
    point: Evaluation,
    pull: jax.Array,
    steepest: jax.Array,
    promising: jax.Array,
    sizes: Sizes,
    tol: StoppingTolerances,
) -> Flatness:
    """Compares a gradient with all that it may be small beside."""
    felt = tol.felt(pull, point.x)
    scale = reference(point, steepest, promising)
    gnorm, absolute = largest(felt), largest(felt * tol.unit)
    loose = jnp.clip(jnp.asarray(1e-3, gnorm.dtype), tol.gtol, 100 * tol.gtol)
    below = gnorm <= loose * scale
    small = below & (absolute <= loose * sizes.share)
    tiny = below & (small | (gnorm <= tol.strict * steepest))
    beside = below & (absolute <= loose * sizes.value * tol.worth)
    afar = largest(point.x) > 1 / float(jnp.finfo(pull.dtype).eps)

    def is_steeper(part: float) -> jax.Array:
        least = jnp.where(afar, _AFAR, part).astype(pull.dtype)
        return ~sizes.surely & is_steep(pull, point, least)

    stationary = is_stationary(felt, scale, sizes.share, tol)
    return Flatness(small, tiny, beside, stationary, ~is_steeper(_GENTLE), is_steeper(_STEEP))
