"""Derivatives of a solution by the implicit function theorem."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.jacobians import SparseJacobian, lacks_forward
from fnopt.numerics import matmul
from fnopt.programs import convert_closure
from fnopt.residuals import linearize, minimum_tangent, pushed
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
Data = tuple[Any, Any, Any]  # captured arrays of the functions, losses, bounds


def implicitly(
    iterate: Callable[[Problem, Any, jax.Array, jax.Array], Solution],
    problem: Problem,
    solver: Any,
    x: jax.Array,
    max_steps: jax.Array,
) -> Solution:
    """Run a search whose derivatives follow from the implicit function theorem.

    Params, cost, residuals and Jacobian of the solution are differentiable with respect to all
    arrays that the residuals, losses and bounds depend on: arguments and captured arrays. The
    derivative with respect to the initial guess is zero, because the minimum doesn't depend on it.

    Args:
        iterate: `iterate(problem, solver, x, max_steps)` returns a solution made of vectors.
        problem: The problem.
        solver: The method.
        x: The initial guess.
        max_steps: The maximum number of steps.

    Returns:
        The solution that `iterate` returns.
    """
    # `custom_jvp` differentiates only with respect to arguments, so captured arrays become
    # arguments.
    flat, one = problem.flat, jnp.ones((), x.dtype)
    derivative, ones = flat.derivative, pvary_over_rows(jnp.ones(flat.m, x.dtype))
    closures = (
        _split_closure(flat.r, x, mark=pvary_over_rows),
        _split_closure(problem.squares, x, one, mark=pvary_over_rows),
        _split_closure(flat.gram, x, one),
        _split_closure(derivative and derivative.at, x),
        _split_closure(derivative and derivative.gram, x, ones, ones),
    )
    all_consts = tuple(consts for _, consts in closures)
    axes, mode = row_axes(), solver.jacobian

    def rebuild(data: Data) -> Problem:
        all_consts, losses, box = data
        r, squares, gram, at, chunks = (
            bind(consts) for (bind, _), consts in zip(closures, all_consts, strict=True)
        )
        gram_fn = gram and (lambda x, by=None: gram(x, one if by is None else by))
        new_derivative = derivative and derivative._replace(at=at, gram=chunks)
        new_flat = flat._replace(r=r, gram=gram_fn, derivative=new_derivative)
        return Problem(new_flat, losses, box, squares, problem.fitted)

    @jax.custom_jvp
    def run(x: jax.Array, data: Data, solver: Any, max_steps: jax.Array) -> Solution:
        return iterate(rebuild(data), solver, x, max_steps)

    @run.defjvp
    def run_jvp(primals: Any, tangents: Any) -> tuple[Solution, Solution]:
        (_, data, *_), (_, data_dot, *_) = primals, tangents
        with rows_sharded_over(axes):  # JAX traces the rule after the caller's context has ended
            end = run(*primals)
            tangent = _tangent(rebuild, end, data, data_dot, mode)
        return end._replace(params=_on_mesh_of(end.params, tangent.params)), tangent

    return run(x, (all_consts, problem.losses, problem.box), solver, max_steps)


def _on_mesh_of(x: jax.Array, like: jax.Array) -> jax.Array:
    """Put an array on the mesh of another array, because JAX 0.7 compares the meshes of carries.

    An array that depends on no input of a `shard_map` is on no mesh.
    """
    if jax.typeof(x).sharding.mesh == jax.typeof(like).sharding.mesh:
        return x
    return x + jnp.zeros_like(like)


def _split_closure(
    fn: Any, x: jax.Array, *rest: jax.Array, mark: Callable[[jax.Array], jax.Array] = lambda x: x
) -> tuple[Callable[[list[Any]], Any], list[Any]]:
    """Split a function into a function of its captured arrays, and these arrays.

    Args:
        fn: `fn(x, *rest)`, or None.
        x: An argument of `fn`.
        *rest: Additional arguments of `fn`.
        mark: Applied to `x`; marks it as varying over the axes of the rows.

    Returns:
        `bind`, and `consts`. `bind(consts)` is equivalent to `fn`, or None if `fn` is None.
    """
    if fn is None:
        return lambda consts: None, []
    function, consts = convert_closure(fn, mark(x), *rest)
    return lambda consts: lambda x, *rest: function(mark(x), *rest, *consts), consts


def _tangent(
    problem_of: Callable[[Data], Problem], end: Solution, data: Data, data_dot: Data, mode: str
) -> Solution:
    """Return the tangent of the solution.

    Args:
        problem_of: The problem as a function of the data.
        end: The solution.
        data: The data.
        data_dot: The tangent of the data.
        mode: The mode of the Jacobian: `'auto'`, `'forward'` or `'reverse'`.
    """
    vector = end.params

    def chart_problem(data: Data) -> Problem:
        return problem_of(data).on_chart(vector)[0]

    x = problem_of(data).on_chart(vector)[1]
    dense_J = end.jacobian if isinstance(end.jacobian, jax.Array) else None
    # Second derivatives of unscaled residuals and params may overflow or underflow.
    residual_scale, scale = scales_at_solution(chart_problem(data), end.residuals, dense_J)

    def cost(x: jax.Array, data: Data) -> jax.Array:
        return scale_residuals(chart_problem(data), residual_scale).cost_at(scale * x)

    def values(x: jax.Array, data: Data) -> tuple[Any, Any, Any]:
        return _values_at(chart_problem(data), x, mode, dense_J is not None)

    problem, axes = chart_problem(data), row_axes()
    push_mode = "forward" if mode == "forward" else "auto"
    if push_mode == "auto" and lacks_forward(problem.flat.r, x):
        push_mode = "reverse"
    active = None
    if problem.box is not None:
        gradient = psum_rows(_gradient(scale_residuals(problem, residual_scale), x, mode))
        mask, shift = active_set_tangent(problem.box, x, gradient, data_dot[2])
        active = mask, shift / scale
    point = pvary_over_rows(x / scale)
    # Each device differentiates the cost of its own rows, and `total` sums over devices.
    with rows_sharded_over(()):
        total = functools.partial(psum, axis_name=axes) if axes else None
        jacobian = None
        if end.jacobian is not None:
            jacobian = functools.partial(_scaled_jacobian, end.jacobian, residual_scale, scale)
        dx = minimum_tangent(cost, point, data, data_dot, active, push_mode, total, jacobian)
        dx = scale * dx
        primals = (pvary_over_rows(x), data), (pvary_like(dx, point), data_dot)
        (_, _, J), (cost_dot, r_dot, J_dot) = pushed(values, *primals, push_mode)
    if axes:
        cost_dot = psum_rows(cost_dot)
        J_dot = None if J_dot is None else _triangle_tangent(dense_J, J, J_dot)
    zero = jax.custom_derivatives.zero_from_primal(end)
    # The tangent coordinates move the points, so the base points are constants.
    zero_bases = jnp.zeros_like(vector[x.size :])
    dx = jnp.concatenate([dx, zero_bases]) if zero_bases.size else dx
    tangent = zero._replace(params=dx, cost=cost_dot, residuals=r_dot)
    # A sparse Jacobian is treated as constant.
    return tangent if dense_J is None else tangent._replace(jacobian=J_dot)


def _scaled_jacobian(
    J: jax.Array | SparseJacobian, residual_scale: jax.Array, scale: jax.Array
) -> jax.Array:
    dense = J.matrix() if isinstance(J, SparseJacobian) else J
    return residual_scale * dense * scale


def _values_at(problem: Problem, x: jax.Array, mode: str, with_jacobian: bool) -> tuple[Any, ...]:
    """Return cost, residuals and Jacobian (None without `with_jacobian`) in differentiable form."""
    r = problem.flat.r(x)
    if not with_jacobian:
        return problem.cost_at(x), r, None
    # The user's Jacobian isn't used, because J has to be a derivative of the residual function.
    # Therefore arrays that only the user's Jacobian captures have zero derivatives.
    _, J = linearize(problem.flat._replace(derivative=None), x, mode)
    return problem.cost_at(x), r, J if problem.losses is None else problem.losses.weight_rows(J, r)


def _triangle_tangent(R: jax.Array | None, J: jax.Array, dJ: jax.Array) -> jax.Array:
    r"""Return the tangent of the triangular factor `R` of a Jacobian with sharded rows.

    .. math:: R^\top R = J^\top J, \qquad dR = \Phi(K + K^\top)\, R, \qquad
              K = (J R^{-1})^\top\, dJ\, R^{-1}

    where :math:`\Phi` returns the upper triangle with half of the diagonal. Rows of `R` with a zero
    pivot are treated as constants.

    Args:
        R: The triangular factor, of shape `[n, n]`, on every device.
        J: This device's rows of the Jacobian.
        dJ: The tangent of these rows.
    """
    assert R is not None
    has_pivot = (jnp.diagonal(R) != 0).astype(R.dtype)
    invertible = R + jnp.diag(1 - has_pivot)
    # triangular_solve(R, J) without left_side is J R^-1.
    divide_by_R = functools.partial(
        lax.linalg.triangular_solve, pvary_over_rows(invertible), lower=False
    )
    K = psum_rows(matmul(divide_by_R(J).T, divide_by_R(dJ)))
    upper = jnp.triu(K + K.T)
    return matmul(has_pivot[:, None] * (upper - jnp.diag(jnp.diagonal(upper) / 2)), R)


def _gradient(problem: Problem, x: jax.Array, mode: str) -> jax.Array:
    r, J = linearize(problem.model, x, mode)
    return matmul(r, J)
