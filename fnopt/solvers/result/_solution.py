"""The solution of a least squares problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import (
    Params,
    is_converged,
    missing_attribute,
    show_report,
    status_messages,
)
from fnopt.jacobians import SparseJacobian
from fnopt.solvers.result._report import batch_report, listed, named_entries, report


class StepHistory(NamedTuple):
    """One entry a step; entries from `steps` on are NaN (and False).

    Attributes:
        cost: The cost after each step, `[max_steps]`.
        gradient_norm: The norm of the gradient there.
        radius: The radius of the trust region there.
        accepted: Whether the step was taken, bools.
    """

    cost: jax.Array
    gradient_norm: jax.Array
    radius: jax.Array
    accepted: jax.Array


def empty_history(most: int, dtype: Any) -> StepHistory:
    """A history before its first step."""
    nan = jnp.full(most, jnp.nan, dtype)
    return StepHistory(nan, nan, nan, jnp.zeros(most, bool))


def noted(history: StepHistory | None, step: jax.Array, entry: StepHistory) -> StepHistory | None:
    """The history with the entry of a step, the first of which is 1; None if none is kept."""
    if history is None or not history.cost.size:
        return history
    return StepHistory(*(a.at[step - 1].set(v) for a, v in zip(history, entry, strict=True)))


class StepInfo(NamedTuple):
    """The argument of callbacks at every step; as text it is a line of progress.

    Attributes:
        step: Its number, int32, 1 for the first one.
        params: The params after it.
        cost: The cost there.
        gradient_norm: The norm of the gradient there.
        radius: The radius of the trust region there.
        accepted: Whether the step was taken.
    """

    step: jax.Array
    params: Any
    cost: jax.Array
    gradient_norm: jax.Array
    radius: jax.Array
    accepted: jax.Array

    if not TYPE_CHECKING:
        __getattr__ = missing_attribute("a StepInfo", {"x": "params", "fun": "cost", "nit": "step"})

    def __str__(self) -> str:
        if isinstance(self.cost, Tracer):
            return repr(self)
        return (
            f"step {int(self.step):4d}  cost {float(self.cost):<12.6g} "
            f"gradient {float(self.gradient_norm):<9.3g} radius {float(self.radius):<9.3g} "
            f"{'accepted' if self.accepted else 'refused'}"
        )


_SCIPY = {
    "x": "params",
    "fun": "residuals",
    "jac": "jacobian",
    "grad": "jacobian.T @ residuals, if there is no loss (its norm: gradient_norm)",
    "optimality": "gradient_norm",
    "active_mask": "at_bound",
    "success": "converged",
    "nit": "steps",
    **dict.fromkeys(("popt", "best_values"), "params"),
    **dict.fromkeys(("pcov", "covar"), "fnopt.covariance(solution)"),
    "standard_errors": "fnopt.standard_errors(solution)",
    "report": "print(solution)",
    **dict.fromkeys(("predict", "predict_band", "plot"), "fnopt.curve_fit, whose Fit has it"),
}


class Solution(NamedTuple, Generic[Params]):
    r"""The result of :func:`fnopt.least_squares`; `print` gives a short report.

    It is a pytree of arrays, so it comes out of `jax.jit` and `jax.vmap` like any other.

    Attributes:
        params: The best params found, as they were given: tree, shapes, dtypes.
        cost: Half the sum of squares at the solution, or the robust cost.
        residuals: The residuals there, as `residual_fn` returns them.
        jacobian: The Jacobian there, `[m, n]`, residuals and params laid end to end; None if it
            isn't formed. If steps came from a sparse factor it is a
            :class:`fnopt.jacobians.SparseJacobian`, by what is fitted. Over a named axis it is the
            triangle `[n, n]` with the same :math:`J^T J`, which is all that a covariance needs.
        gradient_norm: The Euclidean norm of :math:`J^T r`.
        rank: How many directions of the params the data determine, int32.
        steps: Number of steps, refused ones too.
        nfev: How often the residuals were evaluated.
        njev: How often the Jacobian was.
        status: Why it stopped, a `fnopt.Status` as int32; `message` says it in words.
        history: A `StepHistory`, if it was asked for.
        tangent: The derivative of the params by what is fitted, `[p, n]`; None if they are it,
            or without a Jacobian.
        dof: Degrees of freedom, int32: residuals that count minus the rank.
        at_bound: -1 or 1 for each param on its lower or upper bound, int32 `[n]`; None without
            bounds.
        nhev: How many second derivatives along a step bent steps took.
        aux: The auxiliary output of `residual_fn`, with `has_aux`.
        fixed: Which of the fitted variables equal bounds fix, bool `[n]`; None without bounds.
        certificate: The optimality tests at the solution, a :class:`fnopt.solvers.Certificate`.
    """

    params: Params
    cost: jax.Array
    residuals: Any
    jacobian: jax.Array | SparseJacobian | None
    gradient_norm: jax.Array
    rank: jax.Array
    steps: jax.Array
    nfev: jax.Array
    njev: jax.Array
    status: jax.Array
    history: StepHistory | None = None
    tangent: jax.Array | SparseJacobian | None = None
    dof: jax.Array | None = None
    at_bound: jax.Array | None = None
    nhev: jax.Array | None = None
    aux: Any = None
    certificate: Any = None
    fixed: jax.Array | None = None

    @property
    def message(self) -> Any:
        """Why the solver stopped, in words; for a batch a (nested) list. Outside jit only."""
        return self.worded()

    def worded(self, names: Sequence[str] | None = None) -> Any:
        """The message, with the params that the data don't determine by these names."""
        text = status_messages(self.status)
        if self.certificate is None or jnp.ndim(self.certificate.certified):
            return text
        if jnp.ndim(self.status) or not bool(self.converged):
            return text
        mask = np.asarray(self.certificate.undetermined)
        if mask.any():
            names = named_entries(self.params) if names is None else names
            lost = [name for name, is_lost in zip(names, mask, strict=False) if is_lost]
            what = (
                listed(lost) if len(names) == mask.size else f"{mask.sum()} of {mask.size} params"
            )
            return f"{text}; the data don't determine {what}"
        least = self.certificate.least_curvature
        if not bool(self.certificate.certified) and least is not None and least < 0:
            return f"{text}; not certified, since the cost has negative curvature: a saddle point"
        if not bool(self.certificate.certified):
            return f"{text}; not certified, since a linear model still promises a decrease"
        return text

    @property
    def converged(self) -> jax.Array:
        """Whether a convergence test was met."""
        return is_converged(self.status)

    _repr_pretty_ = show_report

    if not TYPE_CHECKING:
        __getattr__ = missing_attribute("a Solution", _SCIPY)

    def __str__(self) -> str:
        if isinstance(self.status, Tracer):
            return repr(self)
        return report(self) if jnp.ndim(self.status) == 0 else batch_report("least squares", self)
