"""A factor that changes from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fnopt.core import Leafwise, ScalarOrSchedule, hyper


class ScaleByScheduleState(NamedTuple):
    """The number of updates made; None for a constant factor."""

    count: jax.Array | None


class scale_by_schedule(Leafwise):
    r"""Scale by a factor of the step: :math:`u_t = c_t\, g_t`. It adds no minus sign.

    Args:
        step_size_fn: :math:`c`, a `Schedule` or a number.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_schedule(fnopt.linear_schedule(2.0, 0.0, transition_steps=2))
        >>> _, state = tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))
        >>> tx.update({"w": jnp.ones(2)}, state)[0]
        {'w': Array([1., 1.], dtype=float32)}
    """

    State = ScaleByScheduleState
    is_short = True
    reads_step = False

    step_size_fn: ScalarOrSchedule = hyper(schedule=True)

    def leaf(self, h: Any, g: Any) -> Any:
        return h.step_size_fn * g
