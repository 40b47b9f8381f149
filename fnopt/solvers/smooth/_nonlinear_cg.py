"""Nonlinear conjugate gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import check_choice, static
from fnopt.solvers.smooth._descent import DescentState, LineSearchMethod, SearchLine, first_rate
from fnopt.solvers.smooth._method import Evaluation, SmoothObjective, dot, length
from fnopt.solvers.smooth._more_thuente import WolfeConditions

FORMULAS = ("polak_ribiere", "hager_zhang")


class Direction(NamedTuple):
    """The direction of the next step, and what the last one was."""

    d: jax.Array  # [n]
    rate: jax.Array  # the first step along it


class nonlinear_cg(LineSearchMethod):
    r"""Nonlinear conjugate gradients: no matrix, and two vectors of memory.

    .. math:: d^+ = -g^+ + \beta\, d, \qquad
              \beta_\text{PR+} = \max\left(0, \frac{y^T g^+}{g^T g}\right), \qquad
              \beta_\text{HZ} = \frac{1}{d^T y} \left(y - 2 d \frac{y^T y}{d^T y}\right)^T g^+

    Args:
        formula: `'polak_ribiere'` or `'hager_zhang'`.

    Raises:
        ValueError: For another formula.

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

    rule = WolfeConditions(decrease=1e-4, flatness=0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.formula, FORMULAS, "formula", "nonlinear_cg")

    def empty(self, problem: SmoothObjective, point: Evaluation) -> Direction:
        """Down the gradient."""
        del problem
        return Direction(-point.gradient, first_rate(point.gradient, point))

    def learned(self, memory: Direction, before: Evaluation, after: Evaluation) -> Direction:
        """The conjugate direction; the gradient's where that isn't one down."""
        g, y, d = after.gradient, after.gradient - before.gradient, memory.d
        beta = self._beta(g, y, d, before.gradient)
        new = -g + beta * d
        down = dot(new, g) < -1e-3 * length(new) * length(g)
        new = jnp.where(down & jnp.all(jnp.isfinite(new)), new, -g)
        # As long a step as a parabola with the last decrease would make.
        slope = dot(new, g)
        fall = jnp.maximum(before.value - after.value, 0)
        rate = jnp.where(slope < 0, -2.02 * fall / jnp.where(slope < 0, slope, -1), 0)
        travelled, next_length = length(after.x - before.x), length(new)
        last = travelled / jnp.where(next_length > 0, next_length, jnp.ones_like(next_length))
        return Direction(new, jnp.where((rate > 0) & jnp.isfinite(rate), rate, last))

    def _beta(self, g: jax.Array, y: jax.Array, d: jax.Array, before: jax.Array) -> jax.Array:
        if self.formula == "polak_ribiere":
            square = dot(before, before)
            return jnp.maximum(_ratio(dot(y, g), square), 0)
        dy = dot(d, y)
        beta = _ratio(dot(y, g) - 2 * _ratio(dot(y, y), dy) * dot(d, g), dy)
        floor = _ratio(-jnp.ones_like(dy), length(d) * jnp.minimum(0.01, length(before)))
        return jnp.maximum(beta, floor)

    def heading(
        self, problem: SmoothObjective, point: Evaluation, state: DescentState
    ) -> SearchLine:
        """Along the conjugate direction."""
        del problem
        d, rate = state.memory
        one, far = jnp.ones_like(rate), jnp.asarray(jnp.inf, rate.dtype)
        # The whole step is the expected one, so that what it promises doesn't depend on units.
        part = jnp.where(state.fresh, jnp.maximum(rate, one), rate)
        return SearchLine(point.x + part * d, jnp.where(state.fresh, rate / part, one), far)


def _ratio(p: jax.Array, q: jax.Array) -> jax.Array:
    return jnp.where(q != 0, p / jnp.where(q != 0, q, jnp.ones_like(q)), jnp.zeros_like(p))
