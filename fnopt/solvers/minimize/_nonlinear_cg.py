"""The nonlinear conjugate-gradient method of Polak and Ribière."""

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
    first_step_size,
    newton_like,
)
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


class ConjugateDirection(NamedTuple):
    """The direction of the next step, and its initial step size."""

    d: jax.Array  # [n]
    rate: jax.Array  # initial step size of the line search


class nonlinear_cg(MinimizeMethod):
    r"""Nonlinear conjugate gradients (Polak-Ribière), with a memory of two vectors.

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
        """Return the steepest-descent direction as the first conjugate direction."""
        return ConjugateDirection(-point.gradient, first_step_size(point))

    def learn(
        self, memory: ConjugateDirection, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> ConjugateDirection:
        """Update the conjugate direction; use steepest descent if it isn't a descent direction."""
        # Squares of tiny gradients may underflow, so vectors are divided by the gradient's norm.
        scale = nonzero(norm(before.gradient))
        g, d = after.gradient / scale, memory.d / scale
        y = g - before.gradient / scale
        # The denominator of beta is 1, because the scaled previous gradient has length 1.
        new = -g + jnp.maximum(dot(y, g), 0) * d
        downhill = dot(new, g) < 0
        new = scale * jnp.where(downhill & jnp.all(jnp.isfinite(new)), new, -g)
        # Nocedal and Wright, eq. 3.60: the minimizer of the parabola that has the new slope and
        # the decrease of the last step, times 1.01.
        slope = dot(new, after.gradient)
        decrease = jnp.maximum(before.value - after.value, 0)
        rate = divide(-2.02 * decrease, slope)
        # If the decrease was below rounding error, try a step of the last length.
        same_length = divide(norm(after.x - before.x), norm(new))
        return ConjugateDirection(new, jnp.where(rate > 0, rate, same_length))

    def direction(
        self,
        problem: SmoothObjective,
        point: Evaluation,
        memory: ConjugateDirection,
        fresh: jax.Array,
    ) -> tuple[Direction, ConjugateDirection]:
        """Return the conjugate direction, with its initial step size."""
        return newton_like(point, memory.rate * memory.d, ~fresh), memory
