"""Transforms that are applied in some steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    default_float,
    global_norm,
    hyper,
    parameter_names,
    safe_increment,
    static,
    zero_count,
)
from fnopt.transforms._chain import Wrapper


class ConditionallyState(NamedTuple):
    """The number of updates made, and the inner state."""

    step: jax.Array
    inner_state: Any


class _Conditional(Wrapper):
    """Base class of wrappers that apply their inner transform in selected steps."""

    should_transform_fn: Callable[..., Any] = static()
    forward_extra_args: bool = static(default=False)

    def reads(self) -> Mapping[str, bool]:
        """The extra arguments that the function names, if it gets any."""
        names = parameter_names(self.should_transform_fn) if self.forward_extra_args else ()
        return {**super().reads(), **dict.fromkeys(names, False)}

    def _otherwise(self, updates: Any) -> Any:
        """The updates of the other steps; None for zeros."""
        raise NotImplementedError

    def init(self, params: Any) -> ConditionallyState:
        """A zero count, and the inner state."""
        return ConditionallyState(zero_count(), self.inner.init(params))

    def update(
        self, updates: Any, state: ConditionallyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ConditionallyState]:
        """The inner updates, or the replacement in the other steps."""
        known = extra_args if self.forward_extra_args else {}
        now = jnp.asarray(self.should_transform_fn(state.step, **known)).astype(bool)
        new_updates, inner_state = self._step_if(
            now, updates, state.inner_state, params, extra_args, self._otherwise(updates)
        )
        return new_updates, ConditionallyState(safe_increment(state.step), inner_state)


class conditionally_transform(_Conditional):
    r"""Apply a transform in some steps; in the others, updates pass unchanged.

    .. math:: (u_t, s') = \begin{cases} \mathrm{inner}(g_t, s) & c(t) \\
              (g_t, s) & \text{otherwise} \end{cases}

    What passes are *gradients*: use it for a part of a chain, and `conditionally_mask` around an
    optimizer.

    Args:
        inner: The transform, fnopt's or any (init, update) pair.
        should_transform_fn: `fn(step)`, from the number of updates made so far to a boolean.
        forward_extra_args: Whether the function gets the extra arguments of `update` too.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.conditionally_transform(fnopt.clip(1.0), lambda step: step < 1)
        >>> first, state = tx.update({"w": jnp.full(2, 3.0)}, tx.init({"w": jnp.ones(2)}))
        >>> second, state = tx.update({"w": jnp.full(2, 3.0)}, state)
        >>> print(first["w"], second["w"])
        [1. 1.] [3. 3.]
    """

    def _otherwise(self, updates: Any) -> Any:
        return updates


class conditionally_mask(_Conditional):
    r"""Apply a transform in some steps; in the others, updates are zero.

    .. math:: (u_t, s') = \begin{cases} \mathrm{inner}(g_t, s) & c(t) \\
              (0, s) & \text{otherwise} \end{cases}

    Args:
        inner: The transform, fnopt's or any (init, update) pair.
        should_transform_fn: `fn(step)`, from the number of updates made so far to a boolean.
        forward_extra_args: Whether the function gets the extra arguments of `update` too.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.conditionally_mask(fnopt.sgd(1.0), lambda step: step % 2 == 0)
        >>> first, state = tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))
        >>> second, state = tx.update({"w": jnp.ones(2)}, state)
        >>> print(first["w"], second["w"])
        [-1. -1.] [0. 0.]
    """

    def _otherwise(self, updates: Any) -> Any:
        del updates


class SkipLargeUpdatesState(NamedTuple):
    """The number of skipped updates, and the inner state."""

    skipped: jax.Array
    inner_state: Any


class skip_large_updates(Wrapper):
    r"""Skip a step whose gradient norm is too large or not finite.

    .. math:: (u, s') = \begin{cases} \mathrm{inner}(g, s) & \lVert g \rVert^2 < c \\
              (0, s) & \text{otherwise} \end{cases}

    Around `accumulate` it leaves a bad batch out of the mean.

    Args:
        inner: The transform to guard, fnopt's or any (init, update) pair.
        max_squared_norm: :math:`c`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.skip_large_updates(fnopt.sgd(1.0), 100.0)
        >>> g = {"w": jnp.asarray([1e6, 1.0])}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> print(updates["w"], state.skipped)
        [0. 0.] 1
    """

    max_squared_norm: Scalar = hyper(gt=0, infinite=True)

    def init(self, params: Any) -> SkipLargeUpdatesState:
        """A zero count of skipped updates, and the inner state."""
        return SkipLargeUpdatesState(zero_count(), self.inner.init(params))

    def update(
        self, updates: Any, state: SkipLargeUpdatesState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, SkipLargeUpdatesState]:
        """The inner step, or zeros and the state as it was."""
        # Roots are compared: the square of a norm may overflow where the norm doesn't.
        norm = global_norm(updates)
        most = jnp.sqrt(jnp.asarray(self.max_squared_norm, default_float())).astype(norm.dtype)
        good = norm < most
        new_updates, inner_state = self._step_if(
            good, updates, state.inner_state, params, extra_args
        )
        skipped = jnp.where(good, state.skipped, safe_increment(state.skipped))
        return new_updates, SkipLargeUpdatesState(skipped, inner_state)
