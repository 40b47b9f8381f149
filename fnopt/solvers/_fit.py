"""A least-squares fit under a trace: conversion to a vector, search, conversion to params."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import is_converged
from fnopt.jacobians import SparseJacobian
from fnopt.residuals import ExampleResiduals
from fnopt.sharding import pvary_for
from fnopt.solvers._bounded import within_bounds
from fnopt.solvers._charts import through_charts
from fnopt.solvers._implicit import implicitly
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers._search import SearchOptions, search
from fnopt.solvers._starts import lowest, starting_points
from fnopt.solvers._stopping import checked_status
from fnopt.solvers.problem._jacobian_check import checked_jacobian
from fnopt.solvers.problem._problem import Problem, Setting, flatten_problem, with_examples
from fnopt.solvers.result._solution import Solution


def fit(
    residual_fn: Any,
    jac: Any,
    params: Any,
    args: tuple[Any, ...],
    solver: LeastSquaresMethod,
    max_steps: jax.Array,
    options: dict[str, Any],
    *,
    search_options: SearchOptions,
) -> Solution:
    """Fit params to data under a trace.

    Args:
        residual_fn: The residual function, or the per-example functions of a batch.
        jac: The user's Jacobian, or None.
        params: The initial guess.
        args: Additional arguments of both functions; the batch is the first.
        solver: The method.
        max_steps: The maximum number of steps.
        options: Loss, sigma, weights, bounds and constraints.
        search_options: The static options of the search.
    """
    params = pvary_for(residual_fn, params, *args)
    setting = flatten_problem(residual_fn, params, args, jac=jac, **options)
    if setting.problem.box is not None:
        solver = within_bounds(solver, setting.problem.flat)
    if isinstance(residual_fn, ExampleResiduals) and setting.problem.fitted is None:
        setting = with_examples(setting, residual_fn, args, solver)
        search_options = search_options._replace(check_jac=False)
    return _solve(setting, solver, max_steps, search_options)


def _solve(
    setting: Setting, solver: LeastSquaresMethod, max_steps: jax.Array, options: SearchOptions
) -> Solution:
    def run(
        problem: Problem, solver: LeastSquaresMethod, x: jax.Array, max_steps: jax.Array
    ) -> Solution:
        def solve(x: jax.Array, max_steps: jax.Array) -> Solution:
            chart = setting._replace(problem=problem).on_chart(x)
            box = chart.problem.box
            if box is not None:
                x = jnp.where(box.is_feasible(), box.nearest(chart.x), chart.x)
                chart = chart._replace(x=x)
            end = search(chart, solver, max_steps, options)
            if options.check_jac:
                end = checked_jacobian(chart.problem, solver, chart.x, end)
            return end

        if problem.fitted is None:
            return solve(x, max_steps)
        return through_charts(setting, solve, x, max_steps)

    problem = setting.problem

    def solve(x: jax.Array) -> Solution:
        return implicitly(run, problem, solver, x, max_steps)

    if options.starts > 1 and problem.fitted is not None:
        raise ValueError(
            f"least_squares: starts = {options.starts} with params on manifolds, expected "
            "starts = 1. To search from several points, call least_squares for each point."
        )
    if options.starts == 1:
        end = solve(setting.x)
    else:
        end = lowest(solve, starting_points(setting.x, problem.box, options.starts))
    # The conversion is outside of `run`, because `run` is traced again for derivatives.
    final = setting.on_chart(end.params)
    count = setting.dof + final.x.size  # number of residuals with nonzero weight
    status = checked_status(end.status, count > 0, end.cost, count)
    certified = end.certificate.certified & is_converged(status)
    tangent = None
    if end.jacobian is not None:
        tangent = final.tangent(final.x, isinstance(end.jacobian, SparseJacobian))
    return end._replace(
        certificate=end.certificate._replace(certified=certified),
        params=final.params(final.x),
        status=status,
        residuals=setting.problem.flat.unflatten(end.residuals),
        tangent=tangent,
        dof=jnp.where(end.rank < 0, setting.dof, count - end.rank),
        at_bound=None if setting.problem.box is None else setting.problem.box.side(final.x),
        fixed=None if setting.problem.box is None else setting.problem.box.fixed,
    )
