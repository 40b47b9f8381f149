"""Errors and warnings of failed curve fits."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from fnopt.core import Status, is_converged
from fnopt.errors import count_text
from fnopt.numerics import is_inexact
from fnopt.programs import has_tracers
from fnopt.solvers import Solution, errors_of, listed

_START = (
    "Check f(xdata, *p0) and its derivatives for overflow and NaN. Try another p0 (by default 1 "
    "for every param; the models of fnopt.models guess p0)"
)
_COUNTS = (
    "Check f(xdata, *p0), the expected counts: with likelihood='poisson', they must be finite, and "
    "positive for every positive count. Pass another p0, or bounds or a model that keep the "
    "expected counts positive"
)
_ADVICE = {
    Status.MAX_STEPS: "Raise maxfev, or try another p0",
    Status.NONFINITE_START: _START,
    Status.ILL_POSED: _START,
    Status.WRONG_JACOBIAN: "Omit jac to find out whether the fit converges without it",
}


class OptimizeWarning(UserWarning):
    """Warning about an unreliable result or covariance of a fit."""


class FitError(RuntimeError):
    """Error of a fit that didn't converge, with the attributes `popt`, `pcov` and `solution`.

    Args:
        text: The message.
        popt: The last params.
        pcov: The covariance of the params.
        solution: The result of :func:`fnopt.least_squares`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> x = jnp.linspace(0.0, 4.0, 9)
        >>> y = 9 * jnp.exp(-3 * x)
        >>> try:
        ...     fnopt.curve_fit(lambda x, a, b: a * jnp.exp(-b * x), x, y, maxfev=2)
        ... except fnopt.curves.FitError as error:
        ...     print(error.popt.shape, error.pcov.shape)
        (2,) (2, 2)
    """

    def __init__(self, text: str, popt: Any, pcov: jax.Array, solution: Solution) -> None:
        super().__init__(text)
        self.popt = popt
        self.pcov = pcov
        self.solution = solution


def report_failures(
    solution: Solution,
    popt: Any,
    pcov: jax.Array,
    names: tuple[str, ...],
    absolute_sigma: bool,
    likelihood: str | None,
) -> None:
    """Raise a `FitError` if a fit failed, or warn about its covariance.

    Fits with traced values aren't checked.

    Args:
        solution: The solution of the fit.
        popt: The params, in the form that the user gets.
        pcov: The covariance of the params.
        names: The names of the params.
        absolute_sigma: Whether the variance of the data is known.
        likelihood: The distribution of the data; None for normal errors.
    """
    if has_tracers((solution, pcov)):
        # Under `jax.grad`, the primals are concrete, and `stop_gradient` extracts them.
        solution, popt, pcov = jax.tree.map(jax.lax.stop_gradient, (solution, popt, pcov))
    if any(isinstance(x, Tracer) for x in (solution.status, pcov)):
        return  # under `jax.jit` or `jax.vmap`, only the status can report a failure
    if not is_converged(np.asarray(solution.status)):
        status = Status(int(solution.status))
        advice = _ADVICE.get(status, "Try another p0")
        advice = _COUNTS if likelihood and advice is _START else advice
        if not all(np.all(np.isfinite(x)) for x in jax.tree.leaves(popt) if is_inexact(x)):
            advice = f"The initial guess p0 is {popt!s:.60}, expected finite numbers"
        raise FitError(
            f"curve_fit: optimal parameters not found: {solution.worded(names)} (after "
            f"{count_text(int(solution.nfev), 'evaluation')}). {advice}. The result is in the "
            "attributes popt, pcov and solution of this error.",
            popt,
            pcov,
            solution,
        )
    text = _warning_text(solution, np.asarray(pcov), names, absolute_sigma)
    if text:
        warnings.warn(f"curve_fit: {text}.", OptimizeWarning, stacklevel=3)


def _warning_text(
    solution: Solution, pcov: np.ndarray, names: tuple[str, ...], absolute_sigma: bool
) -> str:
    """Text of the warning about a fit without certificate or covariance, or `''`."""
    # Variances below `tiny` are subnormal. They have fewer digits, and XLA may flush them to 0.
    tiny = np.finfo(pcov.dtype).tiny
    in_range = np.isfinite(np.diag(pcov)) & (np.diag(pcov) >= tiny)
    if np.all(np.isfinite(pcov)) and np.all(in_range):
        return "" if bool(solution.certificate.certified) else solution.worded(names)
    errors = np.asarray(errors_of(solution, absolute_sigma))
    m, n, rank = np.size(solution.residuals), len(pcov), int(solution.rank)
    prefix = "the covariance of the params could not be estimated"
    undetermined = [name for name, error in zip(names, errors, strict=True) if np.isinf(error)]
    if undetermined and rank < n:
        return (
            f"{prefix}, because the data don't determine {listed(undetermined)} (rank {rank} of "
            f"{n}, {count_text(m, 'data point')})"
        )
    if undetermined:
        return (
            f"{prefix}, because the variance of the data has no degrees of freedom with "
            f"{count_text(m, 'data point')} and {count_text(n, 'param')} (pass standard "
            "deviations as sigma, with absolute_sigma=True)"
        )
    if np.any((errors > 0) & ~in_range) or np.any(np.isnan(pcov)):
        return (
            f"variances in pcov are out of the range of {pcov.dtype}. Use fit.standard_errors, "
            "their square roots, which are in range"
        )
    return ""
