"""Derivatives of a minimum by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnopt.jacobians import lacks_forward
from fnopt.programs import convert_closure
from fnopt.residuals import minimum_tangent, projected_tangent, pushed, value_and_slope
from fnopt.solvers._bounded import active_set_tangent
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


def implicitly(
    iterate: Callable[[SmoothObjective, jax.Array, Any], tuple[Any, Evaluation]],
    problem: SmoothObjective,
    x: jax.Array,
    traced: Any,
) -> tuple[Any, Evaluation]:
    """Run an iteration whose derivatives follow from the implicit function theorem.

    A minimum depends neither on the initial guess nor on `traced`, so the derivatives with respect
    to both are zero.

    Args:
        iterate: `iterate(problem, x, traced)` returns any tree and the last point.
        problem: The problem.
        x: The initial guess.
        traced: Additional arrays that the iteration reads.

    Returns:
        The result of `iterate`.
    """
    # `custom_jvp` differentiates only with respect to arguments, so captured arrays become
    # arguments.
    f, f_consts = convert_closure(problem.f, x)
    projection, p_consts = convert_closure(problem.projection or (lambda v: v), x)

    def rebuild(data: Any) -> SmoothObjective:
        f_consts, box, p_consts = data
        project = None if problem.projection is None else lambda v: projection(v, *p_consts)
        return problem._replace(f=lambda v: f(v, *f_consts), box=box, projection=project)

    @jax.custom_jvp
    def run(x: jax.Array, data: Any, traced: Any) -> tuple[Any, Evaluation]:
        return iterate(rebuild(data), x, traced)

    @run.defjvp
    def run_jvp(primals: Any, tangents: Any) -> Any:
        (_, data, _), (_, data_dot, _) = primals, tangents
        rest, end = run(*primals)

        def value(x: jax.Array, data: Any) -> jax.Array:
            return rebuild(data).f(x)

        mode = "reverse" if lacks_forward(lambda x: value(x, data), end.x) else "auto"
        active = None
        if problem.box is not None:
            _, gradient = value_and_slope(lambda v: value(v, data), end.x)
            active = active_set_tangent(data[1], end.x, gradient, data_dot[1])
        if problem.projection is None:
            x_dot = minimum_tangent(value, end.x, data, data_dot, active, mode)
        else:

            def project(y: jax.Array, data: Any) -> jax.Array:
                return projection(y, *data[2])

            x_dot = projected_tangent(value, project, end.x, data, data_dot, mode)
        _, value_dot = pushed(value, (end.x, data), (x_dot, data_dot), mode)
        zeros = jax.custom_derivatives.zero_from_primal((rest, end))
        return (rest, end), (zeros[0], zeros[1]._replace(x=x_dot, value=value_dot))

    return run(x, (f_consts, problem.box, p_consts), traced)
