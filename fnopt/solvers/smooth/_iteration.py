"""The loop of all methods: one evaluation a turn, so that no lane of a batch waits for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, cond, is_converged, power_of_two, while_loop
from fnopt.residuals import Box
from fnopt.solvers.convergence._tests import first_of
from fnopt.solvers.result._solution import StepHistory, empty_history, noted
from fnopt.solvers.smooth._convergence import (
    SearchProgress,
    StoppingTolerances,
    has_no_bottom,
    is_stationary,
    judged,
    largest,
    reference,
    starts_stationary,
    tolerances,
)
from fnopt.solvers.smooth._method import (
    AGAIN,
    MOVED,
    Answer,
    Evaluation,
    MinimizeMethod,
    SmoothObjective,
    StepPlan,
    length,
    unit_of,
)


class MinimizeLoop(NamedTuple):
    """The state of the loop."""

    point: Evaluation
    best: Evaluation | None  # the lowest point, where the method may go up
    plan: StepPlan
    progress: SearchProgress
    anew: jax.Array  # whether the next plan is made without what was learned
    met: jax.Array  # whether any point but the first was finite
    status: jax.Array
    steps: jax.Array
    nfev: jax.Array
    history: StepHistory | None


class Units(NamedTuple):
    """Powers of two that bring params and gradient to the order of 1: nothing is rounded."""

    x: jax.Array  # of every param, [n], or of all
    value: jax.Array
    gradient: jax.Array  # what a gradient of 1 is to the user, or to params far from 1
    reach: jax.Array  # how far a param may go in its own unit, before that is the common one

    def scaled(self, problem: SmoothObjective) -> SmoothObjective:
        """The problem in these units."""
        f, project, box = problem.f, problem.projection, problem.box
        return problem._replace(
            f=lambda u: f(u * self.x) / self.value,
            box=None if box is None else Box(box.lower / self.x, box.upper / self.x),
            projection=None if project is None else lambda u: project(u * self.x) / self.x,
        )


# Within these the user's own units are taken for sensible ones. A larger gradient does no harm, as
# first steps are cut to length 1; after a smaller one they would be lost in rounding.
_OF_PARAMS = 2.0**-10, 2.0**10
_OF_GRADIENTS = 2.0**-10, 2.0**30


# A slope that is as steep as at the start so many times as far away never ends.
_FAR = 1e15


def units_of(
    method: MinimizeMethod, problem: SmoothObjective, x: jax.Array, point: Evaluation
) -> Units:
    """Units in which the start and the gradient there are of the order of 1."""
    one = jnp.ones((), x.dtype)
    if not method.scale_free:
        return Units(one, one, one, one)
    size, steep = unit_of(x), unit_of(point.gradient)
    common = _beyond(_OF_PARAMS, size) if method.trusts_units else size
    own = common / size
    if problem.projection is None:  # which has to know all distances
        own = _own_units(x / size, point.gradient / steep, own)
    value = size * (steep * unit_of(own * (point.gradient / steep)))
    if method.trusts_units:
        value = _beyond(_OF_GRADIENTS, value)
    tiny = jnp.asarray(jnp.finfo(x.dtype).tiny, x.dtype)
    small = unit_of(point.value) * jnp.asarray(2.0**-40, x.dtype)
    value = jnp.clip(jnp.maximum(value, small), tiny, 1 / tiny)
    ordinary = _beyond(_OF_PARAMS, common) == 1
    slope = value / jnp.where(ordinary, common, one)
    return Units(size * own, value, slope, common / (size * own))


def _own_units(x: jax.Array, g: jax.Array, common: jax.Array) -> jax.Array:
    r"""A unit by entry for params of very different units, the common one for all others.

    .. math:: d_i = \max_j |g_j x_j| \,/\, |g_i|

    So far a param would go if it had to change the value as much as the one that matters most does
    by a change of its own size. A param may be small because it is nearly zero; it has a small unit
    only where its gradient is large to the same degree.

    Args:
        x: The start, of the order of 1.
        g: The gradient there, of the order of 1.
        common: The common unit.
    """
    most = jnp.max(jnp.abs(g * x), initial=0)
    far = jnp.abs(g) * jnp.asarray(_OF_PARAMS[0], x.dtype) > most
    own = most / jnp.where(far, jnp.abs(g), jnp.ones_like(g))
    return jnp.where(far & (most > 0), power_of_two(own), common)


def _beyond(ordinary: tuple[float, float], unit: jax.Array) -> jax.Array:
    """A unit, or 1 instead of an ordinary one."""
    low, high = (jnp.asarray(side, unit.dtype) for side in ordinary)
    return jnp.where((unit >= low) & (unit <= high), jnp.ones_like(unit), unit)


def iterated(
    problem: SmoothObjective,
    method: MinimizeMethod,
    x: jax.Array,
    eps: float,
    limits: tuple[Any, Any, Any],
    max_steps: int,
    history: bool,
    watch: Callable[[MinimizeLoop, jax.Array, StepHistory], jax.Array] | None,
) -> tuple[MinimizeLoop, Evaluation]:
    """Runs a method to its end; the point comes back in the user's units."""
    feasible = jnp.ones((), bool) if problem.box is None else problem.box.is_feasible()
    x = jnp.where(feasible, problem.inside(x), x)
    start = problem.at(x)
    units = units_of(method, problem, x, start)
    problem = units.scaled(problem) if method.scale_free else problem
    slope = start.gradient * units.x / units.value
    # Where one factor would leave the range, do it in two.
    slope = jnp.where(jnp.isfinite(slope), slope, (start.gradient / units.value) * units.x)
    point = Evaluation(x / units.x, start.value / units.value, slope)
    unit = units.gradient if limits[2] is None else units.value / units.x
    tol = tolerances(x.dtype, eps, *limits, unit, units.value, units.reach)
    loop = _started(problem, method, point, feasible, tol, max_steps if history else None)

    def step(loop: MinimizeLoop) -> MinimizeLoop:
        before, loop = loop, _advanced(problem, method, tol, loop)
        endless = (loop.status == Status.RUNNING.value) & has_no_bottom(point, loop.point, _FAR)
        loop = loop._replace(status=jnp.where(endless, Status.UNBOUNDED.array, loop.status))
        return _watched(before, loop, units, watch)

    def unfinished(loop: MinimizeLoop) -> jax.Array:
        return (loop.status == Status.RUNNING.value) & (loop.steps < max_steps)

    loop = while_loop(unfinished, step, loop)
    end = _found(loop)
    pull = problem.projected_gradient(end)
    progress = loop.progress
    mine = progress.share(end.value, tol)
    late = is_stationary(tol.felt(pull, end.x), reference(end, progress.steepest), mine, tol)
    late &= loop.status == Status.RUNNING.value
    status = jnp.where(late, Status.CONVERGED_GRADIENT.array, loop.status)
    status = jnp.where(status == Status.RUNNING.value, Status.MAX_STEPS.array, status)
    endless = ~is_converged(status) & has_no_bottom(point, end)
    status = jnp.where(endless, Status.UNBOUNDED.array, status)
    gnorm = largest(pull * (units.value / units.x))
    back = Evaluation(end.x * units.x, end.value * units.value, gnorm)
    return loop._replace(status=status), back


def _found(loop: MinimizeLoop) -> Evaluation:
    """The last point if it converged, else the lowest; never one above the start."""
    if loop.best is None:
        return loop.point
    last = is_converged(loop.status) & (loop.point.value <= loop.progress.first)
    return jax.tree.map(lambda a, b: jnp.where(last, a, b), loop.point, loop.best)


def _started(
    problem: SmoothObjective,
    method: MinimizeMethod,
    point: Evaluation,
    feasible: jax.Array,
    tol: StoppingTolerances,
    kept: int | None,
) -> MinimizeLoop:
    pull = tol.felt(problem.projected_gradient(point), point.x)
    status = first_of(
        (~feasible, Status.INFEASIBLE),
        (~point.is_finite(), Status.NONFINITE_START),
        (starts_stationary(point, pull, tol), Status.CONVERGED_GRADIENT),
    )
    plan = method.plan(problem, point, method.begin(problem, point))
    zero, one = jnp.zeros((), jnp.int32), jnp.ones((), jnp.int32)
    best = None if method.monotone else point
    no, empty = jnp.zeros((), bool), None if kept is None else empty_history(kept, point.x.dtype)
    far = jnp.full_like(point.value, jnp.inf)
    steepest = largest(point.gradient)
    progress = SearchProgress(point.value, steepest, jnp.zeros_like(far), zero, far)
    return MinimizeLoop(point, best, plan, progress, no, no, status, zero, one, empty)


def _advanced(
    problem: SmoothObjective, method: MinimizeMethod, tol: StoppingTolerances, loop: MinimizeLoop
) -> MinimizeLoop:
    """One evaluation, and what follows from it."""
    there = method.evaluate(problem, loop.plan.x, loop.plan.state)
    more = method.evaluations(loop.plan.state)
    answer: Answer = method.respond(problem, loop.point, loop.plan.state, there)
    moved = answer.verdict == MOVED
    here = jax.tree.map(lambda a, b: jnp.where(moved, a, b), answer.point, loop.point)
    pull = tol.felt(problem.projected_gradient(here), here.x)
    progress = loop.progress.after(moved, loop.point.value - here.value, here)

    planning = (answer.verdict == MOVED) | (answer.verdict == AGAIN)

    def planned() -> StepPlan:
        state = answer.state
        if method.searches:  # the others claim nothing by the value
            state = cond(loop.anew, lambda: method.begin(problem, here), lambda: answer.state)
        return method.plan(problem, here, state)

    plan = cond(planning, planned, lambda: loop.plan._replace(x=answer.x, state=answer.state))
    status, progress, doubtful = judged(answer.verdict, loop.point, here, plan, pull, progress, tol)
    elsewhere = jnp.any(there.x != loop.point.x)  # a step may be too short to lead away
    met = loop.met | (there.is_finite() & elsewhere)
    # A method that takes every step fails by nothing else.
    nowhere = ~met if method.searches else ~there.is_finite()
    lost = (status == Status.STALLED.value) & nowhere
    status = jnp.where(lost, Status.NONFINITE_STEP.array, status)
    one = jnp.ones((), jnp.int32)
    best = loop.best
    if best is not None:
        lower = moved & (here.value < best.value) & here.is_finite()
        best = jax.tree.map(lambda a, b: jnp.where(lower, a, b), here, best)
    return loop._replace(
        point=here,
        best=best,
        plan=plan,
        progress=progress,
        anew=doubtful | (loop.anew & ~planning),
        met=met,
        status=status,
        steps=loop.steps + one,
        nfev=loop.nfev + more,
    )


def _watched(
    before: MinimizeLoop,
    loop: MinimizeLoop,
    units: Units,
    watch: Callable[[MinimizeLoop, jax.Array, StepHistory], jax.Array] | None,
) -> MinimizeLoop:
    """Writes the history and calls the callback, where asked to."""
    if watch is None and loop.history is None:
        return loop
    point = loop.point
    slope = length(point.gradient * (units.value / units.x))
    step_length = length((before.plan.x - before.point.x) * units.x)
    accepted = jnp.any(point.x != before.point.x)
    entry = StepHistory(point.value * units.value, slope, step_length, accepted)
    if watch is not None:
        loop = loop._replace(status=watch(loop, point.x * units.x, entry))
    return loop._replace(history=noted(loop.history, loop.steps, entry))
