"""The interface of the methods: a memory, and a search direction by it."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Value
from fnopt.linear import norm
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


class Direction(NamedTuple):
    """A search direction."""

    step: jax.Array  # [n], the full step
    rate: jax.Array  # the part of the step to try first
    longest: jax.Array  # the largest part of it that is allowed
    predicted: jax.Array  # by how much the model falls; infinite without a model


class WolfeConditions(NamedTuple):
    """The conditions that a line search meets."""

    decrease: float = 1e-4  # Nocedal and Wright (2006), section 3.1
    curvature: float = 0.9  # for quasi-Newton steps, likewise


class MinimizeMethod(Value):
    """The base of the methods of :func:`fnopt.minimize`.

    Example:
        >>> from fnopt.solvers import MinimizeMethod, bfgs
        >>> isinstance(bfgs(), MinimizeMethod)
        True
    """

    takes_bounds: ClassVar[bool] = False
    takes_projection: ClassVar[bool] = False
    monotone: ClassVar[bool] = True  # whether no step raises the value
    wolfe: ClassVar[WolfeConditions | None] = WolfeConditions()  # None takes every step

    def begin(self, problem: SmoothObjective, point: Evaluation) -> Any:
        """The memory before anything is learned."""
        raise NotImplementedError(f"{type(self).__name__} must define begin")

    def learn(self, memory: Any, before: Evaluation, after: Evaluation, fresh: jax.Array) -> Any:
        """The memory after a step; `fresh` if it is the first one since `begin`."""
        raise NotImplementedError(f"{type(self).__name__} must define learn")

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: Any, fresh: jax.Array
    ) -> tuple[Direction, Any]:
        """The search direction, and the memory after it."""
        raise NotImplementedError(f"{type(self).__name__} must define direction")

    def reference(self, memory: Any, point: Evaluation) -> jax.Array:
        """The value that a step has to decrease."""
        return point.value

    def is_stationary(self, problem: SmoothObjective, point: Evaluation, memory: Any) -> jax.Array:
        """Whether the gradient is zero."""
        return ~jnp.any(problem.projected_gradient(point) != 0)

    def evaluate(self, problem: SmoothObjective, x: jax.Array, memory: Any) -> Evaluation:
        """The evaluation at a trial point."""
        return problem.evaluate(x)

    def evaluations(self, memory: Any) -> jax.Array:
        """The number of evaluations for a trial point."""
        return jnp.ones((), jnp.int32)


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """The inner product of two vectors, at full precision on all devices."""
    return jnp.sum(a * b)


def newton_like(point: Evaluation, step: jax.Array, known: jax.Array) -> Direction:
    """The direction of a step of a quadratic model, whose full length is tried first.

    Args:
        point: Where the step starts.
        step: The step, of shape `[n]`.
        known: Whether the model has learned any curvature.
    """
    slope, inf = dot(point.gradient, step), jnp.asarray(jnp.inf, point.value.dtype)
    return Direction(step, jnp.ones_like(slope), inf, jnp.where(known, -slope / 2, inf))


# Roundings that a value is taken to consist of (Higham 2002, section 3.1): some operations.
_OPERATIONS = 8


def rounding_of(value: jax.Array) -> jax.Array:
    """Bound on what rounding does to a difference of values."""
    eps = float(jnp.finfo(value.dtype).eps)
    return jnp.asarray(_OPERATIONS * eps, value.dtype) * jnp.abs(value)


def largest(x: jax.Array) -> jax.Array:
    """The largest magnitude of params, or that of the start, their unit, if that is larger."""
    return jnp.max(jnp.abs(x), initial=1)


def first_step(point: Evaluation) -> jax.Array:
    r"""The length over :math:`\|g\|` of a first step down the gradient, without any curvature.

    .. math:: \max(1, \|x\|_\infty) / \|g\|

    Params are in units of the start: the step is at least as long as the start is large.
    """
    steep = norm(point.gradient)
    return _finite(largest(point.x) / jnp.where(steep > 0, steep, jnp.ones_like(steep)))


def _finite(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(x), x, jnp.ones_like(x))


class SecantPair(NamedTuple):
    """A difference of points and of their gradients, over the length of the former."""

    s: jax.Array  # [n], of length 1
    y: jax.Array  # [n]
    sy: jax.Array  # s^T y; 1 where the pair isn't usable
    yy: jax.Array  # |y|^2 / s^T y
    usable: jax.Array  # bool, whether the curvature is positive, beyond rounding


def secant_pair(before: Evaluation, after: Evaluation) -> SecantPair:
    """What a step has shown of the curvature."""
    s, y = after.x - before.x, after.gradient - before.gradient
    size = norm(s)
    safe = jnp.where(size > 0, size, jnp.ones_like(size))
    # Over the length of the step: products of tiny differences would underflow.
    s, y = s / safe, y / safe
    sy, steep = dot(s, y), norm(y)
    eps = jnp.asarray(jnp.finfo(s.dtype).eps, s.dtype)
    # s has length 1, so s^T y / |y| is a cosine.
    usable = (size > 0) & (sy > eps * steep) & jnp.isfinite(steep)
    sy = jnp.where(usable, sy, jnp.ones_like(sy))
    return SecantPair(s, y, sy, steep * (steep / sy), usable)
