"""Lookahead: interpolation between slow and fast parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    Slot,
    cast_like,
    hyper,
    map_leaves,
    safe_increment,
    slot_copy,
    static,
    zero_count,
)
from fnopt.transforms._wrapper import Wrapper


class LookaheadState(NamedTuple):
    """Steps since the params met, the slow params, and the state of the fast optimizer."""

    steps_since_sync: jax.Array
    slow: Slot
    inner_state: Any


class lookahead(Wrapper):
    r"""Interpolate every few steps between slow weights and the optimizer's fast weights.

    .. math:: \theta_{t+1} = \theta_t + \mathrm{inner}(g_t), \quad \text{and if } k \text{ divides }
              t: \quad \phi \leftarrow \phi + \alpha\, (\theta_{t+1} - \phi), \quad
              \theta_{t+1} \leftarrow \phi

    The slow params :math:`\phi` are a slot of the state. They are what to evaluate:
    `fnopt.slots(state)["slow"]`.

    Args:
        inner: The fast optimizer, fnopt's or any (init, update) pair.
        sync_period: :math:`k`, after how many steps the params meet.
        slow_step_size: :math:`\alpha`.
        reset_state: Whether the fast optimizer forgets its state then.

    Raises:
        ValueError: If `sync_period` isn't a whole number, at least 1.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.lookahead(fnopt.sgd(1.0), 2, 0.5), {"w": jnp.zeros(())}
        >>> state = tx.init(params)
        >>> for _ in range(2):
        ...     updates, state = tx.update({"w": jnp.ones(())}, state, params)
        ...     params = fnopt.apply_updates(params, updates)
        >>> params
        {'w': Array(-1., dtype=float32)}

    Reference:
        Zhang, Lucas, Hinton and Ba, 2019, arXiv:1907.08610.
    """

    needs_params = True

    sync_period: int = static(least=1)
    slow_step_size: Scalar = hyper(ge=0, le=1)
    reset_state: bool = static(default=False)

    def init(self, params: Any) -> LookaheadState:
        """Slow params where the fast ones are."""
        return LookaheadState(zero_count(), slot_copy(params), self.inner.init(params))

    def update(
        self, updates: Any, state: LookaheadState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, LookaheadState]:
        """The fast updates, or the way to where the params meet."""
        fast, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)
        steps = safe_increment(state.steps_since_sync)
        meets = steps >= self.sync_period

        def step_leaf(h: Any, u: Any, p: Any, slow: Any) -> Any:
            ahead = slow + h * (p + u - slow)
            return jnp.where(meets, ahead - p, u), p, jnp.where(meets, ahead, slow)

        new, _, slow = map_leaves(
            step_leaf, fast, hyper=self.slow_step_size, outputs=3, params=params, slow=state.slow
        )
        inner_state = cast_like(inner_state, state.inner_state)
        if self.reset_state:
            fresh = self.inner.init(params)
            inner_state = jax.tree.map(lambda a, b: jnp.where(meets, a, b), fresh, inner_state)
        return new, LookaheadState(jnp.where(meets, zero_count(), steps), slow, inner_state)
