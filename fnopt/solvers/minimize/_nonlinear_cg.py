"""Nonlinear conjugate gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import static
from fnopt.errors import check_choice
from fnopt.linear import divide, norm
from fnopt.solvers.minimize._method import (
    Direction,
    MinimizeMethod,
    WolfeConditions,
    dot,
    first_step,
    newton_like,
)
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective

FORMULAS = ("polak_ribiere", "hager_zhang")
# Hager and Zhang (2013), The limited memory conjugate gradient method, eq. 1.4.
_LEAST_BETA = 0.4


class ConjugateDirection(NamedTuple):
    """The direction of the next step, and its initial step size."""

    d: jax.Array  # [n]
    rate: jax.Array  # the initial step size of the line search


class nonlinear_cg(MinimizeMethod):
    r"""Nonlinear conjugate gradients, which store two vectors but no matrix.

    .. math:: d^+ = -g^+ + \beta\, d, \qquad
              \beta_\text{PR+} = \max\left(0, \frac{y^T g^+}{g^T g}\right), \qquad
              \beta_\text{HZ} = \frac{1}{d^T y} \left(y - 2 d \frac{y^T y}{d^T y}\right)^T g^+

    Args:
        formula: `'polak_ribiere'` or `'hager_zhang'`.

    Raises:
        ValueError: If `formula` is another string.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> method = fnopt.nonlinear_cg("hager_zhang")
        >>> end = fnopt.minimize(lambda x: jnp.sum((x - 1) ** 4), jnp.zeros(2), method=method)
        >>> bool(end.converged)
        True

    Reference:
        Polak and Ribière (1969); Gilbert and Nocedal (1992), Global convergence properties of
        conjugate gradient methods for optimization; Hager and Zhang (2005), A new conjugate
        gradient method with guaranteed descent and an efficient line search.
    """

    formula: str = static(default="polak_ribiere")

    wolfe = WolfeConditions(curvature=0.1)  # Nocedal and Wright (2006), section 3.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.formula, FORMULAS, "formula", "nonlinear_cg")

    def begin(self, problem: SmoothObjective, point: Evaluation) -> ConjugateDirection:
        """Return the steepest-descent direction."""
        return ConjugateDirection(-point.gradient, first_step(point))

    def learn(
        self, memory: ConjugateDirection, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> ConjugateDirection:
        """Return the conjugate direction, or steepest descent if it isn't a descent direction."""
        # Divided by the gradient's norm, because squares may underflow.
        scale = norm(before.gradient)
        scale = jnp.where(scale > 0, scale, jnp.ones_like(scale))
        g, d = after.gradient / scale, memory.d / scale
        y = g - before.gradient / scale
        new = -g + self._beta(g, y, d) * d
        down = dot(new, g) < 0
        new = scale * jnp.where(down & jnp.all(jnp.isfinite(new)), new, -g)
        # The step size with the same first-order change: Nocedal and Wright, eq. 3.60.
        slope = dot(new, after.gradient)
        fall = jnp.maximum(before.value - after.value, 0)
        rate = divide(-2.02 * fall, slope)
        last = divide(norm(after.x - before.x), norm(new))
        return ConjugateDirection(new, jnp.where(rate > 0, rate, last))

    def _beta(self, g: jax.Array, y: jax.Array, d: jax.Array) -> jax.Array:
        if self.formula == "polak_ribiere":
            return jnp.maximum(dot(y, g), 0)  # the gradient before has length 1
        dy = dot(d, y)
        beta = divide(dot(y, g) - 2 * divide(dot(y, y), dy) * dot(d, g), dy)
        least = jnp.asarray(_LEAST_BETA, dy.dtype) * divide(dot(d, g), dot(d, d))
        return jnp.maximum(beta, least)

    def direction(
        self,
        problem: SmoothObjective,
        point: Evaluation,
        memory: ConjugateDirection,
        fresh: jax.Array,
    ) -> tuple[Direction, ConjugateDirection]:
        """Return the conjugate direction, with its initial step size."""
        return newton_like(point, memory.rate * memory.d, ~fresh), memory
