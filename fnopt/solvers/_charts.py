"""Search for params on manifolds: solve on a chart, move the base points, solve again."""

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

    x: jax.Array  # tangent coordinates, then base points
    end: Solution
    moved: jax.Array  # whether the solution differs from the base points


def through_charts(
    setting: Setting,
    solve: Callable[[jax.Array, jax.Array], Solution],
    x: jax.Array,
    max_steps: jax.Array,
) -> Solution:
    """Solve in tangent coordinates until the solution is at its base points.

    Jacobian, certificate and covariance then refer to the tangent space at the solution, up to
    rounding error: retractions differ only to second order in their coordinates.

    Args:
        setting: The problem.
        solve: `solve(x, max_steps)` solves with the base points at the end of `x` as constants.
        x: The initial guess.
        max_steps: The maximum total number of steps of all charts.

    Returns:
        The last solution; its params are the whole vector, and its steps are summed over all
        charts.
    """
    fitted = setting.problem.fitted
    root = jnp.asarray(float(jnp.finfo(x.dtype).eps) ** 0.5, x.dtype)

    def advance(at: _Chart) -> _Chart:
        end = solve(at.x, max_steps - at.end.steps)
        reached = jnp.concatenate([end.params, at.x[fitted:]])
        rebased = setting.rebased(reached)
        moved = jnp.max(jnp.abs(rebased - reached)[:fitted], initial=0) > root
        end = _added(at.end, end)
        stopped = end.status == Status.STOPPED.value
        moved &= (end.steps < max_steps) & ~stopped & jnp.all(jnp.isfinite(rebased))
        return _Chart(jnp.where(moved, rebased, reached), end, moved)

    start = _Chart(x, zeros_of(solve, x, max_steps), jnp.ones((), bool))
    last = while_loop(lambda at: at.moved, advance, start)
    return last.end._replace(params=last.x)


def _added(before: Solution, end: Solution) -> Solution:
    """Add the number of steps of the previous charts to the solution."""
    names = ("steps", "nfev", "njev", "nhev")
    counts = {name: getattr(before, name) + getattr(end, name) for name in names}
    history = end.history
    if history is not None and before.history is not None:
        done = jnp.arange(history.cost.size, dtype=jnp.int32) < before.steps
        history = StepHistory(
            *(
                jnp.where(done, old, jnp.roll(new, before.steps))
                for old, new in zip(before.history, history, strict=True)
            )
        )
    return end._replace(history=history, **counts)
