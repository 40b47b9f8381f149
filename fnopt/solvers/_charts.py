"""Search for params on manifolds by a sequence of charts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.sharding import while_loop
from fnopt.solvers._loop import zeros_of
from fnopt.solvers.problem._problem import Setting
from fnopt.solvers.result._solution import Solution, StepHistory


class _Chart(NamedTuple):
    """The solution on a chart, and the initial vector of the next chart."""

    x: jax.Array  # tangent coordinates, followed by base points
    end: Solution
    moved: jax.Array  # whether the solution differs from its base points


def through_charts(
    setting: Setting,
    solve: Callable[[jax.Array, jax.Array], Solution],
    x: jax.Array,
    max_steps: jax.Array,
) -> Solution:
    """Solve in tangent coordinates, move the base points to the solution, and repeat.

    The last solution agrees with its base points. Jacobian, certificate and covariance then refer
    to the tangent space at the solution, up to rounding error. The choice of the retraction has
    only an effect of second order in the tangent coordinates.

    Args:
        setting: The problem.
        solve: `solve(x, max_steps)` solves with the base points at the end of `x` as constants.
        x: The initial guess.
        max_steps: The maximum number of steps of all charts together.

    Returns:
        The last solution. Its params are the vector with base points, and its numbers of steps and
        evaluations are sums over all charts.
    """
    fitted = setting.problem.fitted
    # An effect of second order in coordinates below the root of epsilon is a rounding error.
    tolerance = jnp.asarray(float(jnp.finfo(x.dtype).eps) ** 0.5, x.dtype)

    def advance(chart: _Chart) -> _Chart:
        end = solve(chart.x, max_steps - chart.end.steps)
        solution = jnp.concatenate([end.params, chart.x[fitted:]])
        rebased = setting.rebased(solution)
        moved = jnp.max(jnp.abs(rebased - solution)[:fitted], initial=0) > tolerance
        end = _add_counts(chart.end, end)
        stopped = end.status == Status.STOPPED.value
        moved &= (end.steps < max_steps) & ~stopped & jnp.all(jnp.isfinite(rebased))
        return _Chart(jnp.where(moved, rebased, solution), end, moved)

    start = _Chart(x, zeros_of(solve, x, max_steps), jnp.ones((), bool))
    last = while_loop(lambda chart: chart.moved, advance, start)
    return last.end._replace(params=last.x)


def _add_counts(before: Solution, end: Solution) -> Solution:
    """Add the counts and the history of the previous charts to a solution."""
    names = ("steps", "nfev", "njev", "nhev")
    counts = {name: getattr(before, name) + getattr(end, name) for name in names}
    history = end.history
    if history is not None and before.history is not None:
        is_old = jnp.arange(history.cost.size, dtype=jnp.int32) < before.steps
        history = StepHistory(
            *(
                jnp.where(is_old, old, jnp.roll(new, before.steps))
                for old, new in zip(before.history, history, strict=True)
            )
        )
    return end._replace(history=history, **counts)
