"""`Solution`, the result of `least_squares`, with its step history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import Params, is_converged, status_messages
from fnopt.errors import missing_attribute, show_report
from fnopt.jacobians import SparseJacobian
from fnopt.solvers.result._report import batch_report, report, undetermined_text
from fnopt.solvers.result._residual_report import ResidualReport, residual_report


class StepHistory(NamedTuple):
    """Arrays with one entry per step; entries from `steps` on are NaN (or False).

    Attributes:
        cost: The cost after each step, `[max_steps]`.
        gradient_norm: The norm of the gradient after each step.
        radius: The trust-region radius after each step.
        accepted: Whether each step was accepted, bool.
    """

    cost: jax.Array
    gradient_norm: jax.Array
    radius: jax.Array
    accepted: jax.Array


def empty_history(max_steps: int, dtype: Any) -> StepHistory:
    """Return a history before the first step."""
    nan = jnp.full(max_steps, jnp.nan, dtype)
    return StepHistory(nan, nan, nan, jnp.zeros(max_steps, bool))


def record_step(
    history: StepHistory | None, step: jax.Array, entry: StepHistory
) -> StepHistory | None:
    """Write the entry of a step, counted from 1, to the history; None if there is no history."""
    if history is None or not history.cost.size:
        return history
    return StepHistory(*(a.at[step - 1].set(v) for a, v in zip(history, entry, strict=True)))


class StepInfo(NamedTuple):
    """The argument of callbacks at every step; `print` shows it as one line.

    Attributes:
        step: The number of the step, int32, from 1.
        params: The params after the step.
        cost: The cost at `params`.
        gradient_norm: The norm of the gradient at `params`.
        radius: The trust-region radius after the step.
        accepted: Whether the step was accepted.
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
            f"step {int(self.step):4d}  cost {float(self.cost):<12.6g} gradient "
            f"{float(self.gradient_norm):<9.3g} radius {float(self.radius):<9.3g} "
            f"{'accepted' if self.accepted else 'rejected'}"
        )


# Attributes of the results of SciPy and lmfit, and what to use instead.
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
    **dict.fromkeys(("predict", "predict_band", "plot"), "the Fit of fnopt.curve_fit"),
}


class Solution(NamedTuple, Generic[Params]):
    r"""The result of :func:`fnopt.least_squares`; `print` shows a short report.

    A `Solution` is a pytree of arrays, so functions under `jax.jit` and `jax.vmap` can return it.

    Attributes:
        params: The fitted params, with the tree, shapes and dtypes of the initial guess.
        cost: Half the sum of squares at the solution, or the robust cost.
        residuals: The residuals at the solution, a tree like the result of `residual_fn`.
        jacobian: The Jacobian at the solution, `[m, n]`, of the raveled residuals with respect to
            the fitted variables (the raveled params, without constraints); None if it isn't formed.
            After steps by a sparse factorization, it is a :class:`fnopt.jacobians.SparseJacobian`.
            Over a named axis, it is the triangular factor `[n, n]` with the same :math:`J^T J`,
            which determines the covariance.
        gradient_norm: The Euclidean norm of :math:`J^T r`.
        rank: The numerical rank of the Jacobian, int32. It is -1 (unknown) after steps by conjugate
            gradients, or if a sparse Jacobian has a rank deficiency of 8 or more.
        steps: Number of steps, rejected ones included.
        nfev: Number of evaluations of the residuals.
        njev: Number of evaluations of the Jacobian.
        status: Reason why the search stopped: a `fnopt.Status` as int32; `message` is its text.
        history: A `StepHistory` if `history=True`, else None.
        tangent: The derivative of the params with respect to the fitted variables, `[p, n]`; None
            if the params are the fitted variables, or without a Jacobian.
        dof: Degrees of freedom, int32: the number of residuals of nonzero weight minus the rank
            (minus the number of variables, if the rank is unknown).
        at_bound: -1 for a variable on its lower bound, 1 on its upper bound, else 0, int32 `[n]`;
            None without bounds.
        nhev: Number of evaluations of the residuals' second derivative along a step, for the
            geodesic acceleration.
        aux: The auxiliary output of `residual_fn`, with `has_aux`.
        fixed: Mask of the fitted variables that are fixed by equal bounds, bool `[n]`; None without
            bounds.
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
    dof: Any = None  # set after the search, from the rank
    at_bound: jax.Array | None = None
    nhev: jax.Array | None = None
    aux: Any = None
    certificate: Any = None
    fixed: jax.Array | None = None

    @property
    def message(self) -> Any:
        """Text of `status` (a list of texts for a batch); not available under `jax.jit`."""
        return self.worded()

    def worded(self, names: Sequence[str] | None = None) -> Any:
        """Return the message; if it lists undetermined params, use `names` for the numbers."""
        text = status_messages(self.status)
        if self.certificate is None or jnp.ndim(self.certificate.certified):
            return text
        if jnp.ndim(self.status) or not bool(self.converged):
            return text
        undetermined = undetermined_text(self, names)
        if undetermined:
            return f"{text}; the data don't determine {undetermined}"
        if bool(self.certificate.certified):
            return text
        curvature = self.certificate.least_curvature
        if curvature is not None and curvature < 0:
            return f"{text}; not certified, because the cost has negative curvature (saddle point)"
        return f"{text}; not certified, because the linear model predicts a decrease"

    def residual_report(self, count: int = 10) -> ResidualReport:
        """Return the residuals of each leaf, and the observations with the largest residuals.

        An observation is one entry of a vector of residuals, or a row along the last axis of
        another array. The residuals are divided by `sigma`, without weights of a robust loss. The
        solution must be concrete (outside `jax.jit`) and of one problem.

        Args:
            count: The number of observations.
        """
        return residual_report(self, count)

    @property
    def converged(self) -> jax.Array:
        """Whether the search converged."""
        return is_converged(self.status)

    _repr_pretty_ = show_report

    if not TYPE_CHECKING:
        __getattr__ = missing_attribute("a Solution", _SCIPY)

    def __str__(self) -> str:
        if isinstance(self.status, Tracer):
            return repr(self)
        return report(self) if jnp.ndim(self.status) == 0 else batch_report("least squares", self)
