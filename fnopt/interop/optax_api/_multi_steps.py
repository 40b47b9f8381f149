"""`MultiSteps`: gradient accumulation with optax's class and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Member, Transformation, global_norm, select_tree, static
from fnopt.interop.optax_api._bridge import as_schedule
from fnopt.interop.optax_api._restated import MultiStepsState
from fnopt.numerics import default_float
from fnopt.transforms import accumulate, states


class _multi_steps(Transformation):
    """Gradient accumulation that skips gradients by a rule, with optax's state."""

    floating_alone = True

    inner: accumulate
    skips: Callable[..., Any] | None = static(default=None)

    def init(self, params: Any) -> MultiStepsState:
        """Initial state, with the rule's result for zero gradients."""
        state = self.inner.init(params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return self._as_optax(state, self._apply_rule(zeros, state.gradient_step, params)[1])

    def update(
        self, updates: Any, state: MultiStepsState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, MultiStepsState]:
        """Accumulate gradients; for skipped gradients, return zeros and the old state."""
        skip, skip_state = self._apply_rule(updates, state.gradient_step, params)
        updates, inner = self.inner.update(updates, self._as_fnopt(state), params, **extra_args)
        new = self._as_optax(inner, skip_state)
        if skip is None:
            return updates, new
        updates = jax.tree.map(lambda u: jnp.where(skip, jnp.zeros_like(u), u), updates)
        old = state._replace(skip_state=skip_state)
        return updates, select_tree(skip, old, new)

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """Accumulation transform and its state."""
        return (Member("accumulate", self.inner, None if state is None else self._as_fnopt(state)),)

    def _apply_rule(self, updates: Any, step: Any, params: Any) -> tuple[Any, Any]:
        return (None, ()) if self.skips is None else self.skips(updates, step, params)

    # optax's state contains the mean (or sum) of the gradients, which is zero after a step.
    def _as_optax(self, state: states.AccumulateState, skip_state: Any) -> MultiStepsState:
        def mean_of_leaf(acc: Any) -> Any:
            mean = acc / jnp.maximum(state.mini_step, 1).astype(acc.dtype) if self._mean else acc
            return jnp.where(state.mini_step == 0, jnp.zeros_like(acc), mean)

        acc = jax.tree.map(mean_of_leaf, state.acc)
        return MultiStepsState(
            state.mini_step, state.gradient_step, state.inner_state, acc, skip_state
        )

    def _as_fnopt(self, state: MultiStepsState) -> states.AccumulateState:
        def sum_of_leaf(acc: Any) -> Any:
            return acc * state.mini_step.astype(acc.dtype) if self._mean else acc

        acc = jax.tree.map(sum_of_leaf, state.acc_grads)
        weight = state.mini_step.astype(default_float())  # in optax all weights are 1
        return states.AccumulateState(
            state.mini_step, state.gradient_step, weight, acc, state.inner_opt_state
        )

    @property
    def _mean(self) -> bool:
        return self.inner.use_grad_mean


def skip_not_finite(updates: Any, gradient_step: Any, params: Any) -> tuple[Any, dict[str, Any]]:
    """Rule for `MultiSteps` that skips gradients with NaN or infinities."""
    del gradient_step, params
    bad = [jnp.sum(~jnp.isfinite(x)) for x in jax.tree.leaves(updates)]
    count = jnp.asarray(sum(bad), jnp.int32)
    return count > 0, {"should_skip": count > 0, "num_not_finite": count}


def skip_large_updates(
    updates: Any, gradient_step: Any, params: Any, max_squared_norm: Any
) -> tuple[Any, dict[str, Any]]:
    """Rule for `MultiSteps` that skips gradients with a large or NaN norm."""
    del gradient_step, params
    squared = jnp.square(global_norm(updates))
    skip = ~(squared < max_squared_norm)
    return skip, {"should_skip": skip, "norm_squared": squared}


class MultiSteps:
    """Accumulate gradients over several calls, then take one step of `opt`.

    Args:
        opt: The optimizer that takes the steps.
        every_k_schedule: Number of gradients per step: an integer, or a function of the number of
            steps.
        use_grad_mean: Whether `opt` receives the mean of the gradients; if False, the sum.
        should_skip_update_fn: A function such as `skip_not_finite`. `f(updates, gradient_step,
            params)` returns whether to skip these gradients, and a tree to store as `skip_state`.
        accumulator_dtype: Ignored, because sums are at least float32.

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
        inner = accumulate(opt, k=k, use_grad_mean=use_grad_mean)
        self._tx = _multi_steps(inner, should_skip_update_fn)

    @property
    def inner_opt(self) -> Any:
        """Optimizer that takes the steps."""
        return self._tx.inner.inner

    def init(self, params: Any) -> Any:
        """Initial state."""
        return self._tx.init(params)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Return the updates of `opt` at every k-th call, else zeros."""
        return self._tx.update(updates, state, params, **extra_args)

    def has_updated(self, state: Any) -> Any:
        """Whether the last call took a step."""
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def gradient_transformation(self) -> Transformation:
        """Transformation with the same `init` and `update`."""
        return self._tx
