"""The polish of a claim: the last steps of a fit whose own steps have fewer digits than the data.

Normal equations square the condition number, and conjugate gradients are cut short. Where the
triangle of a small Jacobian is at hand for the examination of claims, a few full steps by that take
off what such fits leave.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular

from fnopt.core import cond, is_converged, while_loop
from fnopt.solvers._fit_loop import Evaluate, FitLoop
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers.convergence._noise import is_steadier, leans, rounding
from fnopt.solvers.convergence._options import Options
from fnopt.solvers.model._linearization import Linearization, is_finite
from fnopt.solvers.model._scaling import memoryless_scale
from fnopt.solvers.problem._problem import Problem
from fnopt.solvers.problem._units import in_unit

_ROUNDED = 3.0  # times the rounding of the cost, that a step with less of the slope may cost


def polished(
    problem: Problem,
    solver: LeastSquaresMethod,
    options: Options,
    evaluate: Evaluate,
    loop: FitLoop,
    max_steps: int,
    watched: Callable[[Problem, FitLoop, jax.Array], FitLoop],
) -> tuple[FitLoop, Linearization]:
    """The loop after the polish, and its point as claims are examined.

    Steps go on as long as each leaves clearly less of the slope and costs no more than rounding.

    Args:
        problem: The problem, in the user's unit.
        solver: The method.
        options: Its numbers.
        evaluate: Evaluates points.
        loop: The loop at its end.
        max_steps: The most steps in all.
        watched: Notes a step, from the problem in the loop's unit, the loop after it and whether
            it was accepted.
    """
    here = in_unit(problem, loop.unit)
    model = solver.model(here.model)
    exact = model.exact
    if not problem.is_plain:
        return loop, loop.point
    if exact is model or not exact.takes_rows:
        return loop, model.examined(loop.point)

    def unpolished(at: tuple[FitLoop, Linearization, jax.Array]) -> jax.Array:
        loop, seen, goes_on = at
        claims = is_converged(loop.status) & (loop.point.cost > 0) & ~loop.rooted
        slopes = leans(seen, rounding(seen, options))
        return goes_on & claims & slopes & (loop.steps < max_steps)

    def step(
        at: tuple[FitLoop, Linearization, jax.Array],
    ) -> tuple[FitLoop, Linearization, jax.Array]:
        loop, seen, _ = at
        point = loop.point
        x = point.x + _full_step(seen)
        r = here.flat.r(x)
        there = exact.evaluate(x, r)._replace(J=None)
        gained = here.reduction(point, point.r, r, x - point.x)
        most = jnp.asarray(_ROUNDED, gained.dtype) * rounding(seen, options).change
        level = gained >= -most
        better = level & is_finite(there) & is_steadier(there, seen)
        moved = cond(better, lambda: evaluate(x, r, loop.unit), lambda: point)
        loop = loop._replace(
            point=moved,
            steps=loop.steps + jnp.ones((), jnp.int32),
            njev=loop.njev + 1 + better.astype(jnp.int32),
        )
        seen = jax.tree.map(lambda a, b: lax.select(better, a, b), there, seen)
        return watched(here, loop, better), seen, better

    # Nothing but the triangle is needed of the Jacobian, which may be too large to keep.
    begun = loop, model.examined(loop.point)._replace(J=None), jnp.ones((), bool)
    return while_loop(unpolished, step, begun)[:2]


def _full_step(seen: Linearization) -> jax.Array:
    """The step of the linear model that nothing damps, of columns that are independent."""
    assert seen.triangle is not None
    L, c = seen.triangle
    scale = memoryless_scale(seen.columns)
    return -solve_triangular(L / scale[:, None], c, lower=True, trans=1) / scale
