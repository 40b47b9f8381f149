"""Derivatives of a solution by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import matmul, own, row_axes
from fnopt.programs import opened
from fnopt.residuals import Derivative, linearise, minimum_tangent, pushed
from fnopt.solvers._bounded import shifted
from fnopt.solvers._problem import Problem
from fnopt.solvers._solution import Solution

Map = Callable[[jax.Array], jax.Array]
Data = tuple[Any, Any, Any]  # what residuals (and their squares), losses and bounds depend on


def implicitly(
    iterate: Callable[[Problem, Any, jax.Array], Solution],
    problem: Problem,
    solver: Any,
    x: jax.Array,
) -> Solution:
    """An iteration whose result is differentiated by the implicit function theorem.

    Params, cost, residuals and Jacobian of the result have derivatives with respect to all that
    the residuals, losses and bounds depend on: arguments, or what the residual function closes
    over. The start has none: the minimum doesn't depend on it.

    Args:
        iterate: `iterate(problem, solver, x)` returns a solution made of vectors.
        problem: The problem.
        solver: The method.
        x: Where to start.

    Returns:
        What `iterate` returns.
    """
    # What the residuals close over becomes an argument, so that it can have a derivative.
    r, consts = opened(problem.flat.r, own(x))
    given, at_consts = _opened(problem.flat.derivative, x, problem.flat.m)
    gram, gram_consts = _opened_gram(problem.flat.gram, x)
    squares, more = _opened_squares(problem.squares, own(x))
    divided = bool(row_axes())
    mode = getattr(solver, "jacobian", "auto")

    def rebuilt(data: Data) -> Problem:
        (consts, at_consts, gram_consts, more), losses, box = data
        flat = problem.flat._replace(r=lambda v: r(own(v), *consts), gram=gram(gram_consts))
        if given is not None:
            flat = flat._replace(derivative=given(at_consts))
        return Problem(flat, losses, box, squares(more))

    @jax.custom_jvp
    def run(x: jax.Array, data: Data, solver: Any) -> Solution:
        return iterate(rebuilt(data), solver, x)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[Solution, Solution]:
        if divided:
            raise NotImplementedError(
                "least_squares: a solution over a named axis (axis_name) has no derivatives. "
                "Differentiate a fit outside of jax.shard_map, which takes divided arrays too, or "
                "stop the gradient with jax.lax.stop_gradient on what the fit depends on."
            )
        (_, data, _), (_, change, _) = primals, tangents
        end = run(*primals)
        return end, _tangent(rebuilt, end, data, change, mode)

    closed_over = consts, at_consts, gram_consts, more
    return run(x, (closed_over, problem.losses, problem.box), solver)


def _opened_gram(gram: Any, x: jax.Array) -> tuple[Callable[[list[Any]], Any], list[Any]]:
    if gram is None:
        return lambda consts: None, []
    function, consts = opened(gram, x, jnp.ones((), x.dtype))

    def rebuilt(consts: list[Any]) -> Any:
        def at(x: jax.Array, factor: Any = None) -> jax.Array:
            return function(x, jnp.ones((), x.dtype) if factor is None else factor, *consts)

        return at

    return rebuilt, consts


def _opened_squares(
    squares: Map | None, x: jax.Array
) -> tuple[Callable[[list[Any]], Map | None], list[Any]]:
    if squares is None:
        return lambda consts: None, []
    function, consts = opened(squares, x)
    return lambda consts: lambda v: function(own(v), *consts), consts


def _opened(
    given: Derivative | None, x: jax.Array, m: int
) -> tuple[Callable[[Any], Derivative] | None, list[Any]]:
    """The user's Jacobian as a function of what it closes over, and that."""
    if given is None:
        return None, []
    at, consts = opened(given.at, x)
    if given.gram is None:
        return lambda consts: given._replace(at=lambda v: at(v, *consts)), consts
    one = own(jnp.ones(m, x.dtype))
    gram, more = opened(given.gram, x, one, one)

    def rebuilt(consts: Any) -> Derivative:
        first, second = consts[: len(consts) - len(more)], consts[len(consts) - len(more) :]
        return given._replace(
            at=lambda v: at(v, *first), gram=lambda v, d, w: gram(v, d, w, *second)
        )

    return rebuilt, [*consts, *more]


def _tangent(
    rebuilt: Callable[[Data], Problem], end: Solution, data: Data, change: Data, mode: str
) -> Solution:
    x = end.params

    def cost(x: jax.Array, data: Data) -> jax.Array:
        return rebuilt(data).cost_at(x)

    def derived(x: jax.Array, data: Data) -> tuple[Any, Any, Any]:
        return _derived(rebuilt(data), x, mode, end.jacobian is not None)

    problem = rebuilt(data)
    held = None
    if problem.box is not None:
        gradient = _gradient(problem, x, mode)
        held = shifted(problem.box, x, gradient, change[2])
    dx = minimum_tangent(cost, x, data, change, held, mode)
    _, (cost_change, r, J) = pushed(derived, (x, data), (dx, change))
    still = jax.tree.map(no_change, end)
    return still._replace(params=dx, cost=cost_change, residuals=r, jacobian=J)


def _derived(problem: Problem, x: jax.Array, mode: str, with_jacobian: bool) -> tuple[Any, ...]:
    r = problem.flat.r(x)
    if not with_jacobian:
        return problem.cost_at(x), r, None
    # By the function itself: what the user's Jacobian depends on is not looked at here.
    _, J = linearise(problem.flat._replace(derivative=None), x, mode)
    return problem.cost_at(x), r, problem.weighed(J, r)


def _gradient(problem: Problem, x: jax.Array, mode: str) -> jax.Array:
    r, J = linearise(problem.model, x, mode)
    return matmul(r, J)


def no_change(leaf: jax.Array) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.zeros_like(leaf)
    return np.zeros(leaf.shape, jax.dtypes.float0)
