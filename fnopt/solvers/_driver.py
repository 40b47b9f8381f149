"""`least_squares`: checks of the arguments, the search, and the auxiliary output."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import Params, check_scalars
from fnopt.errors import check_choice, error_scope, explain_jax_errors
from fnopt.programs import is_data, tiered_call, trace_and_call
from fnopt.residuals import floating_start, without_operators
from fnopt.sharding import rows_sharded_over
from fnopt.solvers._fit import fit
from fnopt.solvers._levenberg_marquardt import levenberg_marquardt
from fnopt.solvers._method import LeastSquaresMethod, check_same_params
from fnopt.solvers._search import SearchOptions
from fnopt.solvers._starts import checked_starts
from fnopt.solvers.problem._call import (
    batch_residuals,
    checked_args,
    first_call_hints,
    initial_guess,
    jit_residuals,
    run_in_available_mode,
    traced_functions,
    without_aux,
)
from fnopt.solvers.problem._problem import flatten_problem
from fnopt.solvers.problem._scipy_options import (
    check_overdetermined,
    with_keywords,
    with_scipy_options,
)
from fnopt.solvers.result._solution import Solution, StepInfo


def least_squares(
    residual_fn: Any,
    params: Params | None = None,
    jac: Any = None,
    bounds: Any = None,
    *,
    args: tuple[Any, ...] = (),
    batch: Any = None,
    solver: LeastSquaresMethod | None = None,
    loss: Any = None,
    sigma: Any = None,
    weights: Any = None,
    constraints: Any = None,
    max_steps: int = 1000,
    starts: int = 1,
    certify: str = "first-order",
    history: bool = False,
    callback: Callable[[StepInfo], Any] | None = None,
    has_aux: bool = False,
    check_jac: bool = True,
    axis_name: Any = None,
    **scipy_options: Any,
) -> Solution[Params]:
    r"""Solve a nonlinear least-squares problem: minimize :math:`\tfrac12 \|r(\theta)\|^2`.

    .. math:: \min_\theta \sum_i \tfrac12 c_i^2\, \rho_i( r_i^2 / (c_i \sigma_i)^2 )
        \quad\text{subject to}\quad l \le \theta \le u

    The loop is one `lax.while_loop`, so the call works under `jax.jit` and `jax.vmap`. An eager
    call traces the residual function, so values in the closure of the function may change between
    calls. New data of the same shapes reuse the compiled program. In a Python loop, jit a function
    that takes the data as arguments, which also avoids the tracing.

    Each step evaluates the residuals and their Jacobian once, at its end point. When a stopping
    test holds, optimality tests are evaluated at the final point: see
    :class:`fnopt.solvers.Certificate`. If the Gauss-Newton decrement isn't negligible, the loop
    restarts with the Gauss-Newton step, at most twice.

    The solution is differentiable in forward and reverse mode, with respect to `args` and to arrays
    that `residual_fn` closes over. The derivatives follow from the implicit function theorem, with
    the exact second derivatives of the cost; the iterations aren't differentiated.

    Args:
        residual_fn: `residual_fn(params, *args)` returns the residuals (prediction minus target,
            not squared) as an array or a pytree of arrays; or a list, tuple or dict of such
            functions.
        params: The initial guess, a pytree of real floating arrays. Without constraints, a list or
            tuple of numbers is converted to a vector, as in SciPy. Integers are converted to
            floats, unless they are `fixed`. A leaf made by :func:`fnopt.manifolds.on` stays on its
            manifold; Jacobian and covariance then refer to coordinates of its tangent space.
        jac: `jac(params, *args)` returns the Jacobian, if you can compute it faster than automatic
            differentiation. The result has the structure of `jax.jacfwd(residual_fn)`: a tree like
            the residuals whose leaves are trees like the params, of arrays of shape
            `residual.shape + param.shape`. For one array of residuals and one vector of params, the
            shape is `[m, n]`. `jac` may return a linear operator whose method `mv` multiplies with
            a tree like the params; the operator is converted to a matrix. SciPy's sparse arrays and
            operators are constants to JAX. `jac` may also be a list, tuple or dict of functions,
            like `residual_fn`. See :func:`fnopt.per_example_jacobian` and
            :func:`fnopt.sparse_jacobian`. With `levenberg_marquardt(geodesic=False)`, or a method
            other than Levenberg-Marquardt, the residual function need not be differentiable (unless
            you differentiate the solution). Otherwise `jac` is compared once with the derivative of
            the residuals along two directions. If `jac` is wrong, the status is `WRONG_JACOBIAN`.
        bounds: `(lower, upper)`, each a number, an array, or a tree of these with the structure of
            the params or a prefix of it; None for no bound. Every iterate satisfies the bounds, and
            a solution may lie exactly on a bound.
        args: Additional arguments of `residual_fn`: pytrees of arrays.
        batch: The examples: a pytree of arrays with a leading axis. `residual_fn` then returns the
            residuals of ONE example: `residual_fn(params, example, *args)` (or a container of such
            functions, with a container of batches). Solution, weights, losses and constraints are
            the same as for the residuals of the whole batch, `jax.vmap` of this function. However,
            the Jacobian takes only one pass for each residual of an example. With more params than
            residuals, and more than 64 residuals, the Jacobian isn't formed if :math:`J J^T` is
            cheaper (:func:`fnopt.curvature.batch_jacobian`). Steps then use one scale for all
            params, and the solution has no `jacobian`.
        solver: The method and its options; by default `levenberg_marquardt()`.
        loss: A robust loss such as `huber(scale=0.1)`, its name, or a function :math:`\rho(z)`
            (see :class:`fnopt.residuals.custom_loss`). Different losses (None for least squares)
            form a tree with the structure of the residuals or a prefix of it, such as a list of
            losses for a list of functions.
        sigma: Standard deviations, by which the residuals are divided before the loss: a number, an
            array like the residuals, or a tree of these; for residuals of shape `[m]` also a
            covariance matrix of shape `[m, m]`. Infinite `sigma` excludes a residual.
        weights: Factors of the squared residuals, :math:`1 / \sigma^2`, instead of `sigma`; 0
            excludes a residual. Params and cost also have derivatives with respect to a weight of
            0. The solution's residuals and Jacobian contain the square roots of the weights, and
            their derivatives with respect to a weight of 0 are zero.
        constraints: `fixed()`, `tied(fn)`, `positive()` or `interval(a, b)`, in a dict keyed by
            paths or patterns of leaves, or in a tree like the params.
        max_steps: Maximum number of steps, rejected ones included; 0 only evaluates cost,
            residuals, Jacobian and rank at the initial guess.
        starts: Number of initial points of a multi-start search. The first point is `params`. In
            the other points, a param differs by a factor of up to 10, or lies between its two
            bounds. The solution is the end point of lowest cost; `nfev` and `njev` count the
            evaluations of all searches. Use several points for models with several minima, or if
            you know the params only to an order of magnitude.
        certify: `'first-order'` or `'full'`. `'full'` also tests for negative curvature, by up to
            32 Hessian-vector products, and escapes saddle points along a direction of negative
            curvature. It uses second derivatives, in forward mode over reverse mode.
        history: Whether to store cost, gradient norm, trust-region radius and acceptance of every
            step.
        callback: `callback(info)` is called on the host at every step with a `StepInfo` of NumPy
            arrays (`callback=print` prints one line per step). Under `jax.vmap` it is called once
            per problem and step. As in SciPy, a callback whose only argument is called `x` receives
            the params. An argument called `intermediate_result` has the attributes `x`, `cost` and
            `nit`. If the callback returns True or raises `StopIteration`, the search ends with the
            status `STOPPED`; other exceptions are converted to a warning.
        has_aux: Whether `residual_fn` returns `(residuals, aux)`; an additional call of the
            function at the solution then computes the solution's `aux`. Several functions each
            return a pair, and the solution's `aux` is a container of the auxiliary outputs.
        check_jac: Whether to compare `jac` with the derivative of the residuals, as described for
            `jac`. Pass False if `jac` is an approximation, or if the comparison is too expensive.
        axis_name: Inside `jax.shard_map`, the named axis over which the data are sharded; by
            default the `axis_name` of `solver`. All devices compute the same params, without
            communicating rows of the Jacobian. On each device, the solution contains the residuals
            of this device's data. Its `jacobian` is the triangular factor `[n, n]` of all rows,
            with the same :math:`J^T J`.
        **scipy_options: Keywords of SciPy's `least_squares`, so that only the import has to be
            changed: `ftol`, `xtol` and `gtol` (options of the solver; None is the default),
            `max_nfev`, `f_scale` (the scale of a loss that is a name or a function), `verbose`,
            `kwargs` (keyword arguments of `residual_fn` and `jac`), `jac_sparsity` (the pattern of
            a :func:`fnopt.sparse_jacobian`), `method` (`'trf'`, `'dogbox'` and `'lm'` all select
            the default solver). `x_scale`, `diff_step`, `tr_solver`, `tr_options` and `workers` are
            accepted and have no effect; `x0` is another name of `params`.

    Returns:
        A `Solution`. `status` and `message` report whether the search converged, and why it
        stopped. Nonfinite residuals don't raise an exception. The params are finite if the initial
        guess is finite. A search also converges at a minimum where the data don't determine all
        params; `rank` and `certificate.undetermined` report this. The solution's residuals are
        divided by `sigma`; the Jacobian includes `sigma` and the curvature of the loss.

    Raises:
        TypeError: If `residual_fn` is not a function, or params or residuals are not floating.
        ValueError: If there are no params or no residuals, `max_steps` is negative, `starts` is
            less than 1, a lower bound exceeds its upper bound, the initial guess violates a bound,
            or an option doesn't match the tree that it refers to.

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
    params = initial_guess("least_squares", params, scipy_options)
    residual_fn, jac = with_keywords(residual_fn, jac, scipy_options.get("kwargs"))
    aux = None
    if has_aux:
        residual_fn, aux = without_aux(residual_fn, batch)
    jac, solver, loss, bounds, max_steps, verbose = with_scipy_options(
        scipy_options,
        residual_fn=residual_fn,
        jac=without_operators(jac),
        solver=_checked_solver(solver, axis_name),
        loss=loss,
        bounds=bounds,
        max_steps=max_steps,
    )
    args = checked_args(args)
    with error_scope(type(solver).__name__):
        check_scalars(solver)
    callback = print if verbose == 2 and callback is None else callback
    if batch is not None:
        residual_fn = batch_residuals(residual_fn, jac, batch)
        args = (jax.tree.map(jnp.asarray, batch), *args)
    options = {
        "loss": loss,
        "sigma": sigma,
        "weights": weights,
        "bounds": bounds,
        "constraints": constraints,
    }
    check_choice(certify, ("first-order", "full"), "certify", "least_squares")
    static = {
        "search_options": SearchOptions(
            starts=checked_starts(starts),
            certify=certify,
            history=max_steps if history else None,
            callback=callback,
            check_jac=bool(check_jac),
        )
    }

    def solve(
        residual_fn: Any, jac: Any, params: Any, args: Any, solver: LeastSquaresMethod, limit: Any
    ) -> Solution:
        return fit(residual_fn, jac, params, args, solver, limit, options, **static)

    def run(solver: LeastSquaresMethod) -> Solution:
        if functions is None:
            return trace_and_call(
                functools.partial(solve, residuals, jac), params, args, solver, step_limit
            )
        if only_data:
            return tiered_call(fit, *functions, params, args, solver, step_limit, options, **static)
        # Captured arrays of the traced functions are arguments of the compiled program, so new data
        # of the same shapes need no compilation.
        return trace_and_call(solve, *functions, params, args, solver, step_limit)

    assert solver is not None
    # A NumPy scalar, because a device array would add about 30 microseconds to an eager call.
    step_limit = max_steps if isinstance(max_steps, jax.Array) else np.int32(max_steps)
    params = floating_start(params, constraints)
    with (
        rows_sharded_over(solver.axis_name),
        first_call_hints(params),
        explain_jax_errors("least_squares", "residual_fn"),
    ):
        check_same_params(params)
        only_data = callback is None and is_data((solver, options))
        functions = traced_functions(residual_fn, jac, params, args, constraints)
        residuals = functions[0] if functions else jit_residuals(residual_fn, args)
        check_overdetermined(scipy_options, residuals, params, args, constraints)
        if any(option is not None for option in options.values()):
            # Check the options here, because inside jit their values are tracers.
            flatten_problem(residuals, params, args, **options)
        solution = run_in_available_mode(run, solver)
        if aux is not None:
            output = trace_and_call(lambda params, args: aux(params, *args), solution.params, args)
            solution = solution._replace(aux=output)
    if verbose and not isinstance(solution.status, Tracer):
        print(solution)
    return solution


@functools.cache
def _default_solver() -> LeastSquaresMethod:
    return levenberg_marquardt()


def _checked_solver(solver: Any, axis_name: Any) -> LeastSquaresMethod:
    solver = _default_solver() if solver is None else solver
    if not isinstance(solver, LeastSquaresMethod):
        hint = " Pass an instance of the class." if isinstance(solver, type) else ""
        raise TypeError(
            f"least_squares: solver = {solver!r}, expected a least-squares solver such as "
            f"fnopt.levenberg_marquardt().{hint}"
        )
    return solver if axis_name is None else dataclasses.replace(solver, axis_name=axis_name)
