"""Multiplication by minus the learning rate."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import lax

from fnopt.core import Leafwise, ScalarOrSchedule, hyper


class ScaleByLearningRateState(NamedTuple):
    """The number of updates made; None for a constant rate."""

    count: jax.Array | None


class scale_by_learning_rate(Leafwise):
    r"""Scale by minus the learning rate: :math:`u_t = -\eta_t\, g_t`.

    It is the one place where the sign of descent enters: put it last in a chain.

    Args:
        learning_rate: :math:`\eta`, a number, an array scalar or a `Schedule`.

    Raises:
        ValueError: If the rate is negative or not finite. To ascend, negate the function.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_learning_rate(0.5)
        >>> tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([-0.5, -0.5], dtype=float32)}
    """

    State = ScaleByLearningRateState
    is_short = True
    reads_step = False

    learning_rate: ScalarOrSchedule = hyper(ge=0, schedule=True)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The factor, with its sign."""
        del t
        return {"step": -h.learning_rate}

    def leaf(self, h: Any, g: Any) -> Any:
        # The operator is a function of `jnp` under `jit`, which is traced again for every leaf.
        return lax.mul(h.step, g) if h.step.dtype == g.dtype else h.step * g
