"""Curve fit with the arguments of `scipy.optimize.curve_fit`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import Params, Status
from fnopt.curves._curve_data import (
    checked_counts,
    checked_sigma,
    checked_x,
    checked_y,
    is_matrix,
    without_nan,
)
from fnopt.curves._curve_options import CurveFitOptions, Numbers, check_method, read_keywords
from fnopt.curves._curve_start import as_numbers, is_model, note_scalar_params, start_of
from fnopt.curves._failures import OptimizeWarning, report_failures
from fnopt.curves._fit import Fit
from fnopt.curves._residuals import (
    LIKELIHOODS,
    boxed,
    broadcast_data,
    call_model,
    check_enough,
    curve_residuals,
    fisher_rows,
    residual_jacobian,
)
from fnopt.errors import check_count, explain_jax_errors
from fnopt.residuals import as_loss
from fnopt.sharding import psum
from fnopt.solvers import Solution, covariance_of, least_squares, levenberg_marquardt


# fmt: off
@overload
def curve_fit(
    f: Callable[..., Any], xdata: Any, ydata: Any, p0: Numbers | None = None, sigma: Any = None,
    absolute_sigma: bool = False, check_finite: bool | None = None, bounds: Any = ...,
    method: str | None = None, jac: Any = None, *, full_output: Literal[False] = False,
    **options: Unpack[CurveFitOptions],
) -> Fit[jax.Array]: ...
@overload
def curve_fit(
    f: Callable[..., Any], xdata: Any, ydata: Any, p0: Mapping[str, float | jax.Array],
    sigma: Any = None, absolute_sigma: bool = False, check_finite: bool | None = None,
    bounds: Any = ..., method: str | None = None, jac: Any = None, *,
    full_output: Literal[False] = False,
    **options: Unpack[CurveFitOptions],
) -> Fit[Any]: ...
@overload
def curve_fit(
    f: Callable[..., Any], xdata: Any, ydata: Any, p0: Params, sigma: Any = None,
    absolute_sigma: bool = False, check_finite: bool | None = None, bounds: Any = ...,
    method: str | None = None, jac: Any = None, *, full_output: Literal[False] = False,
    **options: Unpack[CurveFitOptions],
) -> Fit[Params]: ...
@overload
def curve_fit(
    f: Callable[..., Any], xdata: Any, ydata: Any, p0: Any = None, sigma: Any = None,
    absolute_sigma: bool = False, check_finite: bool | None = None, bounds: Any = ...,
    method: str | None = None, jac: Any = None, *, full_output: Literal[True],
    **options: Unpack[CurveFitOptions],
) -> tuple[Any, jax.Array, dict[str, Any], Any, Any]: ...
# fmt: on


def curve_fit(
    f: Callable[..., Any],
    xdata: Any,
    ydata: Any,
    p0: Any = None,
    sigma: Any = None,
    absolute_sigma: bool = False,
    check_finite: bool | None = None,
    bounds: Any = (-jnp.inf, jnp.inf),
    method: str | None = None,
    jac: Any = None,
    *,
    full_output: bool = False,
    nan_policy: str | None = None,
    loss: Any = "linear",
    f_scale: float | jax.Array = 1.0,
    ftol: float | None = None,
    xtol: float | None = None,
    gtol: float | None = None,
    maxfev: int | None = None,
    max_nfev: int | None = None,
    check_jac: bool = True,
    axis_name: Any = None,
    constraints: Any = None,
    likelihood: str | None = None,
    starts: int = 1,
    **scipy_options: Any,
) -> Any:
    r"""Fit a function to data by least squares, with the arguments of `scipy.optimize.curve_fit`.

    .. math:: \min_p \sum_i \left( \frac{f(x_i, p) - y_i}{\sigma_i} \right)^2, \qquad
        C = s^2 (J^T J)^{-1}

    The result `fit = curve_fit(f, x, y)` has a report (`print(fit)`), `fit.params`,
    `fit.standard_errors`, `fit.predict_band(x)` and `fit.plot()`. `popt, pcov = fit` unpacks
    SciPy's pair in the order of `fit.names`, which is the order of the arguments of `f`. JAX
    computes exact derivatives, so `jac` isn't needed. Under `jax.jit` and `jax.vmap`, a failed fit
    can't raise an error, so check `fit.converged`.

    Args:
        f: The model, `f(x, a, b, ...)`, written with `jax.numpy`, or a model of
            :mod:`fnopt.models`. It returns an array of the shape of `ydata`.
        xdata: The positions of the data: an array, or any other first argument of `f`. Lists and
            tuples of numbers are converted to arrays.
        ydata: The data, an array of shape `[m]` (or any other shape). A number, as in `ydata=0`, is
            broadcast to the shape that `f` returns.
        p0: The initial guess: a sequence of numbers or an array of shape `[n]`; by default 1 for
            each parameter of `f`. A dict keyed by parameter name is passed as keyword arguments,
            `f(x, **p)`, and any other pytree as one argument, `f(x, p)`. A model of
            :mod:`fnopt.models` guesses its params from the data; a dict overrides entries of this
            guess.
        sigma: Standard deviations of the data: a scalar, an array like `ydata`, or a covariance
            matrix of shape `[m, m]`. A point with infinite `sigma` is ignored.
        absolute_sigma: Whether `sigma` is in the units of the data. If False, only the ratios of
            `sigma` matter, and the covariance is multiplied by the reduced chi-square.
        check_finite: Whether NaN or infinity in the data raises an error; by default True without
            `nan_policy`.
        bounds: A pair `(lower, upper)`, or a SciPy `Bounds`. Each side is one number, or a sequence
            with one number for each parameter. If `p0` is a tree, a side may be a tree like `p0`. A
            dict contains bounds keyed by parameter name, `{"a": (0, 1)}`. None is no bound.
        method: `'lm'`, `'trf'` or `'dogbox'`, as in SciPy. All three select Levenberg-Marquardt in
            a trust region, with projection onto the bounds.
        jac: The Jacobian `jac(x, a, b, ...)` of shape `[m, n]`, written with `jax.numpy`, if
            computing it is cheaper than automatic differentiation. `f` is then never
            differentiated, and steps have no geodesic acceleration. SciPy's names of difference
            schemes have no effect.
        full_output: Whether to return SciPy's tuple of five results.
        nan_policy: `'raise'` raises an error for NaN in the data, `'omit'` removes points with NaN.
        loss: A robust loss, its name, or its function; see :func:`fnopt.least_squares`.
        f_scale: The scale of a loss that is passed by name or as a function.
        ftol: Relative tolerance of the cost; see :class:`fnopt.levenberg_marquardt`.
        xtol: Relative tolerance of the params.
        gtol: Tolerance of the gradient.
        maxfev: Maximum number of evaluations of the model, by default 1000.
        max_nfev: SciPy's other name of `maxfev`.
        check_jac: Whether to compare `jac` with the derivative of `f`, if `f` is differentiable.
        axis_name: Inside `jax.shard_map`, the named axis along which the data are sharded; see
            :func:`fnopt.least_squares`. `curve_fit` then returns only the pair `(popt, pcov)`,
            which is the result for all data.
        constraints: `fixed()`, `tied(fn)`, `positive()` or `interval(a, b)`, keyed by parameter
            name; see :func:`fnopt.least_squares`.
        likelihood: `'poisson'` maximizes the Poisson likelihood of counts, and the covariance is
            then the inverse Fisher information. As in generalized linear models, counts needn't be
            integers, but must not be negative.
        starts: Number of starting points of a multi-start search, around `p0` or between the
            bounds; see :func:`fnopt.least_squares`.
        **scipy_options: Other arguments of SciPy's solvers. `verbose`, `callback` and `factor` (the
            initial trust-region radius) have the same meaning as in SciPy. `x_scale`, `diag`,
            `epsfcn`, `diff_step`, `tr_solver`, `tr_options` and `workers` have no effect.

    Returns:
        A :class:`fnopt.curves.Fit`. The entries of `pcov` are infinite for params that the data
        don't determine. With `full_output`, SciPy's tuple: `popt`, `pcov`, `infodict` (with `nfev`,
        `fvec`, `njev` and the whole `solution`), the message, and a number from 1 to 4 if the fit
        converged.

    Raises:
        ValueError: If the data are empty, not finite, or have incompatible shapes; if counts are
            negative; if `sigma` is not positive; if `p0` has the wrong length or violates a bound;
            if a lower bound exceeds its upper bound; or if an option has an unknown value.
        TypeError: If `f` isn't a function or isn't written with `jax.numpy`, `p0` isn't made of
            numbers, or a keyword is unknown. Fewer data than params are also an error, except with
            bounds or `method='trf'`.
        FitError: If the fit doesn't converge (not under `jax.jit`). The error is a `RuntimeError`
            with the attributes `popt`, `pcov` and `solution`. If only rounding errors prevent
            convergence, and the distance to the minimum is far below a standard error, `curve_fit`
            issues an `OptimizeWarning` instead.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> x = jnp.linspace(0.0, 4.0, 9)
        >>> y = 2.5 * jnp.exp(-1.3 * x) + 0.5 + 0.02 * jnp.cos(20 * x)
        >>> fit = fnopt.curve_fit(lambda x, a, b, c: a * jnp.exp(-b * x) + c, x, y)
        >>> print({name: f"{value:.1f}" for name, value in fit.params.items()})
        {'a': '2.5', 'b': '1.3', 'c': '0.5'}

    Reference:
        Virtanen et al. (2020), SciPy 1.0, arXiv:1907.10121 (for the interface).
    """
    _check_function(f)
    steps = max(check_count(maxfev or max_nfev or 1000, "maxfev", "curve_fit") - 1, 1)
    loss = as_loss(loss, f_scale)
    read = read_keywords(scipy_options)
    verbose = read.get("verbose", 0)
    callback = read.get("callback", print if verbose == 2 else None)
    radius: dict[str, Any] = {"radius": float(read["factor"])} if "factor" in read else {}
    check_finite = nan_policy is None if check_finite is None else check_finite
    x, y = checked_x(xdata, check_finite), checked_y(ydata, check_finite)
    x, y, sigma = without_nan(x, y, sigma, nan_policy)
    if likelihood == "poisson":
        checked_counts(y)
    start, passing, names, box = start_of(f, p0, bounds, constraints, x, y, likelihood)
    check_method(method, box)
    absolute = _knows_variance(likelihood, absolute_sigma, sigma, loss)
    positions = boxed(x)
    # Geodesic acceleration differentiates the model, but a model with a user's Jacobian may not be
    # differentiable.
    geodesic = not callable(jac)
    solver = levenberg_marquardt(ftol=ftol, xtol=xtol, gtol=gtol, geodesic=geodesic, **radius)
    with explain_jax_errors("curve_fit"), note_scalar_params(p0 is None and not is_model(f)):
        y = broadcast_data(lambda p, x: call_model(f, passing, p, x.opened()), start, positions, y)
        if method in {None, "lm"} and not constraints:
            check_enough(y.size * psum(1, axis_name), len(names), box, "curve_fit", "method='trf'")
        sigma = checked_sigma(sigma, y)
        matrix = is_matrix(sigma, y)
        jacobian = residual_jacobian(jac, passing, matrix)
        residuals = curve_residuals(f, passing, likelihood, matrix)
        solution: Solution[Any] = least_squares(
            residuals,
            start,
            args=(positions, y),
            jac=jacobian,
            solver=solver,
            loss=loss,
            bounds=box,
            constraints=constraints,
            max_steps=steps,
            starts=starts,
            callback=callback,
            check_jac=check_jac,
            axis_name=axis_name,
            sigma=sigma,
        )
        if likelihood == "poisson":
            assert isinstance(solution.jacobian, jax.Array), "curve_fit always forms the Jacobian"
            mu = call_model(f, passing, solution.params, x)
            J = fisher_rows(solution.jacobian, solution.residuals, mu, y)
            solution = solution._replace(jacobian=J)
    pcov = covariance_of(solution, absolute)
    if verbose and not isinstance(solution.status, Tracer):
        print(solution)
    popt = as_numbers(solution.params, names) if passing == "names" else solution.params
    report_failures(solution, popt, pcov, names, absolute, likelihood)
    if full_output:
        return popt, pcov, *_details(solution)
    if axis_name is not None:  # all other results describe one device only
        return popt, pcov
    return Fit(
        popt,
        pcov,
        solution=solution,
        names=names,
        y=y,
        sigma=sigma,
        absolute_sigma=absolute,
        model=boxed(f),
        passing=passing,
        positions=positions,
        options=boxed((box, constraints, loss)),
        likelihood=likelihood,
    )


def _check_function(f: Any) -> None:
    if not callable(f):
        kind = f"{f.dtype}[{', '.join(map(str, f.shape))}]" if hasattr(f, "dtype") else f"{f!r:.60}"
        raise TypeError(
            f"curve_fit: f is {kind}, expected a function f(x, a, b, ...): "
            "curve_fit(f, xdata, ydata)."
        )


def _knows_variance(likelihood: str | None, absolute_sigma: bool, sigma: Any, loss: Any) -> bool:
    """Check the options for contradictions, and return whether the variance of data is known."""
    if likelihood not in LIKELIHOODS:
        raise ValueError(f"curve_fit: likelihood = {likelihood!r}, expected one of {LIKELIHOODS}.")
    if likelihood is None:
        if absolute_sigma and sigma is None:
            warnings.warn(
                "curve_fit: absolute_sigma=True without sigma assumes a standard deviation of 1. "
                "Pass sigma, or omit absolute_sigma.",
                OptimizeWarning,
                stacklevel=3,
            )
        return bool(absolute_sigma)
    if sigma is not None or loss is not None:
        raise ValueError(
            "curve_fit: likelihood='poisson' with sigma or loss, expected neither, because the "
            "likelihood defines the variance of the counts. Omit sigma and loss."
        )
    return True


# MINPACK's `info` for each convergence test.
_MINPACK = {
    Status.CONVERGED_COST: 1,
    Status.CONVERGED_STEP: 2,
    Status.CONVERGED_GRADIENT: 4,
}


def _details(solution: Solution) -> tuple[dict[str, Any], Any, Any]:
    info = {
        "nfev": solution.nfev,
        "njev": solution.njev,
        "fvec": solution.residuals,
        "solution": solution,
    }
    if isinstance(solution.status, Tracer):
        return info, None, solution.status
    return info, solution.message, _MINPACK.get(Status(int(solution.status)), 5)
