"""`Minimum`, the result of `minimize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import Params, Status, is_converged, status_messages
from fnopt.errors import count_text, missing_attribute, show_report
from fnopt.solvers.result._report import batch_report
from fnopt.solvers.result._solution import StepHistory
from fnopt.solvers.result._values import value_lines

# Messages of statuses whose general text is about residuals.
_MESSAGES = {
    Status.RUNNING: "not finished: more steps would lower the value",
    Status.CONVERGED_COST: "converged: the value can't be lowered by more than ftol",
    Status.STALLED: "not converged: no step lowers the value, though the gradient isn't small",
    Status.NONFINITE_START: "failed: the function or its gradient is not finite at these params",
    Status.NONFINITE_STEP: "failed: every step led to non-finite function values",
}

# Attributes of SciPy's result, and what to use instead.
_SCIPY = {
    "x": "params",
    "fun": "value",
    "jac": "jax.grad(fun)(params) (its largest entry: gradient_norm)",
    "success": "converged",
    "nit": "steps",
}


class Minimum(NamedTuple, Generic[Params]):
    """The result of :func:`fnopt.minimize`; `print` shows a short report.

    A `Minimum` is a pytree of arrays, so functions under `jax.jit` and `jax.vmap` can return it.

    Attributes:
        params: The final params, with the tree, shapes and dtypes of the initial guess. If the
            search didn't converge, these are the params with the lowest value.
        value: The function value at `params`.
        gradient_norm: The maximum norm of the projected gradient at `params`.
        steps: Number of trial points after the initial guess, int32.
        nfev: Number of evaluations of the function and its gradient.
        status: Reason why the search stopped: a `fnopt.Status` as int32; `message` is its text.
        aux: The auxiliary output of the function at `params`.
        history: A `fnopt.solvers.StepHistory` if `history=True`, else None.
        at_bound: A tree of int32 like the params: -1 for a param on its lower bound, 1 on its upper
            bound, else 0; None without bounds.
    """

    params: Params
    value: jax.Array
    gradient_norm: jax.Array
    steps: jax.Array
    nfev: jax.Array
    status: jax.Array
    aux: Any = None
    history: StepHistory | None = None
    at_bound: Any = None

    @property
    def message(self) -> Any:
        """Text of `status` (a list of texts for a batch); not available under `jax.jit`."""
        return status_messages(self.status, _MESSAGES)

    @property
    def converged(self) -> jax.Array:
        """Whether the search converged."""
        return is_converged(self.status)

    _repr_pretty_ = show_report

    if not TYPE_CHECKING:
        __getattr__ = missing_attribute("a Minimum", _SCIPY)

    def __str__(self) -> str:
        if isinstance(self.status, Tracer):
            return repr(self)
        if jnp.ndim(self.status):
            return batch_report("minimize", self)
        lines = [
            f"minimize: {self.message}",
            f"  value {float(self.value):.6g}, gradient {float(self.gradient_norm):.2g}",
            f"  {count_text(int(self.steps), 'step')}, {count_text(int(self.nfev), 'evaluation')}",
        ]
        return "\n".join(lines + value_lines(self.params, self.at_bound))
