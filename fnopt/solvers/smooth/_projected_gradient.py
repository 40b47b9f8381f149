"""Spectral projected gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import static
from fnopt.solvers.smooth._descent import first_rate
from fnopt.solvers.smooth._method import (
    AGAIN,
    FAILED,
    MOVED,
    WAITING,
    Answer,
    Evaluation,
    MinimizeMethod,
    SmoothObjective,
    StepPlan,
    dot,
)

_DECREASE = 1e-4
_SHORTEST, _LONGEST = 0.1, 0.9  # of a part of a step that was too long, for the next one


class SpectralSearch(NamedTuple):
    """The spectral step length, the last values, and the search along the step under way."""

    rate: jax.Array  # the inverse of the curvature along the last step
    values: jax.Array  # [memory_size], at the last points
    fresh: jax.Array  # whether nothing has been learned since the start, or since a failure
    part: jax.Array  # the part of the step to try
    step: jax.Array  # [n]
    slope: jax.Array  # along it

    def farther(self, new: Evaluation, old: Evaluation) -> SpectralSearch:
        """The memory after a step."""
        s, y = new.x - old.x, new.gradient - old.gradient
        sy, ss = dot(s, y), dot(s, s)
        usable = (sy > 0) & (ss > 0)
        rate = ss / jnp.where(usable, sy, jnp.ones_like(sy))
        # Down a slope that gets steeper: further than before.
        rate = jnp.where(usable, rate, 4 * self.rate)
        rate = jnp.where(jnp.isfinite(rate), jnp.clip(rate, 1e-20, 1e20), self.rate)
        values = jnp.concatenate([self.values[1:], new.value[None]])
        return self._replace(rate=rate, values=values, fresh=jnp.zeros((), bool))


class projected_gradient(MinimizeMethod):
    r"""Projected gradients with spectral steps: for any convex set that can be projected on.

    .. math:: x^+ = x + \eta\, d, \qquad d = P(x - \lambda g) - x, \qquad
              \lambda = \frac{s^T s}{s^T y}

    with the largest :math:`\eta \le 1` of a backtracking search that has
    :math:`f(x^+) \le \max_{j < M} f(x_{-j}) + 10^{-4}\, \eta\, g^T d`. Spectral steps are far
    better than those of steepest descent because they may raise the value for a while: it has to be
    lower than the highest of the last :math:`M`.

    The set is given to :func:`fnopt.minimize` by its `projection`, or by `bounds`.

    Args:
        memory_size: How many values :math:`M` are remembered; with 1 each is lower than the last.

    Raises:
        ValueError: If `memory_size` is below 1.
        TypeError: If it is no whole number.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def onto_disk(x): return x / jnp.maximum(1.0, jnp.linalg.norm(x))
        >>> f = lambda x: jnp.sum((x - 2) ** 2)
        >>> end = fnopt.minimize(f, jnp.zeros(2), projection=onto_disk)
        >>> print(end.params.round(3))
        [0.707 0.707]

    Reference:
        Birgin, Martínez and Raydan (2000), Nonmonotone spectral projected gradient methods on
        convex sets.
    """

    memory_size: int = static(default=10, least=1)

    takes_bounds = True
    takes_projection = True
    monotone = False

    def begin(self, problem: SmoothObjective, point: Evaluation) -> SpectralSearch:
        """The step of length 1 down the gradient, and no value but this."""
        del problem
        zero, yes = jnp.zeros_like(point.value), jnp.ones((), bool)
        values = jnp.full(self.memory_size, point.value)
        rate = first_rate(point.gradient, point)
        return SpectralSearch(rate, values, yes, zero, jnp.zeros_like(point.x), zero)

    def plan(self, problem: SmoothObjective, point: Evaluation, state: SpectralSearch) -> StepPlan:
        """To the projection of the spectral step."""
        target = problem.inside(point.x - state.rate * point.gradient)
        step = target - point.x
        slope = dot(point.gradient, step)
        down = (slope < 0) & jnp.isfinite(slope)
        part = down.astype(slope.dtype)
        state = state._replace(part=part, step=step, slope=slope)
        half = jnp.asarray(0.5, slope.dtype)
        predicted = jnp.where(down, -half * slope, jnp.zeros_like(slope))
        return StepPlan(target, predicted, step, state)

    def respond(
        self, problem: SmoothObjective, point: Evaluation, state: SpectralSearch, there: Evaluation
    ) -> Answer:
        """Takes a step that ends below the highest of the last values, or a part of it."""
        finite, going = there.is_finite(), state.part > 0
        highest = jnp.max(state.values)
        low = there.value <= highest + _DECREASE * state.part * state.slope
        taken = finite & going & low
        part = jnp.where(finite, _shorter(point, state, there), 0.1 * state.part)
        x = point.x + part * state.step
        x = x if problem.box is None else problem.box.nearest(x)
        over = ~going | jnp.all(x == point.x)
        failed = jnp.where(over, jnp.where(state.fresh, FAILED, AGAIN), WAITING)
        # Once more without what was learned, unless that was nothing.
        anew = self.begin(problem, point)
        kept = jax.tree.map(lambda a, b: jnp.where(over, a, b), anew, state._replace(part=part))
        further = state.farther(there, point)
        state = jax.tree.map(lambda a, b: jnp.where(taken, a, b), further, kept)
        verdict = jnp.where(taken, MOVED, failed).astype(jnp.int32)
        return Answer(verdict, x, there, state)


def _shorter(point: Evaluation, state: SpectralSearch, there: Evaluation) -> jax.Array:
    """The part of a step where a parabola has its minimum, not too near to the ends."""
    part = state.part
    above = there.value - point.value - part * state.slope
    bent = above > 0
    best = -part * state.slope / (2 * jnp.where(bent, above, jnp.ones_like(above)))
    best = jnp.where(bent, best, jnp.ones_like(best))
    return part * jnp.clip(best, _SHORTEST, _LONGEST)
