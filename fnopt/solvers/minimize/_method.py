"""The interface of the methods: a state, and a search direction that depends on the state."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Value
from fnopt.linear import norm
from fnopt.numerics import nonzero
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


class Direction(NamedTuple):
    """A search direction."""

    step: jax.Array  # [n], the full step
    rate: jax.Array  # the initial step size of the line search, relative to `step`
    longest: jax.Array  # the largest step size allowed
    predicted: jax.Array  # predicted decrease of the model; infinite without a model


class WolfeConditions(NamedTuple):
    """Constants of the Wolfe conditions of a line search."""

    decrease: float = 1e-4  # Nocedal and Wright (2006), section 3.1
    curvature: float = 0.9  # the same section, for quasi-Newton steps


class MinimizeMethod(Value):
    """Base class of the methods of :func:`fnopt.minimize`.

    Example:
        >>> from fnopt.solvers import MinimizeMethod, bfgs
        >>> isinstance(bfgs(), MinimizeMethod)
        True
    """

    takes_bounds: ClassVar[bool] = False
    takes_projection: ClassVar[bool] = False
    monotone: ClassVar[bool] = True  # whether no step raises the value
    wolfe: ClassVar[WolfeConditions | None] = WolfeConditions()  # None accepts every step

    def begin(self, problem: SmoothObjective, point: Evaluation) -> Any:
        """Return the initial state of the method."""
        raise NotImplementedError(f"{type(self).__name__} must define begin")

    def learn(self, memory: Any, before: Evaluation, after: Evaluation, fresh: jax.Array) -> Any:
        """Return the state after a step; `fresh` marks the first step since `begin`."""
        raise NotImplementedError(f"{type(self).__name__} must define learn")

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: Any, fresh: jax.Array
    ) -> tuple[Direction, Any]:
        """Return the search direction and the new state."""
        raise NotImplementedError(f"{type(self).__name__} must define direction")

    def reference(self, memory: Any, point: Evaluation) -> jax.Array:
        """Return the reference value of the sufficient-decrease condition."""
        return point.value

    def is_stationary(self, problem: SmoothObjective, point: Evaluation, memory: Any) -> jax.Array:
        """Whether the gradient is zero for this method."""
        return ~jnp.any(problem.projected_gradient(point) != 0)

    def evaluate(self, problem: SmoothObjective, x: jax.Array, memory: Any) -> Evaluation:
        """Evaluate the objective at a trial point."""
        return problem.evaluate(x)

    def evaluations(self, memory: Any) -> jax.Array:
        """Return the number of evaluations for a trial point."""
        return jnp.ones((), jnp.int32)


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the inner product of two vectors, at full precision on all devices."""
    return jnp.sum(a * b)


def newton_like(point: Evaluation, step: jax.Array, known: jax.Array) -> Direction:
    """Return the step to the minimum of a quadratic model as search direction, with step size 1.

    Args:
        point: The evaluation at the current iterate.
        step: The step, of shape `[n]`.
        known: Whether the model contains any curvature information.
    """
    slope, inf = dot(point.gradient, step), jnp.asarray(jnp.inf, point.value.dtype)
    return Direction(step, jnp.ones_like(slope), inf, jnp.where(known, -slope / 2, inf))


# Number of rounding errors assumed in a value (Higham 2002, section 3.1): a few operations.
_OPERATIONS = 8


def rounding_of(value: jax.Array) -> jax.Array:
    """Return a bound on the rounding error of a difference of values."""
    eps = float(jnp.finfo(value.dtype).eps)
    return jnp.asarray(_OPERATIONS * eps, value.dtype) * jnp.abs(value)


def largest(x: jax.Array) -> jax.Array:
    """Return the largest magnitude of the scaled params, at least 1."""
    return jnp.max(jnp.abs(x), initial=1)


def first_step(point: Evaluation) -> jax.Array:
    r"""Return the factor of the negative gradient in a first steepest-descent step.

    .. math:: \max(1, \|x\|_\infty) / \|g\|

    Params are scaled by the initial guess, so the step is at least as long as the largest param.
    """
    factor = largest(point.x) / nonzero(norm(point.gradient))
    return jnp.where(jnp.isfinite(factor), factor, jnp.ones_like(factor))


class SecantPair(NamedTuple):
    """Differences of points and of their gradients, both divided by the length of the step."""

    s: jax.Array  # [n], of length 1
    y: jax.Array  # [n]
    sy: jax.Array  # s^T y; 1 where the pair isn't usable
    yy: jax.Array  # |y|^2 / s^T y
    usable: jax.Array  # bool, whether the curvature is positive, beyond rounding


def secant_pair(before: Evaluation, after: Evaluation) -> SecantPair:
    """Return the secant pair of a step."""
    s, y = after.x - before.x, after.gradient - before.gradient
    size = norm(s)
    # Both are divided by the length of the step, because products of tiny differences would
    # underflow.
    s, y = s / nonzero(size), y / nonzero(size)
    sy, steep = dot(s, y), norm(y)
    eps = jnp.asarray(jnp.finfo(s.dtype).eps, s.dtype)
    # s has length 1, so s^T y / |y| is a cosine.
    usable = (size > 0) & (sy > eps * steep) & jnp.isfinite(steep)
    sy = jnp.where(usable, sy, jnp.ones_like(sy))
    return SecantPair(s, y, sy, steep * (steep / sy), usable)
