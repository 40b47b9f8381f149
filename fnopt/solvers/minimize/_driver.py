"""The driver of `minimize`: set-up, loop, result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import Params, Status, as_transformation
from fnopt.errors import check_count, explain_jax_errors, names_text
from fnopt.numerics import floor_power_of_two
from fnopt.programs import (
    is_data,
    is_eager,
    tiered_call,
    trace_and_call,
    trace_function,
)
from fnopt.residuals import floating_start
from fnopt.sharding import pvary_for
from fnopt.solvers.minimize._implicit import implicitly
from fnopt.solvers.minimize._loop import MinimizeState, blank_state, final_point, iterate
from fnopt.solvers.minimize._method import MinimizeMethod
from fnopt.solvers.minimize._optimizer import GIVEN, optimizer_steps
from fnopt.solvers.minimize._problem import (
    Evaluation,
    FlatObjective,
    SmoothObjective,
    seen_by,
    set_up,
)
from fnopt.solvers.minimize._projected_gradient import projected_gradient
from fnopt.solvers.minimize._quasi_newton import bfgs, lbfgsb
from fnopt.solvers.minimize._result import Minimum
from fnopt.solvers.minimize._scipy import as_sides, method_of, with_scipy_options
from fnopt.solvers.minimize._stopping import tolerances
from fnopt.solvers.problem._call import checked_args, first_call_hints, started_from
from fnopt.solvers.problem._callback import status_after
from fnopt.solvers.result._solution import StepHistory, StepInfo, empty_history


def minimize(
    fun: Callable[..., Any],
    params: Params | None = None,
    args: tuple[Any, ...] = (),
    method: Any = "auto",
    *,
    has_aux: bool = False,
    bounds: Any = None,
    constraints: Any = None,
    projection: Callable[[Any], Any] | None = None,
    ftol: float | jax.Array | None = None,
    xtol: float | jax.Array | None = None,
    gtol: float | jax.Array | None = None,
    max_steps: int = 1000,
    history: bool = False,
    callback: Callable[[StepInfo], Any] | None = None,
    **scipy_options: Any,
) -> Minimum[Params]:
    r"""Minimize a smooth scalar function of a pytree.

    .. math:: \min_\theta f(\theta) \quad\text{subject to}\quad l \le \theta \le u

    The loop is one `lax.while_loop` with one evaluation of the value and the gradient per
    iteration. The call works under `jax.jit`; under `jax.vmap` every problem stops by its own
    tests. An eager call traces `fun`, so values in its closure may change from call to call, and
    compiles once.

    At convergence the relative gradient :math:`\max_i |g_i x_i| / |f|` has to be below 1e-2.
    Otherwise the method discards its Hessian approximation and restarts. After two
    successive restarts that decrease the value by less than a relative 1e-4, the search ends with
    the status `STALLED`.

    The final value never exceeds the value at the initial guess. The solution has derivatives,
    forward and reverse, with respect to `args` and to arrays that `fun` closes over. The
    derivatives follow from the implicit function theorem; the iterations aren't differentiated. For
    sums of squares, :func:`fnopt.least_squares` needs far fewer evaluations.

    Args:
        fun: `fun(params, *args)` returns a real scalar, or `(scalar, aux)` with `has_aux`.
        params: The initial guess: a pytree of floating or complex arrays. A list or tuple of
            numbers is one vector, as in SciPy, unless there are constraints; integers are converted
            to floats, unless they are `fixed`.
        args: Further arguments of `fun`: pytrees of arrays.
        method: `'auto'`, `'lbfgs'`, `'lbfgsb'`, `'bfgs'`, `'cg'`, `'newton_cg'` or
            `'projected_gradient'`, or SciPy's name of a method; a method with options, such as
            `fnopt.lbfgsb(20)`; or any optimizer, such as `fnopt.adam(1e-2)` or `fnopt.lbfgs()`. An
            optimizer receives value, gradient and function at every step, and the iterate with the
            lowest value is returned. `'auto'` is L-BFGS(-B), BFGS for up to 20 params without
            bounds, or spectral projected gradients if there is a projection.
        has_aux: Whether `fun` returns `(value, aux)`; `aux` at the solution is returned.
        bounds: `(lower, upper)`, each a number, an array, or a tree of these with the structure of
            the params or a prefix of it; None for no bound; or SciPy's pairs `[(low, high), ...]`.
            Equal bounds fix a param. Every iterate satisfies the bounds, and a solution may lie
            exactly on a bound.
        constraints: `fixed()`, `tied(fn)`, `positive()` or `interval(a, b)`, in a dict keyed by
            paths or patterns of leaves, or in a tree like the params.
        projection: `projection(params)` returns the nearest params in a convex set.
        ftol: Relative tolerance of the value, for both the decrease by the last step and the
            predicted decrease by the next step. By default 2.2e-9, as in SciPy's L-BFGS-B, or 10
            times the machine epsilon. For a value that converges to zero, the tolerance is `ftol`
            times the smaller of 1 and the value at the initial guess.
        xtol: Tolerance for the length of the last step and the next step, relative to the largest
            param. By default the machine epsilon to the power 2/3.
        gtol: Absolute tolerance of the largest entry of the gradient of the free params. The search
            ends at a gradient below `gtol`, as in SciPy. By default the search ends only at a
            gradient of zero.
        max_steps: Maximum number of trial points. Other values of `max_steps` or of the tolerances
            need no compilation.
        history: Whether to store value, gradient norm, step length and acceptance of every step.
        callback: `callback(info)` is called on the host at every step with a `StepInfo` of NumPy
            arrays; `callback=print` shows the progress, `fnopt.monitor.Progress(max_steps)` a bar.
            As in SciPy, a callback whose only argument is called `xk` receives the params, and an
            argument `intermediate_result` has `x`, `fun` and `nit`. The callback stops the search
            by returning True or raising `StopIteration`.
        **scipy_options: SciPy's keywords: `tol` (both tolerances), and in `options` `ftol`, `xtol`,
            `gtol`, `maxiter`, `maxfun` and `maxfev` (all of them `max_steps`), `maxcor` and `disp`;
            `x0` for `params`.

    Returns:
        A `Minimum`. `status` and `message` report whether the search converged, and why it stopped;
        no value raises an exception. The params are finite if the initial guess is finite.

    Raises:
        TypeError: If `fun` is not a function that returns a real scalar, params are not floating,
            or a keyword is not known.
        ValueError: If a lower bound exceeds its upper bound, the initial guess violates a bound, a
            tolerance is negative, an option doesn't match the tree that it refers to, or the method
            takes no bounds.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def rosenbrock(p):
        ...     return (1 - p["x"]) ** 2 + 100 * (p["y"] - p["x"] ** 2) ** 2
        >>> end = fnopt.minimize(rosenbrock, {"x": -1.2, "y": 1.0})
        >>> print({k: round(float(v), 2) for k, v in end.params.items()}, bool(end.converged))
        {'x': 1.0, 'y': 1.0} True

    Reference:
        See :class:`fnopt.lbfgsb`.
    """
    params = started_from("minimize", params, scipy_options)
    if not callable(fun):
        raise TypeError(f"minimize: fun is {fun!r:.60}, expected a function of the params.")
    limits = {"ftol": ftol, "xtol": xtol, "gtol": gtol}
    method, limits, max_steps, disp = with_scipy_options(scipy_options, method, max_steps, **limits)
    max_steps = check_count(max_steps, "max_steps", "minimize")
    args = checked_args(args, "minimize")
    params = floating_start(params, constraints)
    bounds = as_sides(bounds)
    method = _checked_method(method, params, bounds, projection)
    options = {"bounds": bounds, "constraints": constraints}
    arrays = params, args, method, limits, jnp.asarray(max_steps, jnp.int32)
    static: dict[str, Any] = {
        "has_aux": has_aux,
        "history": max_steps if history else None,
        "callback": callback,
        "projection": projection,
    }
    with first_call_hints(params, "fun"), explain_jax_errors("minimize", "fun"):
        if bounds is not None or constraints is not None:  # inside jit no values can be checked
            set_up(fun, params, args, has_aux, **options, projection=projection)
        plain_call = callback is None and projection is None and is_data((method, options, limits))
        function = None
        if plain_call and is_eager((params, args, options, limits)):
            function = trace_function(fun, seen_by(params, constraints), *args)
        if function is None:
            run = functools.partial(_minimized, fun, options=options, **static)
            end = trace_and_call(run, *arrays)
        else:
            end = tiered_call(_minimized, function, *arrays, options, **static)
    if disp and not isinstance(end.status, Tracer):
        print(end)
    return end


def _checked_method(method: Any, params: Any, bounds: Any, projection: Any) -> MinimizeMethod:
    if method == "auto":
        method = _automatic(params, bounds, projection)
    elif isinstance(method, str):
        method = method_of(method)()
    if not isinstance(method, MinimizeMethod):
        method = optimizer_steps(as_transformation(method, "minimize: method"))
        lost = sorted(set(method.tx.needs) - GIVEN)
        if lost:
            raise TypeError(
                f"minimize: the method needs the extra arguments {names_text(lost)}, "
                "which minimize doesn't provide; it provides "
                f"{names_text(sorted(GIVEN))}. Write a loop around its update."
            )
    name = "an optimizer" if isinstance(method, optimizer_steps) else type(method).__name__
    if bounds is not None and not method.takes_bounds:
        raise ValueError(f"minimize: {name} takes no bounds, expected 'lbfgsb' with bounds.")
    if projection is not None and not method.takes_projection:
        raise ValueError(
            f"minimize: {name} takes no projection, expected 'projected_gradient' with one."
        )
    if projection is not None and bounds is not None:
        raise ValueError("minimize: got both bounds and a projection, expected one of them.")
    return method


_FEW = 20  # params, up to which BFGS needs fewer evaluations than L-BFGS


def _automatic(params: Any, bounds: Any, projection: Any) -> MinimizeMethod:
    if projection is not None:
        return projected_gradient()
    few = sum(np.size(leaf) for leaf in jax.tree.leaves(params)) <= _FEW
    return bfgs() if few and bounds is None else lbfgsb()


def _minimized(
    fun: Callable[..., Any],
    params: Any,
    args: tuple[Any, ...],
    method: MinimizeMethod,
    limits: tuple[Any, Any, Any],
    max_steps: jax.Array,
    options: dict[str, Any],
    *,
    has_aux: bool,
    history: int | None,
    callback: Callable[[StepInfo], Any] | None,
    projection: Callable[[Any], Any] | None,
) -> Minimum:
    params = pvary_for(fun, params, *args)
    setting = set_up(fun, params, args, has_aux, **options, projection=projection).traced()

    def run(problem: SmoothObjective, x: jax.Array, traced: Any) -> tuple[Any, Evaluation]:
        method, (ftol, xtol, gtol), max_steps = traced
        feasible = jnp.ones((), bool) if problem.box is None else problem.box.is_feasible()
        x = jnp.where(feasible, problem.project(x), x)
        unit = jnp.ones((), x.dtype)
        # An optimizer's hyper-parameters refer to the unscaled function.
        if method.wolfe is not None:
            # A power of two scales without rounding errors.
            unit = floor_power_of_two(jnp.max(jnp.abs(x), initial=0))
            problem = problem.in_unit(unit)

        def watch(state: MinimizeState, entry: StepHistory) -> jax.Array:
            assert callback is not None
            info = StepInfo(
                state.steps, setting.params(unit * state.point.x), *_in_units(entry, unit)
            )
            return status_after(callback, info, state.status, "fun")

        entries = None if history is None else empty_history(history, x.dtype)
        state = blank_state(problem, method, x / unit, entries)
        # Without a feasible point only the initial guess is evaluated.
        most = jnp.where(feasible, max_steps, jnp.zeros_like(max_steps))
        limits = tolerances(x.dtype, ftol, xtol, None if gtol is None else gtol * unit)
        state = iterate(problem, method, limits, state, most, None if callback is None else watch)
        end = final_point(state)
        status = jnp.where(feasible, state.status, Status.INFEASIBLE.array)
        status = jnp.where(status == Status.RUNNING.value, Status.MAX_STEPS.array, status)
        pull = jnp.max(jnp.abs(problem.projected_gradient(end)), initial=0) / unit
        seen = None if state.history is None else _in_units(state.history, unit)
        kept = state.steps, state.nfev, status, seen
        return kept, Evaluation(unit * end.x, end.value, pull)

    kept, end = implicitly(run, setting.problem, setting.x, (method, limits, max_steps))
    return _result(setting, kept, end, has_aux)


def _in_units(history: StepHistory, unit: jax.Array) -> StepHistory:
    """Return a history, or an entry of a history, without scaling."""
    slope, length = history.gradient_norm / unit, history.radius * unit
    return history._replace(gradient_norm=slope, radius=length)


def _result(setting: FlatObjective, kept: Any, end: Evaluation, has_aux: bool) -> Minimum:
    steps, nfev, status, history = kept
    found, at_bound = setting.params(end.x), setting.at_bound(end.x)
    aux = setting.value(found)[1] if has_aux else None
    return Minimum(found, end.value, end.gradient, steps, nfev, status, aux, history, at_bound)
