"""Methods that choose a direction and search along it."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.solvers.smooth._method import (
    AGAIN,
    BLIND,
    FAILED,
    MOVED,
    WAITING,
    Answer,
    Evaluation,
    MinimizeMethod,
    SmoothObjective,
    StepPlan,
    dot,
    length,
)
from fnopt.solvers.smooth._more_thuente import LineSearch, WolfeConditions, begun, updated


class SearchLine(NamedTuple):
    """The target of a full step, and the part of it to try first."""

    target: jax.Array  # [n]
    rate: jax.Array  # the part of the step to try first
    longest: jax.Array  # the most that is allowed


class DescentState(NamedTuple):
    """The memory of a descent method, and its line search under way."""

    memory: Any
    fresh: jax.Array  # whether nothing has been learned since the start, or since a failure
    target: jax.Array
    step: jax.Array
    search: LineSearch
    best: Evaluation  # the best point of the search
    first: jax.Array  # the value at the start of all


class LineSearchMethod(MinimizeMethod):
    """The base of line-search methods: a memory, a direction by it, a search along that."""

    rule: ClassVar[WolfeConditions] = WolfeConditions()

    def empty(self, problem: SmoothObjective, point: Evaluation) -> Any:
        """The memory before anything is learned."""
        raise NotImplementedError(f"{type(self).__name__} must define empty")

    def learned(self, memory: Any, before: Evaluation, after: Evaluation) -> Any:
        """The memory after a step."""
        raise NotImplementedError(f"{type(self).__name__} must define learned")

    def heading(
        self, problem: SmoothObjective, point: Evaluation, state: DescentState
    ) -> SearchLine:
        """The search direction."""
        raise NotImplementedError(f"{type(self).__name__} must define heading")

    def begin(self, problem: SmoothObjective, point: Evaluation) -> DescentState:
        """The state with an empty memory."""
        zero, one = jnp.zeros_like(point.value), jnp.ones_like(point.value)
        search = begun(point.value, zero, one, one)
        memory = self.empty(problem, point)
        still = jnp.zeros_like(point.x)
        yes = jnp.ones((), bool)
        return DescentState(memory, yes, point.x, still, search, point, point.value)

    def plan(self, problem: SmoothObjective, point: Evaluation, state: DescentState) -> StepPlan:
        """A direction, and the first step along it."""
        heading = self.heading(problem, point, state)
        step = heading.target - point.x
        slope = dot(point.gradient, step)
        # Rounding or a bad memory may have turned it: then nothing is predicted, and it fails.
        down = (slope < 0) & jnp.isfinite(slope)
        search = begun(point.value, slope, heading.rate, heading.longest)
        search = search._replace(rate=jnp.where(down, search.rate, jnp.zeros_like(search.rate)))
        state = state._replace(target=heading.target, step=step, search=search, best=point)
        half = jnp.asarray(0.5, slope.dtype)
        predicted = jnp.where(down, -half * slope, jnp.zeros_like(slope))
        return StepPlan(self._place(problem, point, state), predicted, step, state)

    def _place(self, problem: SmoothObjective, point: Evaluation, state: DescentState) -> jax.Array:
        rate = state.search.rate
        along = point.x + rate * state.step
        if problem.box is not None:
            along = problem.box.nearest(along)
        # The target itself, so that bounds are reached exactly.
        return jnp.where(rate == 1, state.target, along)

    def respond(
        self, problem: SmoothObjective, point: Evaluation, state: DescentState, there: Evaluation
    ) -> Answer:
        """Goes on with the search, or takes the best of its points."""
        finite = there.is_finite()
        value = jnp.where(finite, there.value, jnp.asarray(jnp.inf, there.value.dtype))
        going = state.search.rate > 0
        verdict = updated(
            state.search, value, dot(there.gradient, state.step), self.rule, state.first
        )
        better = verdict.better & finite
        best = jax.tree.map(lambda a, b: jnp.where(better, a, b), there, state.best)
        over, taken = verdict.done | ~going, verdict.taken & going
        blind = going & ~verdict.search.flattened
        was_fresh = state.fresh
        state = state._replace(search=verdict.search, best=best)
        memory = self.learned(state.memory, point, best)
        moved = state._replace(memory=memory, fresh=jnp.zeros((), bool))
        reset = state._replace(memory=self.empty(problem, point), fresh=jnp.ones((), bool))
        kept = jax.tree.map(lambda a, b: jnp.where(taken, a, b), moved, reset)
        state = jax.tree.map(lambda a, b: jnp.where(over, a, b), kept, state)
        # Once more without what was learned, unless that was nothing.
        failed = jnp.where(was_fresh, jnp.where(blind, BLIND, FAILED), AGAIN)
        code = jnp.where(over, jnp.where(taken, MOVED, failed), WAITING).astype(jnp.int32)
        return Answer(code, self._place(problem, point, state), best, state)


def line_of(point: Evaluation, step: jax.Array, fresh: jax.Array) -> SearchLine:
    """The search along a step down, of which a first part is tried where nothing is known yet."""
    one = jnp.ones_like(point.value)
    rate = jnp.where(fresh, first_rate(point.gradient, point), one)
    whole = jnp.maximum(rate, one)
    return SearchLine(point.x - whole * step, rate / whole, jnp.asarray(jnp.inf, one.dtype))


def first_rate(step: jax.Array, point: Evaluation) -> jax.Array:
    r"""The part of a step along the gradient to try first, where no curvature is known.

    It has length 1, or all of the step if that is shorter. After a long fall a gradient may be so
    small in the units of the start that such a step would be lost in the rounding of the params:
    then it is :math:`\epsilon^{1/3}` of these, or as long as a slope like this would need for all
    of the value.
    """
    size, steep, extent = length(step), length(point.gradient), length(point.x)
    one = jnp.ones_like(size)
    eps = float(jnp.finfo(size.dtype).eps)
    whole = 2 * jnp.abs(point.value) / jnp.where(steep > 0, steep, one)
    far = jnp.minimum(jnp.asarray(eps ** (1 / 3), size.dtype) * extent, whole)
    lost = (size < jnp.asarray(eps, size.dtype) * extent) & (steep > 0)
    wanted = jnp.minimum(jnp.where(lost, far, size), one)
    rate = wanted / jnp.where(size > 0, size, one)
    return jnp.where(jnp.isfinite(rate), rate, one)
