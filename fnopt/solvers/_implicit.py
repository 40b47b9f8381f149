"""Derivatives of a solution by the implicit function theorem."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.jacobians import lacks_forward
from fnopt.numerics import matmul
from fnopt.programs import convert_closure
from fnopt.residuals import linearise, minimum_tangent, pushed
from fnopt.sharding import (
    psum,
    psum_rows,
    pvary_like,
    pvary_over_rows,
    row_axes,
    rows_sharded_over,
)
from fnopt.solvers._bounded import active_set_tangent
from fnopt.solvers.problem._problem import Problem
from fnopt.solvers.problem._residual_scale import scale_residuals, scales_at_solution
from fnopt.solvers.result._solution import Solution

Map = Callable[[jax.Array], jax.Array]
Data = tuple[Any, Any, Any]  # arrays that residuals (and squares), losses and bounds depend on


def implicitly(
    iterate: Callable[[Problem, Any, jax.Array, jax.Array], Solution],
    problem: Problem,
    solver: Any,
    x: jax.Array,
    max_steps: jax.Array,
) -> Solution:
    """Differentiate the result of an iteration by the implicit function theorem.

    Params, cost, residuals and Jacobian of the result have derivatives with respect to all arrays
    that the residuals, losses and bounds depend on: arguments and captured arrays. The derivative
    with respect to the initial guess is zero, because the minimum doesn't depend on it.

    Args:
        iterate: `iterate(problem, solver, x, max_steps)` returns a solution made of vectors.
        problem: The problem.
        solver: The method.
        x: The initial guess.
        max_steps: The maximum number of steps.

    Returns:
        The solution that `iterate` returns.
    """
    # Captured arrays become arguments, so that they can have a derivative.
    flat, one = problem.flat, jnp.ones((), x.dtype)
    given, ones = flat.derivative, pvary_over_rows(jnp.ones(flat.m, x.dtype))
    opened = (
        _opened(flat.r, x, mark=pvary_over_rows),
        _opened(problem.squares, x, one, mark=pvary_over_rows),
        _opened(flat.gram, x, one),
        _opened(given and given.at, x),
        _opened(given and given.gram, x, ones, ones),
    )
    closed_over = tuple(consts for _, consts in opened)
    axes, mode = row_axes(), solver.jacobian

    def rebuilt(data: Data) -> Problem:
        closed_over, losses, box = data
        r, squares, gram, at, chunks = (
            of_consts(consts) for (of_consts, _), consts in zip(opened, closed_over, strict=True)
        )
        by_factor = gram and (lambda x, by=None: gram(x, one if by is None else by))
        derivative = given and given._replace(at=at, gram=chunks)
        opened_flat = flat._replace(r=r, gram=by_factor, derivative=derivative)
        return Problem(opened_flat, losses, box, squares, problem.fitted)

    @jax.custom_jvp
    def run(x: jax.Array, data: Data, solver: Any, max_steps: jax.Array) -> Solution:
        return iterate(rebuilt(data), solver, x, max_steps)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[Solution, Solution]:
        (_, data, *_), (_, change, *_) = primals, tangents
        with rows_sharded_over(axes):  # JAX traces the rule after this context has ended
            end = run(*primals)
            tangent = _tangent(rebuilt, end, data, change, mode)
        return end._replace(params=_on_mesh_of(end.params, tangent.params)), tangent

    return run(x, (closed_over, problem.losses, problem.box), solver, max_steps)


def _on_mesh_of(x: jax.Array, like: jax.Array) -> jax.Array:
    """Put an array on the mesh of another array, because JAX 0.7 compares the meshes of carries.

    An array that depends on no input of a `shard_map` is on no mesh.
    """
    if jax.typeof(x).sharding.mesh == jax.typeof(like).sharding.mesh:
        return x
    return x + jnp.zeros_like(like)


def _opened(
    fn: Any, x: jax.Array, *rest: jax.Array, mark: Callable[[jax.Array], jax.Array] = lambda x: x
) -> tuple[Callable[[list[Any]], Any], list[Any]]:
    """Convert captured arrays of a function to arguments; return both. None stays None."""
    if fn is None:
        return lambda consts: None, []
    function, consts = convert_closure(fn, mark(x), *rest)
    return lambda consts: lambda x, *rest: function(mark(x), *rest, *consts), consts


def _tangent(
    problem_of: Callable[[Data], Problem], end: Solution, data: Data, change: Data, mode: str
) -> Solution:
    vector = end.params

    def rebuilt(data: Data) -> Problem:
        return problem_of(data).on_chart(vector)[0]

    x = problem_of(data).on_chart(vector)[1]
    full = end.jacobian if isinstance(end.jacobian, jax.Array) else None
    residual_scale, scale = scales_at_solution(rebuilt(data), end.residuals, full)

    def cost(x: jax.Array, data: Data) -> jax.Array:
        return scale_residuals(rebuilt(data), residual_scale).cost_at(scale * x)

    def derived(x: jax.Array, data: Data) -> tuple[Any, Any, Any]:
        return _derived(rebuilt(data), x, mode, full is not None)

    problem, axes = rebuilt(data), row_axes()
    in_mode = "forward" if mode == "forward" else "auto"
    if in_mode == "auto" and lacks_forward(problem.flat.r, x):
        in_mode = "reverse"
    active = None
    if problem.box is not None:
        gradient = psum_rows(_gradient(scale_residuals(problem, residual_scale), x, mode))
        mask, shift = active_set_tangent(problem.box, x, gradient, change[2])
        active = mask, shift / scale
    point = pvary_over_rows(x / scale)
    with rows_sharded_over(()):  # rows of this device alone
        total = functools.partial(psum, axis_name=axes) if axes else None
        dx = minimum_tangent(cost, point, data, change, active, in_mode, total)
        dx = scale * dx
        primals = (pvary_over_rows(x), data), (pvary_like(dx, point), change)
        (_, _, J), (cost_change, r, dJ) = pushed(derived, *primals, in_mode)
    if axes:
        cost_change = psum_rows(cost_change)
        dJ = None if dJ is None else _triangle_change(full, J, dJ)
    zero = jax.custom_derivatives.zero_from_primal(end)
    zero_bases = jnp.zeros_like(vector[x.size :])  # the coordinates move the points
    dx = jnp.concatenate([dx, zero_bases]) if zero_bases.size else dx
    tangent = zero._replace(params=dx, cost=cost_change, residuals=r)
    # A sparse Jacobian counts as constant.
    return tangent if full is None else tangent._replace(jacobian=dJ)


def _derived(problem: Problem, x: jax.Array, mode: str, with_jacobian: bool) -> tuple[Any, ...]:
    r = problem.flat.r(x)
    if not with_jacobian:
        return problem.cost_at(x), r, None
    # The function itself is differentiated, so arrays that only the user's Jacobian captures have
    # no effect.
    _, J = linearise(problem.flat._replace(derivative=None), x, mode)
    return problem.cost_at(x), r, problem.weight_rows(J, r)


def _triangle_change(R: jax.Array | None, J: jax.Array, dJ: jax.Array) -> jax.Array:
    r"""Return the tangent of the triangular factor `R` of rows that are sharded over devices.

    .. math:: R^\top R = J^\top J, \qquad dR = \Phi(K + K^\top)\, R, \qquad
              K = (J R^{-1})^\top\, dJ\, R^{-1}

    where :math:`\Phi` takes the upper triangle with half of the diagonal. A row of `R` without a
    pivot is treated as constant.
    """
    assert R is not None
    pivots = (jnp.diagonal(R) != 0).astype(R.dtype)
    safe = R + jnp.diag(1 - pivots)
    divided = functools.partial(lax.linalg.triangular_solve, pvary_over_rows(safe), lower=False)
    K = psum_rows(matmul(divided(J).T, divided(dJ)))
    both = jnp.triu(K + K.T)
    return matmul(pivots[:, None] * (both - jnp.diag(jnp.diagonal(both) / 2)), R)


def _gradient(problem: Problem, x: jax.Array, mode: str) -> jax.Array:
    r, J = linearise(problem.model, x, mode)
    return matmul(r, J)
