"""Batch of curve fits in one call."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.curves._curve_start import check_kinds
from fnopt.curves._residuals import check_enough
from fnopt.curves.batched._data import NAME, BatchData, checked_y, split_points
from fnopt.curves.batched._fit import BatchFit, no_fits
from fnopt.curves.batched._fitted import run_fits
from fnopt.curves.batched._model import (
    checked_jacobian,
    checked_model,
    has_no_forward_mode,
)
from fnopt.curves.batched._split import split_of
from fnopt.curves.batched._start import checked_box, checked_start
from fnopt.curves.batched._task import Task
from fnopt.curves.batched._units import needs_units
from fnopt.errors import check_count, check_tolerance
from fnopt.numerics import per_row
from fnopt.programs import is_eager, jit_call, trace_and_call
from fnopt.residuals import as_loss, robust_cost
from fnopt.solvers import default_tolerances, levenberg_marquardt

# Chunk size in fits: 128 fits fit into a CPU core's cache. 8,192 fits of an exponential take 35, 17
# and 72 ms with chunks of 16, 128 and 1,024 (CPU time). On an accelerator, 2^16 fits are four for
# each of the 16,896 cores of an H100, because a core waits for memory between its operations.
_CHUNK = {"cpu": 128}
_LARGE_CHUNK = 1 << 16
_FEW = 1000  # largest batch with a fallback by default; a larger fallback would take seconds


def curve_fit_batch(
    f: Callable[..., Any],
    x: Any,
    y: Any,
    p0: Any,
    sigma: Any = None,
    absolute_sigma: bool = False,
    *,
    mask: Any = None,
    x_per_fit: bool = False,
    bounds: Any = None,
    loss: Any = None,
    f_scale: float | jax.Array = 1.0,
    jac: Any = None,
    ftol: float | jax.Array | None = None,
    xtol: float | jax.Array | None = None,
    gtol: float | jax.Array | None = None,
    radius: float | jax.Array = 0.6,
    max_steps: int = 200,
    fallback: bool | None = None,
    chunk: int | None = None,
) -> BatchFit:
    r"""Fit one function to many data sets in one call, for thousands to millions of small fits.

    .. math:: \min_{p_k} \tfrac12 \sum_i \left( \frac{f(x_i, p_k) - y_{ki}}{\sigma_{ki}} \right)^2
        \quad \text{for every } k, \qquad C_k = s_k^2 (J_k^T J_k)^{-1}

    The model `f(x, a, b, ...)` is a function of one fit, as for :func:`fnopt.curve_fit`. A failed
    fit doesn't affect the other fits, and its `status` is the reason for the failure. The fits run
    in chunks with bounded memory. As soon as a fit in a chunk ends, a waiting fit replaces it.

    The method is Levenberg-Marquardt as in :func:`fnopt.least_squares`, but without geodesic
    acceleration, and with an unrolled Cholesky factorization of the normal equations instead of QR.
    Trust region, bounds, stopping tests and certificate are the same. Let :math:`\kappa` be the
    condition number of the Jacobian with columns of unit length. The relative error is about
    :math:`\kappa^2 \epsilon` instead of :math:`\kappa \epsilon`. For up to 1,000 fits,
    :func:`fnopt.least_squares` repeats the failed fits. The unrolled factorization is efficient for
    about a dozen params at most.

    Params, cost, covariance and errors can be differentiated with respect to data, bounds, the
    scale of the loss, and arrays that `f` closes over.

    In an eager call, on an explicit mesh, and inside `jax.shard_map`, each fit runs on the device
    of its data. In your own `jax.jit` on an automatic mesh, the types of arrays don't contain the
    sharding, so every device would run all fits. Use `jax.shard_map` in this case.

    The compute dtype is the common dtype of `x`, `y` and `p0`, at least float32. In float32,
    squares of numbers below 1e-19 underflow, and squares of numbers above 1e19 overflow. Fits with
    data or `p0` below 1e-6 or above 1e6 are therefore rescaled. The covariance may also underflow
    or overflow, but the standard errors don't.

    Args:
        f: The model of one fit, `f(x, a, b, ...)`, written with `jax.numpy`. It returns an array
            with the shape of one fit's data.
        x: The positions of the data, an array or any pytree of arrays, for all fits.
        y: The data, of shape `[fits, points]` (or `[fits, ...]`).
        p0: The initial guess. An array has shape `[n]` (for all fits) or `[fits, n]`. A sequence
            has an entry for each param, which is a number for all fits or an array of shape
            `[fits]`. A dict keyed by parameter name is passed as keyword arguments, `f(x, **p)`,
            and any other pytree as one argument, `f(x, p)`. Their leaves are numbers for all fits,
            or arrays with a leading axis of length `fits`.
        sigma: Standard deviations of the data, broadcast to `y`. A point with infinite `sigma` is
            ignored.
        absolute_sigma: Whether `sigma` is in the units of the data. If False, only the ratios of
            `sigma` matter, and the covariance is multiplied by the reduced chi-square.
        mask: Mask of the valid points, a bool array broadcast to `y`, for fits with different
            numbers of points. Masked entries of `x` and `y` may have any value.
        x_per_fit: Whether `x` has a leading axis of fits.
        bounds: A pair `(lower, upper)`. Each side is a number for all params, an array of shape
            `[n]` or `[fits, n]`, a sequence of one entry per param, or a tree like `p0`. If `p0`
            has names, `bounds` may be a dict keyed by name, `{"a": (0, 1)}`. None is no bound.
            Equal bounds fix a param.
        loss: A robust loss, its name, or its function; see :func:`fnopt.least_squares`.
        f_scale: The scale of a loss that is passed by name or as a function.
        jac: The Jacobian of one fit, `jac(x, a, b, ...)` of shape `[points, n]`, written with
            `jax.numpy`, if computing it is cheaper than automatic differentiation. If `f` is
            differentiable, `jac` is compared with the derivative of `f` at the initial guess of the
            first fit.
        ftol: Relative tolerance of the cost; by default the machine epsilon, in float32 1e-10.
        xtol: Relative tolerance of the params; by default 4 times the machine epsilon.
        gtol: Tolerance of the cosine between the residuals and the Jacobian's columns; by default
            the machine epsilon.
        radius: The initial trust-region radius, in units of :math:`\|D x\|`; see
            :class:`fnopt.levenberg_marquardt`.
        max_steps: Maximum number of steps of a fit, and of the fallback of a fit.
        fallback: Whether :func:`fnopt.least_squares` repeats failed fits from their initial
            guesses, one after the other. The fallback solves fits that need QR or geodesic
            acceleration, for example models with a steep power or a poor initial guess of a rate. A
            repeated fit takes milliseconds, a fit in the batch microseconds. By default (None), the
            fallback is on for up to 1,000 fits. In an eager call, the fallback is compiled only if
            a fit fails.
        chunk: Number of fits that are processed at once; by default 128 on CPUs, which fit into a
            core's cache, and 65,536 on accelerators.

    Returns:
        A `BatchFit` with `params`, `covariance`, `errors`, `cost`, `rank`, `steps`, `status`,
        `undetermined` and `certified` of every fit. If `p0` is finite, the params are finite. A fit
        whose `p0` isn't finite returns `p0`.

    Raises:
        ValueError: If shapes are incompatible, there are no params or more than 16, `sigma` is not
            positive, a tolerance is negative, a lower bound exceeds its upper bound, or `p0`
            violates a bound.
        TypeError: If `f` isn't a function, `mask` isn't bool, data or params aren't real, or there
            are fewer data than params (without bounds).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> t = jnp.linspace(0.0, 4.0, 20)
        >>> rates = jnp.asarray([0.5, 1.0, 2.0])
        >>> y = 3.0 * jnp.exp(-rates[:, None] * t) + 0.01 * jnp.cos(9 * t)
        >>> y = y.at[1, 4].set(jnp.nan)
        >>> fit = fnopt.curve_fit_batch(lambda t, a, b: a * jnp.exp(-b * t), t, y, p0=(2.0, 1.0))
        >>> print(fit.params[0].round(1), fit.params[2].round(1))
        [3.  0.5] [3. 2.]
        >>> print(fit.converged, fit.message[1])
        [ True False  True] failed: the residuals or their Jacobian are not finite at these params

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory; Przybylski et
        al. (2017), Gpufit, doi:10.1038/s41598-017-15313-9 (for batches of fits).
    """
    if not callable(f):
        raise TypeError(f"curve_fit_batch: f is {f!r:.60}, expected a function f(x, a, b, ...).")
    check_kinds(f, p0, NAME)
    y = checked_y(y)
    shared, own = split_points(x, y, sigma, mask, x_per_fit)
    x0, layout = checked_start(f, p0, own.x if x_per_fit else shared.x, y)
    data = BatchData(x0, shared, own, checked_box(bounds, p0, x0, layout))
    points, n = math.prod(y.shape[1:]), x0.shape[1]
    check_enough(points, n, data.box, "curve_fit_batch", "bounds", " in a fit")
    task = Task(
        checked_model(f, layout, data),
        checked_jacobian(jac, layout, data),
        robust_cost(as_loss(loss, f_scale), jax.ShapeDtypeStruct((points,), y.dtype)),
    )
    if task.jacobian is None and has_no_forward_mode(task.predict, data):
        task = _with_reverse_mode(task)
    if chunk is None:
        chunk = _CHUNK.get(jax.default_backend(), _LARGE_CHUNK)
    settings: dict[str, Any] = {
        "absolute_sigma": bool(absolute_sigma),
        "max_steps": check_count(max_steps, "max_steps", "curve_fit_batch"),
        "chunk": max(min(check_count(chunk, "chunk", "curve_fit_batch"), y.shape[0]), 1),
    }
    if not y.shape[0]:
        return no_fits(x0)._replace(params=layout.tree(x0))
    settings["split"] = split_of((own, x0))
    settings["scaled"] = needs_units(data, task.losses)
    arrays = data, _method(x0.dtype, ftol, xtol, gtol, radius)
    falls_back = y.shape[0] <= _FEW if fallback is None else bool(fallback)

    def run(fallback: bool) -> tuple[BatchFit, jax.Array]:
        if task.is_value:
            return jit_call(run_fits, task, *arrays, fallback=fallback, **settings)
        return trace_and_call(
            functools.partial(run_fits, task, fallback=fallback, **settings), *arrays
        )

    is_lazy = falls_back and task.is_value and is_eager(arrays)
    fits = _run_lazily(run) if is_lazy else run(falls_back)[0]
    return fits._replace(params=layout.tree(fits.params))


def _with_reverse_mode(task: Task) -> Task:
    """Select reverse-mode derivatives for a model without a forward mode, and warn."""
    warnings.warn(
        "curve_fit_batch: f contains a custom_vjp and has no forward-mode derivative, so its "
        "Jacobian takes a reverse pass for each point of a fit. Pass a function jac(x, a, b, ...) "
        "to avoid these passes.",
        stacklevel=3,
    )
    return task._replace(solver=levenberg_marquardt(jacobian="reverse", geodesic=False))


def _run_lazily(run: Callable[[bool], tuple[BatchFit, jax.Array]]) -> BatchFit:
    """Run fits without the fallback, and again with the fallback only if a fit failed.

    Results of fits that didn't fail are taken from the first run, so the fallback doesn't change
    them.
    """
    fits, failed = run(False)
    if not bool(jnp.any(failed)):
        return fits
    return jax.tree.map(lambda a, b: jnp.where(per_row(failed, a), a, b), run(True)[0], fits)


def _method(dtype: Any, ftol: Any, xtol: Any, gtol: Any, radius: Any) -> levenberg_marquardt:
    """Make the method of the batch, with arrays as options, because new values don't recompile."""
    options = {"ftol": ftol, "xtol": xtol, "gtol": gtol, "radius": radius}
    for name, value in options.items():
        check_tolerance(value, name, "curve_fit_batch")
    defaults = *default_tolerances(float(jnp.finfo(dtype).eps)), radius
    ftol, xtol, gtol, radius = (
        jnp.asarray(default if value is None else value, dtype)
        for value, default in zip(options.values(), defaults, strict=True)
    )
    return levenberg_marquardt(ftol=ftol, xtol=xtol, gtol=gtol, radius=radius, geodesic=False)
