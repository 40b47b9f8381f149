"""The interface of the methods: each asks for an evaluation, and plans by its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Value, power_of_two
from fnopt.linear import norm
from fnopt.residuals import Box, value_and_slope


class Evaluation(NamedTuple):
    """A point, with the value and the gradient of the function there."""

    x: jax.Array  # [n]
    value: jax.Array
    gradient: jax.Array  # [n]

    def is_finite(self) -> jax.Array:
        """Whether value and gradient are numbers."""
        return jnp.isfinite(self.value) & jnp.all(jnp.isfinite(self.gradient))


class SmoothObjective(NamedTuple):
    """The minimisation problem as a function of a vector."""

    f: Callable[[jax.Array], jax.Array]
    box: Box | None = None
    projection: Callable[[jax.Array], jax.Array] | None = None
    tree: Callable[[jax.Array], Any] = lambda x: x  # from the vector to the variables as a tree
    flat: Callable[[Any], jax.Array] = lambda tree: tree

    def at(self, x: jax.Array) -> Evaluation:
        """The evaluation at a point."""
        return Evaluation(x, *value_and_slope(self.f, x))

    def inside(self, x: jax.Array) -> jax.Array:
        """The nearest point that is allowed."""
        if self.projection is not None:
            return self.projection(x)
        return x if self.box is None else self.box.nearest(x)

    def projected_gradient(self, point: Evaluation) -> jax.Array:
        """The gradient without what the bounds hold; zero where nothing is left to gain."""
        if self.projection is not None:
            return _projected_difference(self.projection, point)
        if self.box is None:
            return point.gradient
        held = self.box.held(point.x, point.gradient)
        return jnp.where(held, jnp.zeros_like(point.gradient), point.gradient)


def _projected_difference(
    projection: Callable[[jax.Array], jax.Array], point: Evaluation
) -> jax.Array:
    r"""The projected gradient, :math:`(x - P(x - \lambda g)) / \lambda`.

    With :math:`\lambda = 1` it is no longer than the set is wide, so it is small everywhere in a
    small set. It doesn't grow with :math:`\lambda`: a step that is short beside the params, or
    beside the whole one, tells what the set holds and what it doesn't.
    """
    x, g = point.x, point.gradient
    whole = x - projection(x - g)
    steep = jnp.max(jnp.abs(g), initial=0)
    part = jnp.asarray(jnp.finfo(x.dtype).eps ** (1 / 3), x.dtype)  # rounding is far below it
    reach = part * jnp.max(jnp.abs(x), initial=0)
    reach = jnp.maximum(reach, jnp.asarray(0.1, x.dtype) * jnp.max(jnp.abs(whole), initial=0))
    short = (reach > 0) & (reach < steep)
    rate = jnp.where(short, reach / jnp.where(short, steep, jnp.ones_like(steep)), 1)
    near = (x - projection(x - rate * g)) / rate
    return jnp.where(short, near, whole)


WAITING, MOVED, AGAIN, FAILED, BLIND = 0, 1, 2, 3, 4


class Answer(NamedTuple):
    """The method's answer to an evaluation: a verdict, and the next point to look at.

    `verdict` is WAITING (look at `x` next), MOVED (to `point`), AGAIN (make a new plan for the
    same point), FAILED (there is no other plan) or BLIND (nor is there, though every slope that it
    met goes on downhill).
    """

    verdict: jax.Array  # int32
    x: jax.Array
    point: Evaluation
    state: Any


class StepPlan(NamedTuple):
    """A plan for a point: where to look first, and what to expect of it."""

    x: jax.Array
    predicted: jax.Array  # by how much the value should fall
    step: jax.Array  # [n], the whole step
    state: Any


class MinimizeMethod(Value):
    """The base of the methods of :func:`fnopt.minimize`.

    Example:
        >>> from fnopt.solvers import MinimizeMethod, bfgs
        >>> isinstance(bfgs(), MinimizeMethod)
        True
    """

    takes_bounds: ClassVar[bool] = False
    takes_projection: ClassVar[bool] = False
    scale_free: ClassVar[bool] = True  # whether it may work in other units than the user's
    trusts_units: ClassVar[bool] = False  # whether it keeps the user's, if these are ordinary
    monotone: ClassVar[bool] = True  # whether no step raises the value
    searches: ClassVar[bool] = True  # whether it looks for steps that gain, and may find none

    def begin(self, problem: SmoothObjective, point: Evaluation) -> Any:
        """The state before the first plan."""
        raise NotImplementedError(f"{type(self).__name__} must define begin")

    def plan(self, problem: SmoothObjective, point: Evaluation, state: Any) -> StepPlan:
        """A plan for a point."""
        raise NotImplementedError(f"{type(self).__name__} must define plan")

    def respond(
        self, problem: SmoothObjective, point: Evaluation, state: Any, there: Evaluation
    ) -> Answer:
        """The plan after an evaluation."""
        raise NotImplementedError(f"{type(self).__name__} must define respond")

    def evaluate(self, problem: SmoothObjective, x: jax.Array, state: Any) -> Evaluation:
        """The evaluation at the point that was asked for."""
        del state
        return problem.at(x)

    def evaluations(self, state: Any) -> jax.Array:
        """The number of function evaluations for the last plan, the driver's own included."""
        del state
        return jnp.ones((), jnp.int32)


def unit_of(v: jax.Array) -> jax.Array:
    """The power of two below the largest entry, 1 for zeros: multiplying by it is exact."""
    return power_of_two(jnp.max(jnp.abs(v), initial=0))


def length(v: jax.Array) -> jax.Array:
    """The Euclidean norm of a vector, which may be empty."""
    return norm(v)


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """The inner product of two vectors, at full precision on all devices."""
    return jnp.sum(a * b)


class SecantPair(NamedTuple):
    """A difference of points and of their gradients, over the length of the former."""

    s: jax.Array  # [n], of length 1
    y: jax.Array  # [n]
    sy: jax.Array  # s^T y
    steep: jax.Array  # |y|
    usable: jax.Array  # bool, whether a quasi-Newton update may learn from it


def secant_pair(s: jax.Array, y: jax.Array) -> SecantPair:
    """What a step has shown of the curvature.

    Args:
        s: The step.
        y: The difference of the gradients along it.
    """
    size = length(s)
    safe = jnp.where(size > 0, size, jnp.ones_like(size))
    # Over the length of the step: products of tiny differences would underflow.
    s, y = s / safe, y / safe
    sy, steep = dot(s, y), length(y)
    eps = jnp.asarray(jnp.finfo(s.dtype).eps, s.dtype)
    # The curvature has to be more than rounding: s has length 1, so s^T y / |y| is a cosine.
    usable = (size > 0) & (sy > eps * steep) & jnp.isfinite(steep)
    return SecantPair(s, y, sy, steep, usable)
