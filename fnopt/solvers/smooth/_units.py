"""Units in which a problem is of the order of 1, and what the way says of them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import power_of_two
from fnopt.residuals import Box
from fnopt.solvers.smooth._method import Evaluation, MinimizeMethod, SmoothObjective, unit_of


class Units(NamedTuple):
    """Powers of two that bring params and gradient to the order of 1: nothing is rounded."""

    x: jax.Array  # of every param, [n], or of all
    value: jax.Array
    gradient: jax.Array  # what a gradient of 1 is to the user, or to params far from 1
    reach: jax.Array  # how far a param may go in its own unit, before that is the common one

    def scaled(self, problem: SmoothObjective) -> SmoothObjective:
        """The problem in these units."""
        f, project, box = problem.f, problem.projection, problem.box
        return problem._replace(
            f=lambda u: f(u * self.x) / self.value,
            box=None if box is None else Box(box.lower / self.x, box.upper / self.x),
            projection=None if project is None else lambda u: project(u * self.x) / self.x,
        )

    def of(self, point: Evaluation) -> Evaluation:
        """A point in these units."""
        slope = self.of_gradient(point.gradient)
        return Evaluation(point.x / self.x, point.value / self.value, slope)

    def back(self, point: Evaluation) -> Evaluation:
        """A point in the user's units."""
        slope = self.gradient_back(point.gradient)
        return Evaluation(point.x * self.x, point.value * self.value, slope)

    def of_gradient(self, g: jax.Array) -> jax.Array:
        """A gradient in these units."""
        scaled = g * self.x / self.value
        # Where one factor would leave the range, do it in two.
        return jnp.where(jnp.isfinite(scaled), scaled, (g / self.value) * self.x)

    def gradient_back(self, g: jax.Array) -> jax.Array:
        """A gradient in the user's units."""
        return g * (self.value / self.x)


# Within these the user's own units are taken for sensible ones. A larger gradient does no harm, as
# first steps are cut to length 1; after a smaller one they would be lost in rounding.
_OF_PARAMS = 2.0**-10, 2.0**10
_OF_GRADIENTS = 2.0**-10, 2.0**30


def units_of(
    method: MinimizeMethod, problem: SmoothObjective, x: jax.Array, point: Evaluation
) -> Units:
    """Units in which the start and the gradient there are of the order of 1."""
    one = jnp.ones((), x.dtype)
    each = jnp.ones_like(x)
    if not method.scale_free:
        return Units(each, one, one, each)
    size, steep = unit_of(x), unit_of(point.gradient)
    common = _beyond(_OF_PARAMS, size) if method.trusts_units else size
    own = common / size
    if problem.projection is None:  # which has to know all distances
        own = _own_units(x / size, point.gradient / steep, own)
    value = size * (steep * unit_of(own * (point.gradient / steep)))
    if method.trusts_units:
        value = _beyond(_OF_GRADIENTS, value)
    tiny = jnp.asarray(jnp.finfo(x.dtype).tiny, x.dtype)
    small = unit_of(point.value) * jnp.asarray(2.0**-40, x.dtype)
    value = jnp.clip(jnp.maximum(value, small), tiny, 1 / tiny)
    ordinary = _beyond(_OF_PARAMS, common) == 1
    slope = value / jnp.where(ordinary, common, one)
    own = size * own * each
    return Units(own, value, slope, common / own)


def units_of_the_way(steepest: jax.Array, fall: jax.Array, before: Units) -> Units:
    """Units in which the largest slope along each param so far would have gained the whole fall.

    Args:
        steepest: The largest magnitude of each entry of the gradient.
        fall: How much the value fell, or what is left of it, if that is more.
        before: The units so far, for params without a slope.
    """
    info = jnp.finfo(steepest.dtype)
    tiny = jnp.asarray(info.tiny, steepest.dtype)
    sloping = steepest > 0
    own = fall / jnp.where(sloping, steepest, jnp.ones_like(steepest))
    own = jnp.where(sloping, power_of_two(jnp.clip(own, tiny, 1 / tiny)), before.x)
    value = power_of_two(fall)
    return Units(own, value, value, jnp.ones_like(own))


def _own_units(x: jax.Array, g: jax.Array, common: jax.Array) -> jax.Array:
    r"""A unit by entry for params of very different units, the common one for all others.

    .. math:: d_i = \max_j |g_j x_j| \,/\, |g_i|

    So far a param would go if it had to change the value as much as the one that matters most does
    by a change of its own size. A param may be small because it is nearly zero; it has a small unit
    only where its gradient is large to the same degree.

    Args:
        x: The start, of the order of 1.
        g: The gradient there, of the order of 1.
        common: The common unit.
    """
    most = jnp.max(jnp.abs(g * x), initial=0)
    far = jnp.abs(g) * jnp.asarray(_OF_PARAMS[0], x.dtype) > most
    own = most / jnp.where(far, jnp.abs(g), jnp.ones_like(g))
    return jnp.where(far & (most > 0), power_of_two(own), common)


def _beyond(ordinary: tuple[float, float], unit: jax.Array) -> jax.Array:
    """A unit, or 1 instead of an ordinary one."""
    low, high = (jnp.asarray(side, unit.dtype) for side in ordinary)
    return jnp.where((unit >= low) & (unit <= high), jnp.ones_like(unit), unit)
