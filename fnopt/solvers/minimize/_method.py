"""`MinimizeMethod`, the base class of the methods, with helpers for search directions."""

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

    step: jax.Array  # [n], the step for a step size of 1
    rate: jax.Array  # initial step size of the line search
    longest: jax.Array  # largest step size that the line search may try
    predicted: jax.Array  # the model's decrease for a step size of 1; infinite without a model


class WolfeConditions(NamedTuple):
    """Constants of the Wolfe conditions of a line search."""

    decrease: float = 1e-4  # c1: Nocedal and Wright (2006), section 3.1
    curvature: float = 0.9  # c2 for quasi-Newton steps: Nocedal and Wright (2006), section 3.1


class MinimizeMethod(Value):
    """Base class of the methods of :func:`fnopt.minimize`.

    Example:
        >>> from fnopt.solvers import MinimizeMethod, bfgs
        >>> isinstance(bfgs(), MinimizeMethod)
        True
    """

    takes_bounds: ClassVar[bool] = False
    takes_projection: ClassVar[bool] = False
    monotone: ClassVar[bool] = True  # whether every step decreases the value
    wolfe: ClassVar[WolfeConditions | None] = WolfeConditions()  # None: accept every finite step

    def begin(self, problem: SmoothObjective, point: Evaluation) -> Any:
        """Return the initial state of the method."""
        raise NotImplementedError(_undefined(self, "begin"))

    def learn(self, memory: Any, before: Evaluation, after: Evaluation, fresh: jax.Array) -> Any:
        """Update the state with a step; `fresh` is whether it is the first step since `begin`."""
        raise NotImplementedError(_undefined(self, "learn"))

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: Any, fresh: jax.Array
    ) -> tuple[Direction, Any]:
        """Return the search direction and the updated state."""
        raise NotImplementedError(_undefined(self, "direction"))

    def reference(self, memory: Any, point: Evaluation) -> jax.Array:
        """Return the reference value of the sufficient-decrease condition."""
        return point.value

    def is_stationary(self, problem: SmoothObjective, point: Evaluation, memory: Any) -> jax.Array:
        """Whether the point is stationary: by default, whether the projected gradient is zero."""
        return ~jnp.any(problem.projected_gradient(point) != 0)

    def evaluate(self, problem: SmoothObjective, x: jax.Array, memory: Any) -> Evaluation:
        """Evaluate the objective at a trial point."""
        return problem.evaluate(x)

    def evaluations(self, memory: Any) -> jax.Array:
        """Return the number of function evaluations that a trial point takes, int32."""
        return jnp.ones((), jnp.int32)


def _undefined(method: MinimizeMethod, name: str) -> str:
    return f"{type(method).__name__}: {name} is not defined, expected a method. Define {name}."


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the inner product of two vectors, at full precision on all devices."""
    # By default, `jnp.dot` may multiply in bfloat16 or TF32 on accelerators.
    return jnp.sum(a * b)


def newton_like(point: Evaluation, step: jax.Array, has_curvature: jax.Array) -> Direction:
    """Make a search direction from the minimizer of a quadratic model, with step size 1.

    Args:
        point: The evaluation at the current iterate.
        step: The step to the minimizer, of shape `[n]`.
        has_curvature: Whether the model contains any curvature information. Otherwise its
            predicted decrease has no meaning and is infinite.
    """
    slope, inf = dot(point.gradient, step), jnp.asarray(jnp.inf, point.value.dtype)
    # At the minimizer p = -B^-1 g, the model's decrease -g^T p - p^T B p / 2 is -g^T p / 2.
    predicted = jnp.where(has_curvature, -slope / 2, inf)
    return Direction(step, jnp.ones_like(slope), inf, predicted)


# Assumed number of rounding errors in a value: a few operations (Higham 2002, section 3.1).
_OPERATIONS = 8


def rounding_bound(value: jax.Array) -> jax.Array:
    """Return a bound on the rounding error of a difference of values."""
    eps = float(jnp.finfo(value.dtype).eps)
    return jnp.asarray(_OPERATIONS * eps, value.dtype) * jnp.abs(value)


def largest_param(x: jax.Array) -> jax.Array:
    """Return the largest magnitude of the scaled params, at least 1."""
    return jnp.max(jnp.abs(x), initial=1)


def first_step_size(point: Evaluation) -> jax.Array:
    r"""Return the step size of the first steepest-descent step.

    .. math:: \max(1, \|x\|_\infty) / \|g\|

    The largest param has a magnitude of about 1 at the initial guess. Therefore the step changes
    the params by about their magnitude, for any scale of the function.
    """
    step_size = largest_param(point.x) / nonzero(norm(point.gradient))
    return jnp.where(jnp.isfinite(step_size), step_size, jnp.ones_like(step_size))


class SecantPair(NamedTuple):
    """Differences of points and of gradients for a step, both divided by the step's length."""

    s: jax.Array  # [n], of length 1
    y: jax.Array  # [n]
    sy: jax.Array  # s^T y; 1 if the pair isn't usable
    yy: jax.Array  # |y|^2 / s^T y
    usable: jax.Array  # bool, whether the curvature s^T y is positive beyond rounding error


def secant_pair(before: Evaluation, after: Evaluation) -> SecantPair:
    """Return the secant pair of a step."""
    s, y = after.x - before.x, after.gradient - before.gradient
    length = norm(s)
    # Products of tiny differences would underflow.
    s, y = s / nonzero(length), y / nonzero(length)
    sy, y_norm = dot(s, y), norm(y)
    eps = jnp.asarray(jnp.finfo(s.dtype).eps, s.dtype)
    # s has length 1, so s^T y / |y| is a cosine.
    usable = (length > 0) & (sy > eps * y_norm) & jnp.isfinite(y_norm)
    sy = jnp.where(usable, sy, jnp.ones_like(sy))
    # The square of |y| may overflow.
    return SecantPair(s, y, sy, y_norm * (y_norm / sy), usable)
