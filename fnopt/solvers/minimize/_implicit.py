"""Derivatives of a minimum by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnopt.jacobians import lacks_forward
from fnopt.programs import convert_closure
from fnopt.residuals import minimum_tangent, projected_tangent, pushed, value_and_slope
from fnopt.solvers._bounded import shifted
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


def implicitly(
    iterate: Callable[[SmoothObjective, jax.Array, Any], tuple[Any, Evaluation]],
    problem: SmoothObjective,
    x: jax.Array,
    traced: Any,
) -> tuple[Any, Evaluation]:
    """Differentiate the result of an iteration by the implicit function theorem.

    The initial guess and `traced` don't change a minimum, so their derivatives are zero.

    Args:
        iterate: `iterate(problem, x, traced)` returns any tree and the last point.
        problem: The problem.
        x: The initial guess.
        traced: Further arrays that the iteration reads.

    Returns:
        The result of `iterate`.
    """
    # Captured arrays become arguments, so that they can have a derivative.
    f, consts = convert_closure(problem.f, x)
    onto, more = convert_closure(problem.projection or (lambda v: v), x)

    def rebuilt(data: Any) -> SmoothObjective:
        consts, box, more = data
        project = None if problem.projection is None else lambda v: onto(v, *more)
        return problem._replace(f=lambda v: f(v, *consts), box=box, projection=project)

    @jax.custom_jvp
    def run(x: jax.Array, data: Any, traced: Any) -> tuple[Any, Evaluation]:
        return iterate(rebuilt(data), x, traced)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (_, data, _), (_, change, _) = primals, tangents
        rest, end = run(*primals)

        def value(x: jax.Array, data: Any) -> jax.Array:
            return rebuilt(data).f(x)

        mode = "reverse" if lacks_forward(lambda x: value(x, data), end.x) else "auto"
        held = None
        if problem.box is not None:
            _, slope = value_and_slope(lambda v: value(v, data), end.x)
            held = shifted(data[1], end.x, slope, change[1])
        if problem.projection is None:
            dx = minimum_tangent(value, end.x, data, change, held, mode)
        else:

            def nearest(y: jax.Array, data: Any) -> jax.Array:
                return onto(y, *data[2])

            dx = projected_tangent(value, nearest, end.x, data, change, mode)
        _, fall = pushed(value, (end.x, data), (dx, change), mode)
        still = jax.custom_derivatives.zero_from_primal((rest, end))
        return (rest, end), (still[0], still[1]._replace(x=dx, value=fall))

    return run(x, (consts, problem.box, more), traced)
