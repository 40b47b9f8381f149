"""Many curve fits in one call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.curves.batched._data import Points, checked_y, joined, split
from fnopt.curves.batched._fit import BatchFit, no_fits
from fnopt.curves.batched._lanes import Params, Tolerances
from fnopt.curves.batched._model import Predict, checked_model, residual
from fnopt.curves.batched._queue import Progress, fit_all
from fnopt.curves.batched._split import Split, by_device, split_of
from fnopt.curves.batched._start import checked_start
from fnopt.linear import NormalEquations, normal_equations
from fnopt.programs import Recorded, call_compiled, call_recorded
from fnopt.residuals import linearise_lanes
from fnopt.solvers import explained

_CHUNK = {"cpu": 128}  # elsewhere a chunk has to fill the device, not a cache
_LARGE_CHUNK = 1 << 16


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
    ftol: float | jax.Array | None = None,
    xtol: float | jax.Array | None = None,
    gtol: float | jax.Array | None = None,
    damping: float | jax.Array = 1e-3,
    max_steps: int = 200,
    chunk: int | None = None,
) -> BatchFit:
    r"""Fits one function to many sets of data: thousands to millions of small fits at once.

    .. math:: \min_{p_k} \tfrac12 \sum_i \left( \frac{f(x_i, p_k) - y_{ki}}{\sigma_{ki}} \right)^2
        \quad \text{for every } k, \qquad C_k = s_k^2 (J_k^T J_k)^{-1}

    `f` is written for one fit, `f(x, a, b, ...)`, as for :func:`fnopt.curve_fit`. A failing fit
    doesn't disturb the others, and `status` says why it failed. The fits run in chunks in bounded
    memory; one that is done makes room for another.

    The method is Levenberg-Marquardt with normal equations and an unrolled Cholesky factorisation
    in the scaling of Jacobi. Against the QR of :func:`fnopt.least_squares` that loses digits where
    the params are strongly correlated: about :math:`\kappa^2 \epsilon` instead of
    :math:`\kappa \epsilon`, with :math:`\kappa` the condition of the Jacobian with columns of
    length one. It is straight, too, without that solver's acceleration. A fit that fails, or whose
    steps throw a param to where it has no effect any more, is tried again from its start with a
    damping of 100, 1e4 and 1e6; if that doesn't help it counts as stalled. Everything is unrolled,
    so it is meant for up to a dozen params.

    It computes in the common dtype of `x`, `y` and `p0`, at least float32.

    Args:
        f: The model, `f(x, a, b, ...)`, written with `jax.numpy` for one fit; it returns an array
            of the shape of one fit's data.
        x: Where the data were taken: an array or any pytree of arrays, the same for all fits.
        y: The data, of shape `[fits, points]` (or `[fits, ...]`).
        p0: Where to start: an array of shape `[n]` for all fits or `[fits, n]`; or a sequence with
            an entry for each param, which is a number for all fits or an array of shape `[fits]`.
            Any other pytree is passed to `f` as one argument, `f(x, p)`; its leaves are numbers,
            or arrays with a leading axis of length `fits`.
        sigma: Standard deviations of the data: anything that broadcasts to `y`.
        absolute_sigma: Whether `sigma` is in the units of the data. Otherwise only its ratios
            count, and the covariance is scaled by the reduced chi-square.
        mask: Which points count, a bool array that broadcasts to `y`: fits may have different
            numbers of points. What `x` and `y` hold at the others doesn't matter.
        x_per_fit: Whether `x` has a leading axis too, one entry for each fit.
        ftol: Relative tolerance of the cost; by default 4 rounding units.
        xtol: Relative tolerance of the params; by default 4 rounding units.
        gtol: Tolerance of the cosine between the residual and the Jacobian's columns; by default
            the rounding unit.
        damping: The first damping, relative to the squared columns of the Jacobian.
        max_steps: The most steps of a fit.
        chunk: How many fits are worked on at once; by default as many as stay in a CPU core's
            cache (128), or 65,536 on an accelerator.

    Returns:
        A `BatchFit` with `params`, `covariance`, `cost`, `rank`, `steps` and `status` of every
        fit. Params are finite where `p0` is; a fit whose start isn't finite keeps its `p0`.

    Raises:
        ValueError: If shapes don't fit, there are no params or more than 16, or `sigma` is not
            positive.
        TypeError: If `f` isn't a function, `mask` isn't bool, or data or params aren't real.

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
        Marquardt (1963); Nielsen (1999), IMM-REP-1999-05; Przybylski et al. (2017), Gpufit,
        doi:10.1038/s41598-017-15313-9 (many fits at once).
    """
    if not callable(f):
        raise TypeError(f"curve_fit_batch: f is {f!r}, expected a function f(x, a, b, ...).")
    y = checked_y(y)
    shared, own = split(x, y, sigma, mask, x_per_fit)
    x0, layout = checked_start(p0, own.x if x_per_fit else shared.x, y)
    predict = checked_model(f, layout, x0, shared, own)
    settings: dict[str, Any] = {
        "absolute_sigma": bool(absolute_sigma),
        "max_steps": _positive(max_steps, "max_steps"),
        "chunk": _chunk(chunk, y.shape[0]),
    }
    if not y.shape[0]:
        return no_fits(x0)._replace(params=layout.tree(x0))
    settings["split"] = split_of((own, x0))
    arrays = x0, shared, own, _tolerances(x0.dtype, ftol, xtol, gtol, damping)
    if isinstance(predict, Recorded):
        fits = call_recorded(_fit, predict, *arrays, **settings)
    else:
        fits = call_compiled(functools.partial(_fit, predict, **settings), *arrays)
    return fits._replace(params=layout.tree(fits.params))


def _fit(
    predict: Predict,
    x0: jax.Array,
    shared: Points,
    own: Points,
    tolerances: Tolerances,
    *,
    split: Split | None,
    **settings: Any,
) -> BatchFit:
    def run(predict: Predict, shared: Points, tol: Any, x0: jax.Array, own: Points) -> BatchFit:
        return _fit_here(predict, x0, shared, own, tol, **settings)

    if isinstance(predict, Recorded):
        return by_device(run, split, (predict, shared, tolerances), (x0, own))
    return by_device(functools.partial(run, predict), split, (shared, tolerances), (x0, own))


def _fit_here(
    predict: Predict,
    x0: jax.Array,
    shared: Points,
    own: Points,
    tolerances: Tolerances,
    *,
    absolute_sigma: bool,
    max_steps: int,
    chunk: int,
) -> BatchFit:
    chunk = min(chunk, x0.shape[0])

    def evaluate(x: Params, data: Points) -> NormalEquations:
        def one(x: Params, data: Points) -> jax.Array:
            return residual(predict, x, joined(shared, data))

        return normal_equations(*linearise_lanes(one, x, data))

    progress = fit_all(evaluate, x0, own, tolerances, max_steps, chunk)
    points = _count(shared, own)
    return BatchFit(
        params=progress.x,
        covariance=_covariance(progress, points, absolute_sigma),
        cost=progress.square / 2,
        rank=progress.rank,
        steps=progress.steps,
        status=explained(progress.status, progress.rank > 0, progress.square, points),
    )


def _count(shared: Points, own: Points) -> jax.Array:
    """How many points each fit has, `int32[fits]`."""
    assert own.y is not None
    fits, *shape = own.y.shape
    if own.mask is not None:
        mask = jnp.broadcast_to(own.mask, own.y.shape)
        return jnp.sum(mask.reshape(fits, -1), axis=1, dtype=jnp.int32)
    mask = jnp.broadcast_to(True if shared.mask is None else shared.mask, tuple(shape))
    return jnp.broadcast_to(jnp.sum(mask, dtype=jnp.int32), fits)


def _covariance(progress: Progress, points: jax.Array, absolute_sigma: bool) -> jax.Array:
    n = progress.x.shape[1]
    known = (progress.rank == n) & jnp.isfinite(progress.square)
    variance = jnp.ones_like(progress.square)
    if not absolute_sigma:
        known &= points > n
        variance = progress.square / jnp.maximum(points - n, 1).astype(variance.dtype)
    covariance = progress.inverse * variance[:, None, None]
    return jnp.where(known[:, None, None], covariance, jnp.full_like(covariance, jnp.inf))


def _tolerances(dtype: Any, ftol: Any, xtol: Any, gtol: Any, damping: Any) -> Tolerances:
    """The numbers of the algorithm, defaults filled in.

    The cost is a sum of squares, whose rounding was seen to reach some ten units.
    """
    eps = float(jnp.finfo(dtype).eps)

    def array(value: Any, default: float) -> jax.Array:
        return jnp.asarray(default if value is None else value, dtype)

    return Tolerances(
        ftol=array(ftol, 4 * eps),
        xtol=array(xtol, 4 * eps),
        gtol=array(gtol, eps),
        damping=array(damping, 0),
        noise=array(16 * eps, 0),
        eps=array(eps, 0),
    )


def _positive(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"curve_fit_batch: {name} = {value!r}, expected a positive int.")
    return value


def _chunk(chunk: int | None, fits: int) -> int:
    if chunk is None:
        chunk = _CHUNK.get(jax.default_backend(), _LARGE_CHUNK)
    return max(min(_positive(chunk, "chunk"), fits), 1)
