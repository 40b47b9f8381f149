"""The solution of a least squares problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import Params, is_converged, messages, show_report
from fnopt.solvers._report import batch_report, report


class StepHistory(NamedTuple):
    """One entry a step; entries from `steps` on are NaN (and False)."""

    cost: jax.Array  # [max_steps], after the step
    gradient_norm: jax.Array  # [max_steps], of J^T r after the step
    radius: jax.Array  # [max_steps], of the trust region after the step
    accepted: jax.Array  # bool[max_steps]


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
    """The argument of callbacks at every step; as text it is a line of progress."""

    step: jax.Array  # int32, 1 at the first one
    params: Any  # after the step
    cost: jax.Array
    gradient_norm: jax.Array
    radius: jax.Array
    accepted: jax.Array  # bool

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
    "grad": "jacobian.T @ residuals (its norm: gradient_norm)",
    "optimality": "gradient_norm",
    "active_mask": "at_bound",
    "success": "converged",
    "nit": "steps",
}


class Solution(NamedTuple, Generic[Params]):
    r"""The result of :func:`fnopt.least_squares`; `print` gives a short report.

    It is a pytree of arrays, so it comes out of `jax.jit` and `jax.vmap` like any other.
    """

    params: Params  # the best params found, as they were given: tree, shapes, dtypes
    cost: jax.Array  # half the sum of squares at params
    residuals: Any  # at params, as residual_fn returns them
    # [m, n] at params, laid end to end; None if it isn't formed. Over a named axis it is the
    # triangle [n, n] with the same J^T J, which is all that a covariance needs of it.
    jacobian: jax.Array | None
    gradient_norm: jax.Array  # Euclidean norm of J^T r
    rank: jax.Array  # int32, how many directions of the params the data determine
    steps: jax.Array  # int32, steps made, refused ones too
    nfev: jax.Array  # int32, evaluations of the residuals
    njev: jax.Array  # int32, evaluations of the Jacobian
    status: jax.Array  # int32, a fnopt.Status
    history: StepHistory | None = None
    tangent: jax.Array | None = None  # [p, n], d params / d what is fitted; None if they are it
    dof: jax.Array | None = None  # int32, residuals that count minus the rank
    at_bound: jax.Array | None = None  # int32[n], -1 or 1 on the lower or upper bound; or None
    nhev: jax.Array | None = None  # int32, second derivatives r'' along a step, of bent steps
    aux: Any = None  # what residual_fn returns beside the residuals, at params; with has_aux

    @property
    def message(self) -> Any:
        """Why the solver stopped, in words; for a batch a (nested) list. Outside jit only."""
        return messages(self.status)

    @property
    def converged(self) -> jax.Array:
        """Whether a convergence test was met."""
        return is_converged(self.status)

    _repr_pretty_ = show_report

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = f". What SciPy calls so is {_SCIPY[name]} here" if name in _SCIPY else ""
            raise AttributeError(f"a Solution has no {name!r}{hint}.")

    def __str__(self) -> str:
        if isinstance(self.status, Tracer):
            return repr(self)
        return report(self) if jnp.ndim(self.status) == 0 else batch_report("least squares", self)
