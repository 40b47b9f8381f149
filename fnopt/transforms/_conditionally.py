"""Transforms with a condition on the step or the gradient, and guards against NaN."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Leafwise,
    Scalar,
    Transformation,
    cast_like,
    global_norm,
    hyper,
    parameter_names,
    static,
)
from fnopt.numerics import default_float, is_inexact, safe_increment, zero_count
from fnopt.sharding import shard_axes, sharded_full_like, sum_over_shards
from fnopt.transforms._chain import Wrapper


class ConditionallyState(NamedTuple):
    """Number of previous updates, and the inner state."""

    step: jax.Array
    inner_state: Any


class _Conditional(Wrapper):
    """Base class of wrappers that apply their inner transform in selected steps."""

    others_pass: ClassVar[bool] = False  # whether updates in other steps pass unchanged

    should_transform_fn: Callable[..., Any] = static()
    forward_extra_args: bool = static(default=False)

    def reads(self) -> Mapping[str, bool]:
        """Include the parameters of the function, if `forward_extra_args` is True."""
        names = parameter_names(self.should_transform_fn) if self.forward_extra_args else ()
        return {**super().reads(), **dict.fromkeys(names, False)}

    def init(self, params: Any) -> ConditionallyState:
        """Return a zero count, and the inner state."""
        return ConditionallyState(zero_count(), self.inner.init(params))

    def update(
        self, updates: Any, state: ConditionallyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ConditionallyState]:
        """Return the inner updates in selected steps, otherwise unchanged updates or zeros."""
        fn_args = extra_args if self.forward_extra_args else {}
        condition = jnp.asarray(self.should_transform_fn(state.step, **fn_args)).astype(bool)
        other = updates if self.others_pass else None  # None means zeros
        new_updates, inner_state = self._step_if(
            condition, updates, state.inner_state, params, extra_args, other
        )
        return new_updates, ConditionallyState(safe_increment(state.step), inner_state)


class conditionally_transform(_Conditional):
    r"""Apply a transform in selected steps; in all other steps, updates pass unchanged.

    .. math:: (u_t, s') = \begin{cases} \mathrm{inner}(g_t, s) & c(t) \\
              (g_t, s) & \text{otherwise} \end{cases}

    In the other steps, the outputs are *gradients*. Use this transform for a part of a chain, and
    `conditionally_mask` around an optimizer.

    Args:
        inner: The transform, a `Transformation` or any (init, update) pair.
        should_transform_fn: `fn(step)` maps the number of previous updates to a boolean.
        forward_extra_args: Whether to pass the extra arguments of `update` to the function.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.conditionally_transform(fnopt.clip(1.0), lambda step: step < 1)
        >>> first, state = tx.update({"w": jnp.full(2, 3.0)}, tx.init({"w": jnp.ones(2)}))
        >>> second, state = tx.update({"w": jnp.full(2, 3.0)}, state)
        >>> print(first["w"], second["w"])
        [1. 1.] [3. 3.]
    """

    others_pass = True


class conditionally_mask(_Conditional):
    r"""Apply a transform in selected steps; in all other steps, updates are zero.

    .. math:: (u_t, s') = \begin{cases} \mathrm{inner}(g_t, s) & c(t) \\
              (0, s) & \text{otherwise} \end{cases}

    Args:
        inner: The transform, a `Transformation` or any (init, update) pair.
        should_transform_fn: `fn(step)` maps the number of previous updates to a boolean.
        forward_extra_args: Whether to pass the extra arguments of `update` to the function.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.conditionally_mask(fnopt.sgd(1.0), lambda step: step % 2 == 0)
        >>> first, state = tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))
        >>> second, state = tx.update({"w": jnp.ones(2)}, state)
        >>> print(first["w"], second["w"])
        [-1. -1.] [0. 0.]
    """


class SkipLargeUpdatesState(NamedTuple):
    """Number of skipped updates, and the inner state."""

    skipped: jax.Array
    inner_state: Any


class skip_large_updates(Wrapper):
    r"""Skip a step whose gradient norm is too large or not finite.

    .. math:: (u, s') = \begin{cases} \mathrm{inner}(g, s) & \lVert g \rVert^2 < c \\
              (0, s) & \text{otherwise} \end{cases}

    `skip_large_updates(accumulate(tx, k))` excludes a bad batch from the mean of `accumulate`.

    Args:
        inner: The transform whose steps are checked, a `Transformation` or any (init, update) pair.
        max_squared_norm: :math:`c`, the bound on the squared gradient norm.

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
        """Return a zero count of skipped updates, and the inner state."""
        return SkipLargeUpdatesState(zero_count(), self.inner.init(params))

    def update(
        self, updates: Any, state: SkipLargeUpdatesState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, SkipLargeUpdatesState]:
        """Take the inner step, or return zeros and the old state."""
        # Norms instead of squared norms are compared, because a square may overflow although the
        # norm is finite.
        norm = global_norm(updates)
        max_norm = jnp.sqrt(jnp.asarray(self.max_squared_norm, default_float())).astype(norm.dtype)
        is_small = norm < max_norm  # False for NaN
        new_updates, inner_state = self._step_if(
            is_small, updates, state.inner_state, params, extra_args
        )
        count = jnp.where(is_small, state.skipped, safe_increment(state.skipped))
        return new_updates, SkipLargeUpdatesState(count, inner_state)


class ApplyIfFiniteState(NamedTuple):
    """Consecutive and total non-finite steps, a flag for the last step, and the inner state."""

    notfinite_count: jax.Array
    last_finite: jax.Array
    total_notfinite: jax.Array
    inner_state: Any


class apply_if_finite(Wrapper):
    r"""Skip a step if the gradient, the update or the new state is infinite or NaN.

    .. math:: (u, s') = \begin{cases} \mathrm{inner}(g, s) & \text{if } g,\ u \text{ are finite and
              } s' \text{ is where } s \text{ is} \\ (0, s) & \text{otherwise} \end{cases}

    Such a step leaves parameters and inner state bitwise unchanged. The new state is checked
    because a finite gradient of 1e25 makes a float32 mean square infinite for the rest of training.
    For this check the inner step is computed twice, which is cheap for methods with a few
    operations per parameter.

    By default, every non-finite step is skipped. With `max_consecutive_errors`, as in optax, a
    non-finite step is taken after some consecutive skips, which makes every parameter NaN. Monitor
    `notfinite_count` in the state instead, and stop training if the count grows.

    Args:
        inner: The transform whose steps are checked, a `Transformation` or any (init, update) pair.
        max_consecutive_errors: The number of consecutive non-finite steps that are skipped before a
            non-finite step is taken; with None, all non-finite steps are skipped.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.apply_if_finite(fnopt.sgd(1.0))
        >>> grads = {"a": jnp.ones(2), "b": jnp.asarray(jnp.nan)}
        >>> updates, state = tx.update(grads, tx.init(grads))
        >>> updates["a"], state.notfinite_count, state.last_finite
        (Array([0., 0.], dtype=float32), Array(1, dtype=int32), Array(False, dtype=bool))
    """

    # With None, training makes no progress after non-finite gradients, but the params stay finite.
    max_consecutive_errors: Scalar | None = hyper(default=None, ge=0, infinite=True)

    def init(self, params: Any) -> ApplyIfFiniteState:
        """Return zero counts, and the inner state."""
        return ApplyIfFiniteState(
            zero_count(), jnp.ones((), bool), zero_count(), self.inner.init(params)
        )

    def update(
        self, updates: Any, state: ApplyIfFiniteState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ApplyIfFiniteState]:
        """Take the inner step if everything is finite, otherwise return zeros and the old state."""
        notfinite_count = safe_increment(state.notfinite_count)
        ignores_check = jnp.zeros((), bool)
        if self.max_consecutive_errors is not None:
            max_errors = jnp.asarray(self.max_consecutive_errors, default_float())
            ignores_check = notfinite_count.astype(max_errors.dtype) > max_errors
        finite = all_finite(updates)
        passes_updates = finite | ignores_check

        def step() -> tuple[Any, Any]:
            # Non-finite gradients whose step is skipped are replaced by zeros. For NaN, a line
            # search might not terminate, and derivatives would be NaN under vmap.
            gradients = mask_updates(passes_updates, updates)
            new_updates, inner_state = self.inner.update(
                gradients, state.inner_state, params, **extra_args
            )
            return new_updates, cast_like(inner_state, state.inner_state)

        # The step is computed twice, first for the check and then for the result. Storing the first
        # result during the check would need a second copy of params and state, and would be slower.
        trial_updates, trial_state = step()
        finite &= all_finite(trial_updates) & _stays_finite(trial_state, state.inner_state)
        no_step = jax.tree.map(jnp.zeros_like, trial_updates), state.inner_state
        new_updates, inner_state = jax.lax.cond(finite | ignores_check, step, lambda: no_step)
        return new_updates, ApplyIfFiniteState(
            jnp.where(finite, zero_count(), notfinite_count),
            finite,
            jnp.where(finite, state.total_notfinite, safe_increment(state.total_notfinite)),
            inner_state,
        )


def mask_updates(condition: jax.Array, updates: Any) -> Any:
    """Return the updates, or zeros where the condition is False."""

    def zero_leaf(u: Any) -> Any:
        if jnp.result_type(u) == jax.dtypes.float0:  # a zero gradient of a frozen integer
            return u
        return jnp.where(condition, u, sharded_full_like(u, 0))

    return jax.tree.map(zero_leaf, updates)


def _hold_on_all_shards(conditions: Callable[[], list[jax.Array]]) -> jax.Array:
    """Whether all conditions are True on all shards."""
    with sum_over_shards() as total:
        # Violations are counted as floats, because a sum over shards can't add bools.
        violations = [(~condition).astype(jnp.float32) for condition in conditions()]
        count = functools.reduce(jnp.add, violations, jnp.zeros((), jnp.float32))
        count = total(count) if shard_axes() else count
        # The square root makes the number too expensive for XLA to recompute. XLA would recompute a
        # cheap number for every leaf, and the size of the program would be quadratic in the number
        # of leaves.
        return jnp.sqrt(count) == 0


def all_finite(tree: Any) -> jax.Array:
    """Whether all floating numbers in a tree are finite."""
    leaves = filter(is_inexact, jax.tree.leaves(tree))
    return _hold_on_all_shards(lambda: [jnp.isfinite(x).all() for x in leaves])


def _stays_finite(new: Any, old: Any) -> jax.Array:
    """Whether elements of `new` are finite wherever `old` is finite."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    floating_pairs = [(x, y) for x, y in pairs if is_inexact(x)]
    return _hold_on_all_shards(
        lambda: [(jnp.isfinite(x) | ~jnp.isfinite(y)).all() for x, y in floating_pairs]
    )


class keep_params_nonnegative(Leafwise):
    r"""Keep parameters nonnegative: :math:`u = \max(g, -\theta)`.

    Put `keep_params_nonnegative` at the end of a chain. Initially negative parameters become zero.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.chain(fnopt.sgd(1.0), fnopt.keep_params_nonnegative())
        >>> params = {"w": jnp.asarray([0.5, 3.0])}
        >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0., 2.], dtype=float32)}
    """

    needs_params = True

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        if jnp.iscomplexobj(p):
            raise TypeError(
                "keep_params_nonnegative: a param is complex, expected real params, because "
                "complex numbers have no sign. Exclude complex params with fnopt.masked."
            )
        return jnp.maximum(g, -p)


class ZeroNansState(NamedTuple):
    """Flags of the leaves whose last gradient had a NaN."""

    found_nan: Any


class zero_nans(Transformation):
    r"""Replace NaN by zero; infinities don't change.

    If one entry of a gradient is NaN, the other entries are often wrong, too. To skip the whole
    step and keep the state, use `apply_if_finite`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.zero_nans(), {"w": jnp.asarray([jnp.nan, 2.0])}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> updates, state.found_nan["w"]
        ({'w': Array([0., 2.], dtype=float32)}, Array(True, dtype=bool))
    """

    def init(self, params: Any) -> ZeroNansState:
        """Return flags that are all False."""
        return ZeroNansState(jax.tree.map(lambda _: jnp.zeros((), bool), params))

    def update(
        self, updates: Any, state: ZeroNansState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ZeroNansState]:
        """Return updates without NaN, and flags of the leaves that had a NaN."""
        found_nan = jax.tree.map(
            lambda g: jnp.any(jnp.isnan(g)) if is_inexact(g) else jnp.zeros((), bool), updates
        )
        new_updates = jax.tree.map(
            lambda g: jnp.where(jnp.isnan(g), jnp.zeros_like(g), g) if is_inexact(g) else g, updates
        )
        return new_updates, ZeroNansState(found_nan)
