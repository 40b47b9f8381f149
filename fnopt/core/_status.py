"""Status of a solver: integer codes for arrays, and messages for users."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


class Status(enum.IntEnum):
    """Reason why a solver stopped; `RUNNING` before it stops.

    Inside `jax.jit` a status is an int32 array; `Status(int(code))` converts it.

    Example:
        >>> from fnopt import Status
        >>> status = Status(2)
        >>> status.name, status.converged, status.message
        ('CONVERGED_STEP', True, 'converged: the last step was below xtol')
    """

    message: str

    RUNNING = 0, "not finished: more steps would lower the cost"
    CONVERGED_COST = 1, "converged: the cost can't be lowered by more than ftol"
    CONVERGED_STEP = 2, "converged: the last step was below xtol"
    CONVERGED_GRADIENT = 3, "converged: the gradient is below gtol"
    MAX_STEPS = 4, "not converged: the solver took max_steps steps"
    STALLED = 5, "not converged: no step lowers the cost, but the linear model predicts a decrease"
    NONFINITE_START = 6, "failed: the residuals or their Jacobian are not finite at these params"
    NONFINITE_STEP = 7, "failed: the residuals of every trial step are not finite"
    ILL_POSED = (
        8,
        "failed: the Jacobian is zero at these params, the squares of its entries underflow, or "
        "all weights are zero",
    )
    INFEASIBLE = 9, "failed: a lower bound is above its upper bound, or a bound is NaN"
    WRONG_JACOBIAN = (
        11,
        "not converged: jac is not the derivative of the residuals (compared along a direction at "
        "the initial guess); compare jac with jax.jacfwd(residual_fn)(params), or omit jac",
    )

    STOPPED = 12, "not converged: the callback stopped the search"
    UNBOUNDED = (
        13,
        "not converged: the value decreases without end, so the function has no lower bound or the "
        "params need bounds",
    )
    NONFINITE_STATE = (
        14,
        "the state was not finite (for example after a damaged checkpoint) and was reset",
    )

    def __new__(cls, code: int, message: str = "") -> Status:
        """Make a member from its code and its message."""
        self = int.__new__(cls, code)
        self._value_ = code
        self.message = message
        return self

    @property
    def converged(self) -> bool:
        """Whether the status reports convergence."""
        return self.name.startswith("CONVERGED")

    @property
    def array(self) -> jax.Array:
        """The code as a strongly typed int32 scalar."""
        return jnp.asarray(self.value, jnp.int32)


def is_converged(status: Any) -> jax.Array:
    """Whether status codes report convergence, elementwise."""
    return (status >= Status.CONVERGED_COST.value) & (status <= Status.CONVERGED_GRADIENT.value)


def status_messages(status: Any, words: Mapping[Status, str] | None = None) -> Any:
    """Return the message of a status code, or a nested list for a batch; not under `jax.jit`.

    Args:
        status: The codes.
        words: Messages that replace the default messages of some statuses.
    """
    if isinstance(status, Tracer):
        raise TypeError(
            "message: the status is traced, expected a concrete array. Inside jax.jit, use the "
            "arrays `status` and `converged`."
        )
    codes = np.asarray(status)
    if codes.ndim:
        return [status_messages(code, words) for code in codes]
    member = Status(int(codes))
    return (words or {}).get(member, member.message)
