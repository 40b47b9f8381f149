"""The loop to convergence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status
from fnopt.least_squares._convergence import first_of, is_stationary
from fnopt.least_squares._gain import actual_reduction
from fnopt.least_squares._levenberg_marquardt import levenberg_marquardt
from fnopt.least_squares._method import LeastSquaresMethod
from fnopt.least_squares._options import Options
from fnopt.least_squares._point import Point, gradient_cosine, is_finite
from fnopt.least_squares._solution import History, Solution, StepInfo
from fnopt.least_squares._step import Search, arrive, improves
from fnopt.linear import norm
from fnopt.residuals import FlatResidual, flat_residual


class _Loop(NamedTuple):
    """What the loop carries: a point is evaluated and factorised once, when it is reached."""

    point: Point
    factors: Any
    search: Search
    status: jax.Array
    steps: jax.Array
    nfev: jax.Array
    njev: jax.Array
    history: History | None


def least_squares(
    residual_fn: Any,
    params: Any,
    *,
    args: tuple[Any, ...] = (),
    solver: LeastSquaresMethod | None = None,
    max_steps: int = 1000,
    history: bool = False,
    callback: Callable[[StepInfo], Any] | None = None,
) -> Solution:
    r"""Fits params to data: minimises :math:`\tfrac12 \|r(\theta)\|^2` to convergence.

    The loop is one `lax.while_loop`: the call works under `jax.jit` and `jax.vmap`. Called by
    itself it is compiled each time; to compile once, jit a function that calls it and takes the
    data as arguments.

    A refused step costs one evaluation of the residuals, no Jacobian and no factorisation.

    Args:
        residual_fn: `residual_fn(params, *args)` returns the residuals (prediction minus target,
            not squared) as an array or a pytree of arrays; or a list, tuple or dict of such
            functions.
        params: Where to start: a pytree of real floating arrays.
        args: Further arguments of `residual_fn`: pytrees of arrays.
        solver: The method and its options; by default `levenberg_marquardt()`.
        max_steps: The most steps to make, refused ones included.
        history: Whether to keep cost, gradient norm, radius and acceptance of every step.
        callback: `callback(info)` is called on the host at every step with a `StepInfo` of NumPy
            arrays; for a batch it is called once per problem and step.

    Returns:
        A `Solution`. Whether it converged, and why it stopped, is in its `status` and `message`:
        values never raise. Its params are always finite if those given are.

    Raises:
        TypeError: If `residual_fn` is not a function, or params or residuals are not floating.
        ValueError: If there are no params or no residuals, or `max_steps` is not positive.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> t = jnp.asarray([0.0, 1.0, 2.0, 3.0])
        >>> y = jnp.asarray([2.0, 1.21, 0.74, 0.44])
        >>> def residuals(p):
        ...     return p["scale"] * jnp.exp(-p["rate"] * t) - y
        >>> solution = fnopt.least_squares(residuals, {"scale": 1.0, "rate": 1.0})
        >>> print({k: round(float(v), 3) for k, v in solution.params.items()})
        {'rate': 0.501, 'scale': 2.0}
        >>> bool(solution.converged)
        True

    Reference:
        See :class:`fnopt.levenberg_marquardt`.
    """
    solver = _checked_solver(solver)
    _check_steps(max_steps)

    def solve(params: Any, args: tuple[Any, ...], solver: LeastSquaresMethod) -> Solution:
        return _solve(residual_fn, params, args, solver, max_steps, history, callback)

    return jax.jit(solve)(params, args, solver)


def _checked_solver(solver: Any) -> LeastSquaresMethod:
    solver = levenberg_marquardt() if solver is None else solver
    if not isinstance(solver, LeastSquaresMethod):
        hint = " Did you forget to call it?" if isinstance(solver, type) else ""
        raise TypeError(
            f"least_squares: solver = {solver!r}, expected a least-squares solver such as "
            f"fnopt.levenberg_marquardt().{hint}"
        )
    return solver


def _check_steps(max_steps: Any) -> None:
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"least_squares: max_steps = {max_steps!r}, expected a positive int.")


def _solve(
    residual_fn: Any,
    params: Any,
    args: tuple[Any, ...],
    solver: LeastSquaresMethod,
    max_steps: int,
    history: bool,
    callback: Callable[[StepInfo], Any] | None,
) -> Solution:
    x, flat = flat_residual(residual_fn, params, args)
    options = solver.options(params, x.dtype)

    def advance(loop: _Loop) -> _Loop:
        loop, accepted = _advance(flat, solver, options, loop)
        return _watched(flat, loop, accepted, callback)

    def unfinished(loop: _Loop) -> jax.Array:
        return (loop.status == Status.RUNNING.value) & (loop.steps < max_steps)

    first = _started(flat, solver, options, x)
    first = first._replace(history=_empty_history(max_steps, x.dtype) if history else None)
    return _solution(flat, solver, lax.while_loop(unfinished, advance, first))


def _started(
    flat: FlatResidual, solver: LeastSquaresMethod, options: Options, x: jax.Array
) -> _Loop:
    point = solver.evaluate(flat, x)
    search = solver.begin(point, options)
    status = first_of(
        (~is_finite(point), Status.NONFINITE_START),
        (_stationary(point, options), Status.CONVERGED_GRADIENT),
    )
    one = jnp.ones((), jnp.int32)
    factors = solver.factorise(flat, point, search)
    return _Loop(point, factors, search, status, jnp.zeros((), jnp.int32), one, one, None)


def _stationary(point: Point, options: Options) -> jax.Array:
    return is_stationary(point.cost, gradient_cosine(point), options.gtol)


def _advance(
    flat: FlatResidual, solver: LeastSquaresMethod, options: Options, loop: _Loop
) -> tuple[_Loop, jax.Array]:
    """One step; says whether it was accepted."""
    point, factors, search = loop.point, loop.factors, loop.search
    trial = solver.propose(flat, point, factors, search, options)
    x = point.x + trial.step
    actual = actual_reduction(point.r, flat.r(x))
    promising = improves(point, trial, actual, options)
    there = lax.cond(promising, lambda: solver.evaluate(flat, x), lambda: point)
    # A point whose Jacobian isn't finite is a dead end, however low its cost.
    actual = jnp.where(is_finite(there), actual, jnp.asarray(-jnp.inf, actual.dtype))
    accepted, status, judged = solver.judge(point, trial, actual, search, options)
    here = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), there, point)
    judged = arrive(judged, here)
    stale = accepted | (judged.rescues > search.rescues)
    factors = lax.cond(stale, lambda: solver.factorise(flat, here, judged), lambda: factors)
    stationary = accepted & _stationary(here, options)
    status = jnp.where(stationary, Status.CONVERGED_GRADIENT.array, status)
    one = jnp.ones((), jnp.int32)
    return loop._replace(
        point=here,
        factors=factors,
        search=judged,
        status=status,
        steps=loop.steps + one,
        nfev=loop.nfev + one,
        njev=loop.njev + promising.astype(jnp.int32),
    ), accepted


def _watched(
    flat: FlatResidual,
    loop: _Loop,
    accepted: jax.Array,
    callback: Callable[[StepInfo], Any] | None,
) -> _Loop:
    """Writes the history and calls the callback, where asked to."""
    cost, slope, radius = loop.point.cost, norm(loop.point.gradient), loop.search.radius
    if callback is not None:
        params = flat.unravel(loop.point.x)
        jax.debug.callback(callback, StepInfo(loop.steps, params, cost, slope, radius, accepted))
    if loop.history is None:
        return loop
    entry = History(cost, slope, radius, accepted)
    at = loop.steps - 1
    return loop._replace(
        history=History(*(a.at[at].set(v) for a, v in zip(loop.history, entry, strict=True)))
    )


def _empty_history(max_steps: int, dtype: Any) -> History:
    nan = jnp.full(max_steps, jnp.nan, dtype)
    return History(nan, nan, nan, jnp.zeros(max_steps, bool))


def _solution(flat: FlatResidual, solver: LeastSquaresMethod, loop: _Loop) -> Solution:
    point = loop.point
    ended = loop.status != Status.RUNNING.value
    return Solution(
        params=flat.unravel(point.x),
        cost=point.cost,
        residuals=flat.unflatten(point.r),
        jacobian=solver.model(flat).jacobian(point),
        gradient_norm=norm(point.gradient),
        rank=solver.model(flat).rank(loop.factors),
        steps=loop.steps,
        nfev=loop.nfev,
        njev=loop.njev,
        status=jnp.where(ended, loop.status, Status.MAX_STEPS.array),
        history=loop.history,
    )
