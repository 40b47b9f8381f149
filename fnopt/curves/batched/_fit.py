"""Result of a batch of fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import Status, is_converged, status_messages
from fnopt.errors import count_text, missing_attribute, show_report

# Attributes of a single fit and of SciPy's pair, and the expressions that replace them here.
_ELSEWHERE = {
    "popt": "fit.params",
    "pcov": "fit.covariance",
    "standard_errors": "fit.errors",
    "report": "print(fit)",
    "success": "fit.converged",
}


class BatchFit(NamedTuple):
    """Result of :func:`fnopt.curve_fit_batch`.

    `print(fit)` prints the number of fits for each status. A `BatchFit` is a pytree of arrays with
    a leading axis of fits, so functions under `jax.jit` can return it.
    `jax.tree.map(lambda a: a[i], fit)` selects fit `i`.

    Attributes:
        params: The params, `[fits, n]`, or a tree like `p0` whose leaves have a leading axis.
        covariance: The covariance of the params, `[fits, n, n]`; infinite for a fit whose data
            don't determine all params.
        errors: The standard errors of the params, `[fits, n]`, the roots of the diagonal of the
            covariance. The errors are in range even if the variances underflow or overflow.
        cost: Half the sum of squares, `[fits]`; infinite if the sum isn't finite at `p0`.
        rank: Number of params that the data determine, int32 `[fits]`.
        steps: Number of accepted and rejected steps, int32 `[fits]`.
        status: Reason why each fit stopped, the code of a `fnopt.Status`, int32 `[fits]`.
        undetermined: Mask of params that the data don't determine, bool `[fits, n]`, as in
            :class:`fnopt.solvers.Certificate`.
        certified: Whether the Gauss-Newton decrement is negligible, bool `[fits]`, as in
            :class:`fnopt.solvers.Certificate`.
    """

    params: Any
    covariance: jax.Array
    errors: jax.Array
    cost: jax.Array
    rank: jax.Array
    steps: jax.Array
    status: jax.Array
    undetermined: jax.Array
    certified: jax.Array

    if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any attribute
        __getattr__ = missing_attribute("a BatchFit", _ELSEWHERE)

    @property
    def converged(self) -> jax.Array:
        """Mask of the fits that passed a convergence test, `bool[fits]`."""
        return is_converged(self.status)

    @property
    def message(self) -> list[str]:
        """Reason why each fit stopped, as text; not available under `jax.jit`."""
        return status_messages(self.status.reshape(-1))

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        return repr(self) if isinstance(self.status, Tracer) else _report(self)


def no_fits(x0: jax.Array) -> BatchFit:
    """Result of a batch without data sets, from initial guesses of shape `[0, n]`."""
    count = jnp.zeros(0, jnp.int32)
    covariance = jnp.zeros((0, x0.shape[1], x0.shape[1]), x0.dtype)
    mask = jnp.zeros(x0.shape, bool)
    return BatchFit(
        x0, covariance, x0, jnp.zeros(0, x0.dtype), count, count, count, mask, count > 0
    )


def _report(fit: BatchFit) -> str:
    if not fit.status.size:
        return "0 fits"
    codes = np.ravel(np.asarray(fit.status))
    steps = np.asarray(fit.steps)
    fits = count_text(codes.size, "fit")
    lines = [f"{fits}, {steps.mean():.1f} steps on average, {steps.max()} at most"]
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        lines.append(f"  {count:>8}  {Status(int(code)).message}")
    converged = np.ravel(np.asarray(fit.converged))
    undetermined = int(np.sum(converged & np.any(np.asarray(fit.undetermined), axis=-1).ravel()))
    if undetermined:
        lines.append(f"  {undetermined:>8}  converged fits whose data don't determine all params")
    return "\n".join(lines)
