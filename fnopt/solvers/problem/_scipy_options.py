"""Conversion of the keywords of SciPy's `least_squares` to fnopt's arguments."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from fnopt.errors import check_count, count_text
from fnopt.jacobians import sparse_jacobian
from fnopt.residuals import RobustLoss, custom_loss, joined_function, named_loss
from fnopt.solvers.problem._call import SCHEMES
from fnopt.solvers.problem._scipy import ScipyTable

_METHODS = (None, "trf", "dogbox", "lm")
_TOLERANCES = ("ftol", "xtol", "gtol")
_TABLE = ScipyTable(
    "least_squares",
    keywords=(
        *(*_TOLERANCES, "max_nfev", "f_scale", "method", "verbose", "kwargs", "jac_sparsity"),
        # These have no effect, because derivatives are exact, and the method scales the params and
        # chooses the linear solver automatically.
        *("x_scale", "diff_step", "tr_solver", "tr_options", "workers"),
    ),
    instead={
        "fun": "Rename it to residual_fn, or pass it first",
        "x0": "Rename it to params, or pass it second",
        "maxiter": "Write max_steps",
        "maxfev": "Write max_steps, or SciPy's max_nfev",
        "tol": "Write ftol, xtol or gtol",
        "p0": "Rename it to params, or pass it second",
        "absolute_sigma": "Write fnopt.covariance(solution, absolute_sigma=True)",
    },
)


def with_scipy_options(
    options: dict[str, Any],
    *,
    residual_fn: Any,
    jac: Any,
    solver: Any,
    loss: Any,
    bounds: Any,
    max_steps: int,
) -> tuple[Any, Any, Any, Any, int, int]:
    """Convert a call of `least_squares` with SciPy's keywords to fnopt's arguments.

    Args:
        options: The keywords that `least_squares` doesn't declare, with their values.
        residual_fn: The residual function, or a container of several functions.
        jac: The Jacobian; SciPy's names of finite-difference schemes are converted to None.
        solver: The method.
        loss: The loss; `f_scale` is the scale of a loss that is a name or a function.
        bounds: The bounds; infinite bounds are converted to None.
        max_steps: The maximum number of steps.

    Returns:
        The Jacobian, the method, the loss, the bounds, the maximum number of steps, and `verbose`.

    Raises:
        TypeError: If a keyword is unknown, or has another name in fnopt.
        ValueError: If a keyword has an unknown value.
    """
    read = _TABLE.read(options)
    bounds = finite_bounds(bounds)
    method, verbose = read.get("method"), read.get("verbose", 0)
    if method not in _METHODS:
        raise ValueError(
            f"least_squares: method = {method!r}, expected one of {_METHODS}, which all select the "
            "default solver. For another method pass a solver, such as fnopt.solvers.dogleg()."
        )
    if method == "lm" and bounds is not None:
        raise ValueError(
            "least_squares: got bounds with method = 'lm', which doesn't support bounds. Leave "
            "the argument `method` out."
        )
    if verbose not in (0, 1, 2):
        raise ValueError(
            f"least_squares: verbose = {verbose!r}, expected 0, 1 (a report) or 2 (steps)."
        )
    max_steps = check_count(max_steps, "max_steps", "least_squares", least=0)
    if "max_nfev" in read:
        # One of the evaluations is at the initial guess.
        max_steps = check_count(read["max_nfev"], "max_nfev", "least_squares") - 1
    tolerances = {name: read[name] for name in _TOLERANCES if name in read}
    jac = None if isinstance(jac, str) and jac in SCHEMES else jac
    jac = _sparse_jac(residual_fn, read.get("jac_sparsity")) if jac is None else jac
    solver = dataclasses.replace(solver, **tolerances) if tolerances else solver
    return jac, solver, _with_scale(loss, read.get("f_scale")), bounds, max_steps, int(verbose)


def check_overdetermined(
    options: dict[str, Any],
    residual_fn: Any,
    params: Any,
    args: tuple[Any, ...],
    constraints: Any,
) -> None:
    """Check that there are at least as many residuals as params for SciPy's `method='lm'`."""
    if options.get("method") != "lm" or constraints is not None:  # SciPy has no constraints
        return
    residuals = jax.eval_shape(residual_fn, params, *args)
    m, n = (sum(np.size(leaf) for leaf in jax.tree.leaves(tree)) for tree in (residuals, params))
    if m < n:
        raise ValueError(
            f"least_squares: got {count_text(m, 'residual')} for {count_text(n, 'param')} with "
            "method = 'lm', expected at least as many residuals as params. Leave the argument "
            "`method` out to find one of the many solutions."
        )


def with_keywords(residual_fn: Any, jac: Any, keywords: Any) -> tuple[Any, Any]:
    """Bind the keyword arguments of SciPy's `kwargs` to the residual functions and Jacobians."""
    joined_function(residual_fn)  # checks the functions first: a user may swap them with params
    if not keywords:
        return residual_fn, jac
    if not isinstance(keywords, dict):
        raise TypeError(
            f"least_squares: kwargs = {keywords!r}, expected a dict of keyword arguments of "
            "residual_fn."
        )

    def bind(fn: Any) -> Any:
        if callable(fn):
            return functools.partial(fn, **keywords)
        return jax.tree.map(bind, fn) if isinstance(fn, (list, tuple, dict)) else fn

    return bind(residual_fn), bind(jac)


def _sparse_jac(residual_fn: Any, sparsity: Any) -> Any:
    """Make a sparse Jacobian from SciPy's `jac_sparsity`, a matrix with the nonzero pattern."""
    if sparsity is None:
        return None
    pattern = sparsity if hasattr(sparsity, "tocoo") else np.asarray(sparsity) != 0
    return sparse_jacobian(joined_function(residual_fn), pattern)


def _with_scale(loss: Any, scale: Any) -> Any:
    if isinstance(loss, str):  # a string can't be part of a pytree of arrays
        return named_loss(loss, 1.0 if scale is None else scale)
    if scale is None or loss is None:
        return loss
    if isinstance(loss, RobustLoss) or not callable(loss):
        raise ValueError(
            f"least_squares: got f_scale = {scale!r} with loss = {loss!r}, expected loss to be a "
            "name or a function. Leave f_scale out, and pass the scale to the loss."
        )
    return custom_loss(loss, scale)


def finite_bounds(bounds: Any) -> Any:
    """Return None if all bounds are infinite (SciPy's default), otherwise the bounds."""
    if bounds is None:
        return None
    pair = (bounds.lb, bounds.ub) if hasattr(bounds, "lb") and hasattr(bounds, "ub") else bounds
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return bounds
    lower, upper = map(jax.tree.leaves, pair)
    if any(isinstance(leaf, Tracer) for leaf in (*lower, *upper)):
        return bounds
    open_below = all(np.all(np.asarray(leaf) == -np.inf) for leaf in lower)
    open_above = all(np.all(np.asarray(leaf) == np.inf) for leaf in upper)
    return None if open_below and open_above else bounds
