"""Derivatives of a solution by the implicit function theorem."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import matmul
from fnopt.jacobians import lacks_forward
from fnopt.programs import convert_closure
from fnopt.residuals import Derivative, linearise, minimum_tangent, pushed
from fnopt.sharding import (
    psum,
    psum_rows,
    pvary_like,
    pvary_over_rows,
    row_axes,
    rows_sharded_over,
)
from fnopt.solvers._bounded import shifted
from fnopt.solvers.problem._problem import Problem, Squares
from fnopt.solvers.problem._units import end_units, in_unit
from fnopt.solvers.result._solution import Solution

Map = Callable[[jax.Array], jax.Array]
Data = tuple[Any, Any, Any]  # what residuals (and their squares), losses and bounds depend on


def implicitly(
    iterate: Callable[[Problem, Any, jax.Array, jax.Array], Solution],
    problem: Problem,
    solver: Any,
    x: jax.Array,
    max_steps: jax.Array,
) -> Solution:
    """An iteration whose result is differentiated by the implicit function theorem.

    Params, cost, residuals and Jacobian of the result have derivatives with respect to all that
    the residuals, losses and bounds depend on: arguments, or what the residual function closes
    over. The start has none: the minimum doesn't depend on it.

    Args:
        iterate: `iterate(problem, solver, x, max_steps)` returns a solution made of vectors.
        problem: The problem.
        solver: The method.
        x: Where to start.
        max_steps: The most steps.

    Returns:
        What `iterate` returns.
    """
    # What the residuals close over becomes an argument, so that it can have a derivative.
    r, consts = convert_closure(problem.flat.r, pvary_over_rows(x))
    given, at_consts = _opened(problem.flat.derivative, x, problem.flat.m)
    gram, gram_consts = _opened_gram(problem.flat.gram, x)
    squares, more = _opened_squares(problem.squares, pvary_over_rows(x))
    axes, mode = row_axes(), getattr(solver, "jacobian", "auto")

    def rebuilt(data: Data) -> Problem:
        (consts, at_consts, gram_consts, more), losses, box = data
        flat = problem.flat._replace(
            r=lambda v: r(pvary_over_rows(v), *consts), gram=gram(gram_consts)
        )
        if given is not None:
            flat = flat._replace(derivative=given(at_consts))
        return Problem(flat, losses, box, squares(more), problem.fitted)

    @jax.custom_jvp
    def run(x: jax.Array, data: Data, solver: Any, max_steps: jax.Array) -> Solution:
        return iterate(rebuilt(data), solver, x, max_steps)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[Solution, Solution]:
        (_, data, *_), (_, change, *_) = primals, tangents
        with rows_sharded_over(axes):  # the rule is traced when everything else is done
            end = run(*primals)
            moved = _tangent(rebuilt, end, data, change, mode)
        return end._replace(params=_on_mesh_of(end.params, moved.params)), moved

    closed_over = consts, at_consts, gram_consts, more
    return run(x, (closed_over, problem.losses, problem.box), solver, max_steps)


def _on_mesh_of(x: jax.Array, like: jax.Array) -> jax.Array:
    """Put the type of an array on the mesh of another: JAX 0.7 compares the meshes of carries.

    An array that depends on no input of a `shard_map` is on no mesh.
    """
    if jax.typeof(x).sharding.mesh == jax.typeof(like).sharding.mesh:
        return x
    return x + jnp.zeros_like(like)


def _opened_gram(gram: Any, x: jax.Array) -> tuple[Callable[[list[Any]], Any], list[Any]]:
    if gram is None:
        return lambda consts: None, []
    function, consts = convert_closure(gram, x, jnp.ones((), x.dtype))

    def rebuilt(consts: list[Any]) -> Any:
        def at(x: jax.Array, factor: Any = None) -> jax.Array:
            return function(x, jnp.ones((), x.dtype) if factor is None else factor, *consts)

        return at

    return rebuilt, consts


def _opened_squares(
    squares: Squares | None, x: jax.Array
) -> tuple[Callable[[list[Any]], Squares | None], list[Any]]:
    if squares is None:
        return lambda consts: None, []
    function, consts = convert_closure(squares, x, jnp.ones((), x.dtype))
    return (
        lambda consts: lambda v, unit: function(pvary_over_rows(v), pvary_over_rows(unit), *consts),
        consts,
    )


def _opened(
    given: Derivative | None, x: jax.Array, m: int
) -> tuple[Callable[[Any], Derivative] | None, list[Any]]:
    """The user's Jacobian as a function of what it closes over, and that."""
    if given is None:
        return None, []
    at, consts = convert_closure(given.at, x)
    if given.gram is None:
        return lambda consts: given._replace(at=lambda v: at(v, *consts)), consts
    one = pvary_over_rows(jnp.ones(m, x.dtype))
    gram, more = convert_closure(given.gram, x, one, one)

    def rebuilt(consts: Any) -> Derivative:
        first, second = consts[: len(consts) - len(more)], consts[len(consts) - len(more) :]
        return given._replace(
            at=lambda v: at(v, *first), gram=lambda v, d, w: gram(v, d, w, *second)
        )

    return rebuilt, [*consts, *more]


def _tangent(
    of_whole: Callable[[Data], Problem], end: Solution, data: Data, change: Data, mode: str
) -> Solution:
    whole = end.params

    def rebuilt(data: Data) -> Problem:
        return of_whole(data).on_chart(whole)[0]

    x = of_whole(data).on_chart(whole)[1]
    full = end.jacobian if isinstance(end.jacobian, jax.Array) else None
    units = end_units(rebuilt(data), end.residuals, full)

    def cost(x: jax.Array, data: Data) -> jax.Array:
        return units.cost(rebuilt(data), x)

    def derived(x: jax.Array, data: Data) -> tuple[Any, Any, Any]:
        return _derived(rebuilt(data), x, mode, full is not None)

    problem, axes = rebuilt(data), row_axes()
    in_mode = "forward" if mode == "forward" else "auto"
    if in_mode == "auto" and lacks_forward(problem.flat.r, x):
        in_mode = "reverse"
    held = None
    if problem.box is not None:
        gradient = psum_rows(_gradient(in_unit(problem, units.residuals), x, mode))
        mask, shift = shifted(problem.box, x, gradient, change[2])
        held = mask, shift / units.params
    here = pvary_over_rows(x / units.params)
    with rows_sharded_over(()):  # of this device's rows alone
        total = functools.partial(psum, axis_name=axes) if axes else None
        dx = minimum_tangent(cost, here, data, change, held, in_mode, total)
        dx = units.params * dx
        there = (pvary_over_rows(x), data), (pvary_like(dx, here), change)
        (_, _, J), (cost_change, r, dJ) = pushed(derived, *there, in_mode)
    if axes:
        cost_change = psum_rows(cost_change)
        dJ = None if dJ is None else _triangle_change(full, J, dJ)
    still = jax.custom_derivatives.zero_from_primal(end)
    still_bases = jnp.zeros_like(whole[x.size :])  # the coordinates move the points
    dx = jnp.concatenate([dx, still_bases]) if still_bases.size else dx
    moved = still._replace(params=dx, cost=cost_change, residuals=r)
    return moved if full is None else moved._replace(jacobian=dJ)  # a sparse one counts as constant


def _derived(problem: Problem, x: jax.Array, mode: str, with_jacobian: bool) -> tuple[Any, ...]:
    r = problem.flat.r(x)
    if not with_jacobian:
        return problem.cost_at(x), r, None
    # By the function itself: what the user's Jacobian depends on is not looked at here.
    _, J = linearise(problem.flat._replace(derivative=None), x, mode)
    return problem.cost_at(x), r, problem.weighed(J, r)


def _triangle_change(R: jax.Array | None, J: jax.Array, dJ: jax.Array) -> jax.Array:
    r"""The change of the triangle `R` of rows that are divided over devices.

    .. math:: R^\top R = J^\top J, \qquad dR = \Phi(K + K^\top)\, R, \qquad
              K = (J R^{-1})^\top\, dJ\, R^{-1}

    where :math:`\Phi` takes the upper triangle with half of the diagonal. A row without a pivot
    counts as constant.
    """
    assert R is not None
    known = (jnp.diagonal(R) != 0).astype(R.dtype)
    safe = R + jnp.diag(1 - known)
    divided = functools.partial(lax.linalg.triangular_solve, pvary_over_rows(safe), lower=False)
    K = psum_rows(matmul(divided(J).T, divided(dJ)))
    both = jnp.triu(K + K.T)
    return matmul(known[:, None] * (both - jnp.diag(jnp.diagonal(both) / 2)), R)


def _gradient(problem: Problem, x: jax.Array, mode: str) -> jax.Array:
    r, J = linearise(problem.model, x, mode)
    return matmul(r, J)
