"""Gradient accumulation as optax's class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Transformation, global_norm, static
from fnopt.interop.optax_api._bridge import as_schedule
from fnopt.transforms import accumulate, has_updated


class SkippingState(NamedTuple):
    """The state of the accumulation, and what the rule said of the last gradients."""

    inner_state: Any
    skip_state: Any


class _skipping(Transformation):
    """Accumulation that leaves out the gradients that a rule refuses."""

    inner: Any
    skips: Callable[..., Any] = static()

    def init(self, params: Any) -> SkippingState:
        """The state of the accumulation, and the rule's about gradients of zero."""
        state = self.inner.init(params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SkippingState(state, self.skips(zeros, state.gradient_step, params)[1])

    def update(
        self, updates: Any, state: SkippingState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, SkippingState]:
        """As if the call had not been made, where the rule says so."""
        inner = state.inner_state
        skip, skip_state = self.skips(updates, inner.gradient_step, params)
        updates, new = self.inner.update(updates, inner, params, **extra_args)
        updates = jax.tree.map(lambda u: jnp.where(skip, jnp.zeros_like(u), u), updates)
        kept = jax.tree.map(lambda old, new: jnp.where(skip, old, new), inner, new)
        return updates, SkippingState(kept, skip_state)


def skip_not_finite(updates: Any, gradient_step: Any, params: Any) -> tuple[Any, dict[str, Any]]:
    """A rule for `MultiSteps`: gradients with a NaN or an infinity in them are left out."""
    del gradient_step, params
    bad = [jnp.sum(~jnp.isfinite(x)) for x in jax.tree.leaves(updates)]
    count = jnp.asarray(sum(bad), jnp.int32)
    return count > 0, {"should_skip": count > 0, "num_not_finite": count}


def skip_large_updates(
    updates: Any, gradient_step: Any, params: Any, max_squared_norm: Any
) -> tuple[Any, dict[str, Any]]:
    """A rule for `MultiSteps`: gradients that are too long are left out."""
    del gradient_step, params
    squared = jnp.square(global_norm(updates))
    skip = ~(squared < max_squared_norm)
    return skip, {"should_skip": skip, "norm_squared": squared}


class MultiSteps:
    """Adds up gradients over several calls, then makes one step of `opt`.

    Args:
        opt: The optimizer that makes the steps.
        every_k_schedule: How many gradients make a step, a number or a function of the steps made.
        use_grad_mean: Whether `opt` gets the mean of the gradients, or their sum.
        should_skip_update_fn: `f(updates, gradient_step, params)` returns whether to leave these
            gradients out, and a tree that is kept as `skip_state`; such as `skip_not_finite`.
        accumulator_dtype: Not read: sums are float32 at least.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.interop import optax_api as optax
        >>> tx = optax.MultiSteps(optax.sgd(1.0), every_k_schedule=2)
        >>> state = tx.init(jnp.ones(2))
        >>> updates, state = tx.update(jnp.ones(2), state)
        >>> bool(tx.has_updated(state))
        False
    """

    def __init__(
        self,
        opt: Any,
        every_k_schedule: Any,
        use_grad_mean: bool = True,
        should_skip_update_fn: Callable[..., Any] | None = None,
        accumulator_dtype: Any = None,
    ) -> None:
        del accumulator_dtype
        k = as_schedule(every_k_schedule)
        self._tx: Any = accumulate(opt, k=k, use_grad_mean=use_grad_mean)
        if should_skip_update_fn is not None:
            self._tx = _skipping(self._tx, should_skip_update_fn)

    @property
    def inner_opt(self) -> Any:
        """The optimizer that makes the steps."""
        tx = self._tx.inner if isinstance(self._tx, _skipping) else self._tx
        return tx.inner

    def init(self, params: Any) -> Any:
        """The state before the first call."""
        return self._tx.init(params)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Zero updates, and those of `opt` at every k-th call."""
        return self._tx.update(updates, state, params, **extra_args)

    def has_updated(self, state: Any) -> Any:
        """Whether the last call made a step."""
        return has_updated(state.inner_state if isinstance(state, SkippingState) else state)

    def gradient_transformation(self) -> Transformation:
        """This wrapper as a transformation."""
        return self._tx
