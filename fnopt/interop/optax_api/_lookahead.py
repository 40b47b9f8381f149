"""Lookahead with optax's `LookaheadParams`, a pair of fast and slow params."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt import transforms
from fnopt.core import Transformation
from fnopt.transforms import states


class LookaheadParams(NamedTuple):
    """Fast params for the training, and slow params for the evaluation.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.interop import optax_api as optax
        >>> params = optax.LookaheadParams.init_synced({"w": jnp.zeros(())})
        >>> tx = optax.lookahead(optax.sgd(1.0), sync_period=1, slow_step_size=0.5)
        >>> updates, state = tx.update({"w": jnp.ones(())}, tx.init(params), params)
        >>> optax.apply_updates(params, updates).slow
        {'w': Array(-0.5, dtype=float32)}
    """

    fast: Any
    slow: Any

    @classmethod
    def init_synced(cls, params: Any) -> LookaheadParams:
        """Make a pair with `params` as fast and as slow params."""
        return cls(params, params)


class LookaheadState(NamedTuple):
    """State of the fast optimizer, and the steps since the last synchronization."""

    fast_state: Any
    steps_since_sync: jax.Array


class _lookahead(Transformation):
    """`fnopt.lookahead` with the slow params as part of the params."""

    needs_params = True
    other_gradients = True  # gradients have the structure of the fast params
    floating_alone = True

    inner: transforms.lookahead

    def init(self, params: Any) -> LookaheadState:
        """Initial state; as in optax, warns if the params aren't `LookaheadParams`."""
        state = self.inner.init(_fast(params))
        return LookaheadState(state.inner_state, state.steps_since_sync)

    def update(
        self, updates: Any, state: LookaheadState, params: Any = None, **extra_args: Any
    ) -> tuple[LookaheadParams, LookaheadState]:
        """Compute the updates of fast and slow params from gradients of the fast params."""
        fast, slow = _check_params(params)
        inner_state = states.LookaheadState(state.steps_since_sync, slow, state.fast_state)
        updates, new = self.inner.update(updates, inner_state, fast, **extra_args)
        slow_updates = jax.tree.map(jnp.subtract, new.slow, slow)
        return LookaheadParams(updates, slow_updates), LookaheadState(
            new.inner_state, new.steps_since_sync
        )


def _fast(params: Any) -> Any:
    if isinstance(params, LookaheadParams):
        return params.fast
    if jax.tree.leaves(params):  # placeholders of params have no leaves
        warnings.warn(
            f"lookahead: params are a {type(params).__name__}, expected LookaheadParams. The "
            "given params are used as the fast params.",
            stacklevel=4,
        )
    return params


def _check_params(params: Any) -> LookaheadParams:
    if not isinstance(params, LookaheadParams):
        raise TypeError(
            f"lookahead: params are a {type(params).__name__}, expected LookaheadParams. Create "
            "them by LookaheadParams.init_synced(params)."
        )
    return params


def lookahead(
    fast_optimizer: Any, sync_period: int, slow_step_size: Any, reset_state: bool = False
) -> Any:
    """Interpolate between fast and slow params every `sync_period` steps."""
    return _lookahead(
        transforms.lookahead(fast_optimizer, sync_period, slow_step_size, reset_state)
    )
