"""Errors and warnings about failed fits."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from fnopt.core import Status, is_converged
from fnopt.programs import has_tracers
from fnopt.solvers import Solution, errors_of, listed

_START = (
    "Check f(xdata, *p0) and its derivatives for overflow and NaN. Try another p0 (the "
    "default is 1 for every param; the models of fnopt.models guess p0)"
)
_COUNTS = (
    "Check f(xdata, *p0), the mean of the counts: likelihood='poisson' takes its "
    "logarithm, so it must be finite, and positive wherever the count is positive. Pass "
    "another p0, or bounds or a model that keep the mean positive"
)
_ADVICE = {
    Status.MAX_STEPS: "Raise maxfev, or try another p0",
    Status.NONFINITE_START: _START,
    Status.ILL_POSED: _START,
    Status.WRONG_JACOBIAN: "Leave jac out to see whether the fit is right without it",
}


class OptimizeWarning(UserWarning):
    """Warning: the result or the covariance of a fit is unreliable."""


class FitError(RuntimeError):
    """Error for a fit without convergence, with the last `popt`, `pcov` and `solution`.

    Args:
        text: The message.
        popt: The best params found.
        pcov: Their covariance.
        solution: The whole solution.

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
    """Raise an error or warn if a fit failed, unless its values are traced.

    Args:
        solution: The fit.
        popt: The params, in the form returned to the user.
        pcov: Its covariance.
        names: The names of the params.
        absolute_sigma: Whether the variance of the data is known.
        likelihood: The distribution of the data; None for normal errors.
    """
    if has_tracers((solution, pcov)):  # under differentiation the values are tracers
        solution, popt, pcov = jax.tree.map(jax.lax.stop_gradient, (solution, popt, pcov))
    if any(isinstance(x, Tracer) for x in (solution.status, pcov)):
        return  # under jit or vmap only the status can report a failure
    if not is_converged(np.asarray(solution.status)):
        status = Status(int(solution.status))
        advice = _ADVICE.get(status, "Try another p0")
        advice = _COUNTS if likelihood and advice is _START else advice
        raise FitError(
            f"curve_fit: optimal parameters not found: {solution.worded(names)} "
            f"(after {int(solution.nfev)} evaluations). {advice}. The attributes "
            "popt, pcov and solution of this error hold the result.",
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
    """Text of the warning about a converged fit without certificate or covariance, or `''`."""
    # Smaller variances are subnormal: they lose digits, and a CPU flushes them to 0.
    tiny = np.finfo(pcov.dtype).tiny
    usable = np.isfinite(np.diag(pcov)) & (np.diag(pcov) >= tiny)
    if np.all(np.isfinite(pcov)) and np.all(usable):
        return "" if bool(solution.certificate.certified) else solution.worded(names)
    errors = np.asarray(errors_of(solution, absolute_sigma))
    m, n, rank = np.size(solution.residuals), len(pcov), int(solution.rank)
    missing = "the covariance of the params could not be estimated: "
    lost = [name for name, error in zip(names, errors, strict=True) if np.isinf(error)]
    if lost and rank < n:
        return f"{missing}the data don't determine {listed(lost)} (rank {rank} of {n}, {m} data)"
    if lost:
        return (
            f"{missing}{m} data for {n} params leave no degrees of freedom to estimate "
            "the variance of the data (pass it as sigma with absolute_sigma=True)"
        )
    if np.any((errors > 0) & ~usable) or np.any(np.isnan(pcov)):
        return (
            f"variances in pcov are out of the range of {pcov.dtype}. fit.standard_errors "
            "holds their square roots, which are in range"
        )
    return ""
