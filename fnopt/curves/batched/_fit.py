"""The result of a batch of fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import Status, is_converged, missing_attribute, show_report, status_messages

# The names of a single fit and of SciPy's pair.
_ELSEWHERE = {
    "popt": "fit.params",
    "pcov": "fit.covariance",
    "standard_errors": "fit.errors",
    "report": "print(fit)",
    "success": "fit.converged",
}


class BatchFit(NamedTuple):
    """The result of :func:`fnopt.curve_fit_batch`; `print` says how many fits ended how.

    It is a pytree of arrays whose first axis is the fits, so it comes out of `jax.jit` like any
    other, and `jax.tree.map(lambda a: a[i], fit)` is one of them.

    Attributes:
        params: The params, `[fits, n]`, or a tree like `p0` whose leaves have a leading axis.
        covariance: Their covariance, `[fits, n, n]`; infinite where the data don't determine all.
        errors: Their standard errors, `[fits, n]`, the roots of its diagonal; they are in range
            where the squares in `covariance` underflow or overflow.
        cost: Half the sum of squares, `[fits]`; infinite if the start isn't finite.
        rank: Number of params that the data determine, int32 `[fits]`.
        steps: Number of steps, refused ones too, int32 `[fits]`.
        status: Why each stopped, a `fnopt.Status` as int32 `[fits]`.
        undetermined: Which params the data don't determine, bool `[fits, n]`, as in
            :class:`fnopt.solvers.Certificate`.
        certified: Whether the Gauss-Newton decrement is negligible, bool `[fits]`, likewise.
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

    if not TYPE_CHECKING:  # type checkers would believe that every attribute is there
        __getattr__ = missing_attribute("a BatchFit", _ELSEWHERE)

    @property
    def converged(self) -> jax.Array:
        """Which fits met a convergence test, `bool[fits]`."""
        return is_converged(self.status)

    @property
    def message(self) -> list[str]:
        """Why each fit ended, in words. Outside `jax.jit` only."""
        return status_messages(np.ravel(np.asarray(self.status)))

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        return repr(self) if isinstance(self.status, Tracer) else _report(self)


def no_fits(x0: jax.Array) -> BatchFit:
    """The result of fitting no data, from starts of shape `[0, n]`."""
    count = jnp.zeros(0, jnp.int32)
    covariance = jnp.zeros((0, x0.shape[1], x0.shape[1]), x0.dtype)
    none = jnp.zeros(x0.shape, bool)
    return BatchFit(
        x0, covariance, x0, jnp.zeros(0, x0.dtype), count, count, count, none, count > 0
    )


def _report(fit: BatchFit) -> str:
    if not fit.status.size:
        return "0 fits"
    codes = np.ravel(np.asarray(fit.status))
    steps = np.asarray(fit.steps)
    head = f"{codes.size} fits, {steps.mean():.1f} steps on average, {steps.max()} at most"
    lines = [head]
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        lines.append(f"  {count:>8}  {Status(int(code)).message}")
    converged = np.ravel(np.asarray(fit.converged))
    loose = int(np.sum(converged & np.any(np.asarray(fit.undetermined), axis=-1).ravel()))
    if loose:
        lines.append(f"  {loose:>8}  of the converged: the data don't determine all params")
    return "\n".join(lines)
