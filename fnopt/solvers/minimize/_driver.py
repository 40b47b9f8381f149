"""`minimize`: checks of the arguments, the search, and its result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import Params, Status, as_transformation
from fnopt.errors import check_count, check_function, explain_jax_errors, names_text
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
from fnopt.solvers.minimize._optimizer import EXTRA_ARGS, optimizer_steps
from fnopt.solvers.minimize._problem import (
    Evaluation,
    FlatObjective,
    SmoothObjective,
    evaluation_shapes,
    flatten_objective,
)
from fnopt.solvers.minimize._projected_gradient import projected_gradient
from fnopt.solvers.minimize._quasi_newton import bfgs, lbfgsb
from fnopt.solvers.minimize._result import Minimum
from fnopt.solvers.minimize._scipy import lower_and_upper, method_by_name, with_scipy_options
from fnopt.solvers.minimize._stopping import tolerances
from fnopt.solvers.problem._call import checked_args, first_call_hints, initial_guess
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
    iteration. The call works under `jax.jit`; under `jax.vmap` each problem stops independently. An
    eager call traces `fun`, so values in the closure of `fun` may change between calls. The search
    is compiled only for the first of these calls.

    At convergence the relative gradient :math:`\max_i |g_i x_i| / |f|` has to be below 1e-2.
    Otherwise the method discards its Hessian approximation and restarts. After two
    successive restarts that decrease the value by less than a relative 1e-4, the search ends with
    the status `STALLED`.

    The final value never exceeds the value at the initial guess. The solution is differentiable in
    forward and reverse mode, with respect to `args` and to arrays that `fun` closes over. The
    derivatives follow from the implicit function theorem; the iterations aren't differentiated. For
    sums of squares, :func:`fnopt.least_squares` needs far fewer evaluations.

    Args:
        fun: `fun(params, *args)` returns a real scalar, or `(scalar, aux)` with `has_aux`.
        params: The initial guess: a pytree of floating or complex arrays. Without constraints, a
            list or tuple of numbers is converted to a vector, as in SciPy. Integers are converted
            to floats, unless they are `fixed`.
        args: Additional arguments of `fun`: pytrees of arrays.
        method: `'auto'`, `'lbfgs'`, `'lbfgsb'`, `'bfgs'`, `'cg'`, `'newton_cg'` or
            `'projected_gradient'`, or SciPy's name of a method; a method with options, such as
            `fnopt.lbfgsb(20)`; or any optimizer, such as `fnopt.adam(1e-2)` or `fnopt.lbfgs()`. An
            optimizer receives value, gradient and function at every step, and the iterate with the
            lowest value is returned. `'auto'` selects spectral projected gradients with a
            projection, BFGS for at most 20 params without bounds, and otherwise L-BFGS(-B).
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
            times the machine epsilon if that is larger. For a value that converges to zero, the
            tolerance is `ftol` squared times the smaller of 1 and the value at the initial guess.
        xtol: Tolerance of the largest change of a param by the last step and by the next step,
            relative to the largest param. By default the machine epsilon to the power 2/3.
        gtol: Absolute tolerance of the largest entry of the gradient of the free params. The search
            converges at a gradient below `gtol`, as in SciPy. By default this test is passed only
            by a gradient of zero.
        max_steps: Maximum number of trial points. A new value doesn't trigger a compilation (unless
            `history` is True), and neither does a new value of a tolerance.
        history: Whether to store value, gradient norm, step length and acceptance of every step.
        callback: `callback(info)` is called on the host at every step with a `StepInfo` of NumPy
            arrays. `callback=print` prints a line per step, and
            `fnopt.monitor.Progress(max_steps)` shows a progress bar. As in SciPy, a callback whose
            only argument is called `xk` receives the params. An argument called
            `intermediate_result` has the attributes `x`, `fun` and `nit`. The callback stops the
            search by returning True or raising `StopIteration`.
        **scipy_options: SciPy's keywords: `tol` (sets `ftol` and `gtol`), and in `options` `ftol`,
            `xtol`, `gtol`, `maxiter`, `maxfun` and `maxfev` (each limits the trial points, like
            `max_steps`), `maxcor` and `disp`; `x0` for `params`.

    Returns:
        A `Minimum`. `status` and `message` report whether the search converged, and why it stopped.
        Non-finite values don't raise an exception. The params are finite if the initial guess is
        finite.

    Raises:
        TypeError: If `fun` is not a function that returns a real scalar, params are not floating,
            or a keyword is unknown.
        ValueError: If a lower bound exceeds its upper bound, the initial guess violates a bound, a
            tolerance is negative, an option doesn't match the tree that it refers to, or the method
            doesn't support bounds.

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
    params = initial_guess("minimize", params, scipy_options)
    check_function(fun, "fun", "minimize")
    limits = {"ftol": ftol, "xtol": xtol, "gtol": gtol}
    method, limits, max_steps, disp = with_scipy_options(scipy_options, method, max_steps, **limits)
    max_steps = check_count(max_steps, "max_steps", "minimize")
    args = checked_args(args, "minimize")
    params = floating_start(params, constraints)
    bounds = lower_and_upper(bounds)
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
        if bounds is not None or constraints is not None:  # inside jit, values can't be checked
            flatten_objective(fun, params, args, has_aux, **options, projection=projection)
        only_data = callback is None and projection is None and is_data((method, options, limits))
        function = None
        if only_data and is_eager((params, args, options, limits)):
            function = trace_function(fun, evaluation_shapes(params, constraints), *args)
        if function is None:
            run = functools.partial(_run_search, fun, options=options, **static)
            end = trace_and_call(run, *arrays)
        else:
            end = tiered_call(_run_search, function, *arrays, options, **static)
    if disp and not isinstance(end.status, Tracer):
        print(end)
    return end


def _checked_method(method: Any, params: Any, bounds: Any, projection: Any) -> MinimizeMethod:
    if method == "auto":
        method = _default_method(params, bounds, projection)
    elif isinstance(method, str):
        method = method_by_name(method)()
    if not isinstance(method, MinimizeMethod):
        method = optimizer_steps(as_transformation(method, "minimize: method"))
        missing = sorted(set(method.tx.needs) - EXTRA_ARGS)
        if missing:
            raise TypeError(
                f"minimize: the method needs the extra arguments {names_text(missing)}, expected "
                f"only {names_text(sorted(EXTRA_ARGS))}, which minimize provides. Write a loop "
                "around the optimizer's update."
            )
    name = "an optimizer" if isinstance(method, optimizer_steps) else type(method).__name__
    if bounds is not None and not method.takes_bounds:
        raise ValueError(
            f"minimize: got bounds with {name}, expected a method that supports bounds. Use "
            "method='lbfgsb'."
        )
    if projection is not None and not method.takes_projection:
        raise ValueError(
            f"minimize: got a projection with {name}, expected a method that supports "
            "projections. Use method='projected_gradient'."
        )
    if projection is not None and bounds is not None:
        raise ValueError(
            "minimize: got both bounds and a projection, expected one of them. Project onto the "
            "bounds as well, or leave one of them out."
        )
    return method


def _default_method(params: Any, bounds: Any, projection: Any) -> MinimizeMethod:
    if projection is not None:
        return projected_gradient()
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(params))
    limited = lbfgsb()
    # BFGS takes fewer evaluations in general: on four functions with 20 params, 426 instead of 609.
    # Up to this number of params, its n^2 numbers take no more memory than L-BFGS-B's pairs.
    return bfgs() if size <= 2 * limited.memory_size and bounds is None else limited


def _run_search(
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
    setting = flatten_objective(
        fun, params, args, has_aux, **options, projection=projection
    ).traced()

    def run(problem: SmoothObjective, x: jax.Array, traced: Any) -> tuple[Any, Evaluation]:
        method, (ftol, xtol, gtol), max_steps = traced
        feasible = jnp.ones((), bool) if problem.box is None else problem.box.is_feasible()
        x = jnp.where(feasible, problem.project(x), x)
        # Line searches work on params of magnitude 1, so that squares neither overflow nor
        # underflow. An optimizer's hyper-parameters refer to the unscaled function.
        scale = jnp.ones((), x.dtype)
        if method.wolfe is not None:
            # A power of two scales without rounding errors.
            scale = floor_power_of_two(jnp.max(jnp.abs(x), initial=0))
            problem = problem.scaled(scale)

        def watch(state: MinimizeState, entry: StepHistory) -> jax.Array:
            assert callback is not None
            info = StepInfo(
                state.steps, setting.params(scale * state.point.x), *_unscaled(entry, scale)
            )
            return status_after(callback, info, state.status, "fun")

        entries = None if history is None else empty_history(history, x.dtype)
        state = blank_state(problem, method, x / scale, entries)
        # Without a feasible point only the initial guess is evaluated.
        max_steps = jnp.where(feasible, max_steps, jnp.zeros_like(max_steps))
        limits = tolerances(x.dtype, ftol, xtol, None if gtol is None else gtol * scale)
        on_step = None if callback is None else watch
        state = iterate(problem, method, limits, state, max_steps, on_step)
        end = final_point(state)
        status = jnp.where(feasible, state.status, Status.INFEASIBLE.array)
        status = jnp.where(status == Status.RUNNING.value, Status.MAX_STEPS.array, status)
        gradient_norm = jnp.max(jnp.abs(problem.projected_gradient(end)), initial=0) / scale
        entries = None if state.history is None else _unscaled(state.history, scale)
        counts = state.steps, state.nfev, status, entries
        return counts, Evaluation(scale * end.x, end.value, gradient_norm)

    counts, end = implicitly(run, setting.problem, setting.x, (method, limits, max_steps))
    return _result(setting, counts, end, has_aux)


def _unscaled(history: StepHistory, scale: jax.Array) -> StepHistory:
    """Convert a history, or an entry of a history, to unscaled params."""
    gradient_norm, length = history.gradient_norm / scale, history.radius * scale
    return history._replace(gradient_norm=gradient_norm, radius=length)


def _result(setting: FlatObjective, counts: Any, end: Evaluation, has_aux: bool) -> Minimum:
    steps, nfev, status, history = counts
    params, at_bound = setting.params(end.x), setting.at_bound(end.x)
    # One more call of the function: the loop doesn't return the auxiliary output.
    aux = setting.value(params)[1] if has_aux else None
    return Minimum(params, end.value, end.gradient, steps, nfev, status, aux, history, at_bound)
