"""Nonlinear conjugate gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import divide, norm
from fnopt.numerics import nonzero
from fnopt.solvers.minimize._method import (
    Direction,
    MinimizeMethod,
    WolfeConditions,
    dot,
    first_step,
    newton_like,
)
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


class ConjugateDirection(NamedTuple):
    """The direction of the next step, and its initial step size."""

    d: jax.Array  # [n]
    rate: jax.Array  # the initial step size of the line search


class nonlinear_cg(MinimizeMethod):
    r"""Nonlinear conjugate gradients, which store two vectors but no matrix.

    .. math:: d^+ = -g^+ + \beta\, d, \qquad
              \beta_\text{PR+} = \max\left(0, \frac{y^T g^+}{g^T g}\right)

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> end = fnopt.minimize(lambda x: jnp.sum((x - 1) ** 4), jnp.zeros(2), method="cg")
        >>> bool(end.converged)
        True

    Reference:
        Polak and Ribière (1969); Gilbert and Nocedal (1992), Global convergence properties of
        conjugate gradient methods for optimization.
    """

    wolfe = WolfeConditions(curvature=0.1)  # Nocedal and Wright (2006), section 3.1

    def begin(self, problem: SmoothObjective, point: Evaluation) -> ConjugateDirection:
        """Return the steepest-descent direction."""
        return ConjugateDirection(-point.gradient, first_step(point))

    def learn(
        self, memory: ConjugateDirection, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> ConjugateDirection:
        """Return the conjugate direction, or steepest descent if it isn't a descent direction."""
        # Vectors are divided by the gradient's norm, because squares may underflow.
        scale = nonzero(norm(before.gradient))
        g, d = after.gradient / scale, memory.d / scale
        y = g - before.gradient / scale
        new = -g + jnp.maximum(dot(y, g), 0) * d  # the previous gradient has length 1
        down = dot(new, g) < 0
        new = scale * jnp.where(down & jnp.all(jnp.isfinite(new)), new, -g)
        # The step size with the same first-order change: Nocedal and Wright, eq. 3.60.
        slope = dot(new, after.gradient)
        fall = jnp.maximum(before.value - after.value, 0)
        rate = divide(-2.02 * fall, slope)
        last = divide(norm(after.x - before.x), norm(new))
        return ConjugateDirection(new, jnp.where(rate > 0, rate, last))

    def direction(
        self,
        problem: SmoothObjective,
        point: Evaluation,
        memory: ConjugateDirection,
        fresh: jax.Array,
    ) -> tuple[Direction, ConjugateDirection]:
        """Return the conjugate direction, with its initial step size."""
        return newton_like(point, memory.rate * memory.d, ~fresh), memory
