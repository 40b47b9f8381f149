"""Scaling of updates: by a number, a schedule, the learning rate, to signs; plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import EmptyState, Leafwise, Scalar, ScalarOrSchedule, Transformation, hyper, static


class identity(Transformation):
    r"""Return updates unchanged: :math:`u = g`.

    Example:
        >>> import fnopt
        >>> tx = fnopt.identity()
        >>> tx.update({"w": 2.0}, tx.init({"w": 1.0}))[0]
        {'w': 2.0}
    """

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """Return the updates unchanged."""
        return updates, state


class set_to_zero(Transformation):
    r"""Replace updates by zeros: :math:`u = 0`; the parameters stay.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.set_to_zero()
        >>> tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([0., 0.], dtype=float32)}
    """

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """Zeros of the updates' shapes and dtypes."""
        return jax.tree.map(jnp.zeros_like, updates), state

    def left_out(self, params: Any) -> Any:
        """All leaves."""
        return jax.tree.map(lambda _: True, params)


class scale(Leafwise):
    r"""Scale by a constant: :math:`u = c\, g`. It adds no minus sign.

    Args:
        step_size: :math:`c`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale(2.0)
        >>> tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([2., 2.], dtype=float32)}
    """

    is_short = True

    step_size: Scalar = hyper()

    def leaf(self, h: Any, g: Any) -> Any:
        return h.step_size * g


class stateless(Transformation):
    r"""A transform from a plain function: :math:`u = f(g, \theta)`.

    Args:
        fn: `fn(updates, params) -> updates` on whole trees; `params` is None if the caller gave
            none. A function defined at the top of a module can be pickled and put in a config.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> tx = fnopt.stateless(lambda updates, params: jax.tree.map(jnp.sign, updates))
        >>> tx.update({"w": jnp.asarray([3.0, -2.0])}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([ 1., -1.], dtype=float32)}
    """

    fn: Callable[[Any, Any], Any] = static()

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """The function's result for the updates."""
        return self.fn(updates, params), state


class scale_by_sign(Leafwise):
    r"""Keep the sign only: :math:`u = \operatorname{sign} g` (:math:`g / |g|` if complex).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_sign()
        >>> tx.update({"w": jnp.asarray([3.0, -2.0])}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([ 1., -1.], dtype=float32)}
    """

    def leaf(self, h: Any, g: Any) -> Any:
        return jnp.sign(g)


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
