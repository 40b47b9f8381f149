"""The loop of all methods: one evaluation a turn, so that no lane of a batch waits for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, cond, is_converged, while_loop
from fnopt.solvers.result._solution import StepHistory, noted
from fnopt.solvers.smooth._convergence import has_no_bottom, judged
from fnopt.solvers.smooth._method import (
    AGAIN,
    MOVED,
    Answer,
    Evaluation,
    MinimizeMethod,
    SmoothObjective,
    StepPlan,
    length,
)
from fnopt.solvers.smooth._progress import SearchProgress
from fnopt.solvers.smooth._tolerances import StoppingTolerances
from fnopt.solvers.smooth._units import Units


class Counts(NamedTuple):
    """What goes on from round to round."""

    steps: jax.Array
    nfev: jax.Array
    history: StepHistory | None


class MinimizeLoop(NamedTuple):
    """The state of the loop."""

    point: Evaluation
    best: Evaluation | None  # the lowest point, where the method may go up
    plan: StepPlan
    progress: SearchProgress
    anew: jax.Array  # whether the next plan is made without what was learned
    met: jax.Array  # whether any point but the first was finite
    status: jax.Array
    counts: Counts


Watch = Callable[[MinimizeLoop, jax.Array, StepHistory], jax.Array]

# A slope that is as steep as at the start so many times as far away never ends.
_FAR = 1e15


class RoundEnd(NamedTuple):
    """The end of a round, in its own units."""

    point: Evaluation
    pull: jax.Array  # [n], the gradient without what bounds hold
    status: jax.Array
    progress: SearchProgress
    counts: Counts


def run_round(
    problem: SmoothObjective,
    method: MinimizeMethod,
    point: Evaluation,
    status: jax.Array,
    progress: SearchProgress,
    counts: Counts,
    tol: StoppingTolerances,
    units: Units,
    max_steps: int,
    watch: Watch | None,
) -> RoundEnd:
    """Runs a method from a point to its end."""
    loop = _started(problem, method, point, status, progress, counts)

    def step(loop: MinimizeLoop) -> MinimizeLoop:
        before, loop = loop, _advanced(problem, method, tol, loop)
        endless = (loop.status == Status.RUNNING.value) & has_no_bottom(point, loop.point, _FAR)
        loop = loop._replace(status=jnp.where(endless, Status.UNBOUNDED.array, loop.status))
        return _watched(before, loop, units, watch)

    def unfinished(loop: MinimizeLoop) -> jax.Array:
        return (loop.status == Status.RUNNING.value) & (loop.counts.steps < max_steps)

    loop = while_loop(unfinished, step, loop)
    end = _found(loop)
    pull = problem.projected_gradient(end)
    running = loop.status == Status.RUNNING.value
    status = jnp.where(running, Status.MAX_STEPS.array, loop.status)
    endless = ~is_converged(status) & has_no_bottom(point, end)
    status = jnp.where(endless, Status.UNBOUNDED.array, status)
    return RoundEnd(end, pull, status, loop.progress, loop.counts)


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
    status: jax.Array,
    progress: SearchProgress,
    counts: Counts,
) -> MinimizeLoop:
    plan = method.plan(problem, point, method.begin(problem, point))
    best = None if method.monotone else point
    no = jnp.zeros((), bool)
    return MinimizeLoop(point, best, plan, progress, no, no, status, counts)


def _advanced(
    problem: SmoothObjective, method: MinimizeMethod, tol: StoppingTolerances, loop: MinimizeLoop
) -> MinimizeLoop:
    """One evaluation, and what follows from it."""
    there = method.evaluate(problem, loop.plan.x, loop.plan.state)
    more = method.evaluations(loop.plan.state)
    answer: Answer = method.respond(problem, loop.point, loop.plan.state, there)
    moved = answer.verdict == MOVED
    here = jax.tree.map(lambda a, b: jnp.where(moved, a, b), answer.point, loop.point)
    pull = problem.projected_gradient(here)
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
    counts = loop.counts._replace(steps=loop.counts.steps + one, nfev=loop.counts.nfev + more)
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
        counts=counts,
    )


def _watched(
    before: MinimizeLoop,
    loop: MinimizeLoop,
    units: Units,
    watch: Watch | None,
) -> MinimizeLoop:
    """Writes the history and calls the callback, where asked to."""
    if watch is None and loop.counts.history is None:
        return loop
    point = loop.point
    slope = length(point.gradient * (units.value / units.x))
    step_length = length((before.plan.x - before.point.x) * units.x)
    accepted = jnp.any(point.x != before.point.x)
    entry = StepHistory(point.value * units.value, slope, step_length, accepted)
    if watch is not None:
        loop = loop._replace(status=watch(loop, point.x * units.x, entry))
    counts = loop.counts
    history = noted(counts.history, counts.steps, entry)
    return loop._replace(counts=counts._replace(history=history))
