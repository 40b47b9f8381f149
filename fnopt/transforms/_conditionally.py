"""Transforms applied under a condition on the step or the gradient, and guards against NaN."""

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
    """The number of updates made, and the inner state."""

    step: jax.Array
    inner_state: Any


class _Conditional(Wrapper):
    """Base class of wrappers that apply their inner transform in selected steps."""

    others_pass: ClassVar[bool] = False  # whether updates of the other steps pass unchanged

    should_transform_fn: Callable[..., Any] = static()
    forward_extra_args: bool = static(default=False)

    def reads(self) -> Mapping[str, bool]:
        """The extra arguments in the function's signature, if it accepts extra arguments."""
        names = parameter_names(self.should_transform_fn) if self.forward_extra_args else ()
        return {**super().reads(), **dict.fromkeys(names, False)}

    def init(self, params: Any) -> ConditionallyState:
        """A zero count, and the inner state."""
        return ConditionallyState(zero_count(), self.inner.init(params))

    def update(
        self, updates: Any, state: ConditionallyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ConditionallyState]:
        """Return the inner updates in selected steps, otherwise unchanged updates or zeros."""
        known = extra_args if self.forward_extra_args else {}
        now = jnp.asarray(self.should_transform_fn(state.step, **known)).astype(bool)
        other = updates if self.others_pass else None  # None stands for zeros
        new_updates, inner_state = self._step_if(
            now, updates, state.inner_state, params, extra_args, other
        )
        return new_updates, ConditionallyState(safe_increment(state.step), inner_state)


class conditionally_transform(_Conditional):
    r"""Apply a transform in some steps; in all other steps, updates pass unchanged.

    .. math:: (u_t, s') = \begin{cases} \mathrm{inner}(g_t, s) & c(t) \\
              (g_t, s) & \text{otherwise} \end{cases}

    In the other steps, the outputs are *gradients*. Use this transform for a part of a chain, and
    `conditionally_mask` around an optimizer.

    Args:
        inner: The transform, of fnopt or any (init, update) pair.
        should_transform_fn: `fn(step)` maps the number of updates made so far to a boolean.
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
    r"""Apply a transform in some steps; in all other steps, updates are zero.

    .. math:: (u_t, s') = \begin{cases} \mathrm{inner}(g_t, s) & c(t) \\
              (0, s) & \text{otherwise} \end{cases}

    Args:
        inner: The transform, of fnopt or any (init, update) pair.
        should_transform_fn: `fn(step)` maps the number of updates made so far to a boolean.
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
    """The number of skipped updates, and the inner state."""

    skipped: jax.Array
    inner_state: Any


class skip_large_updates(Wrapper):
    r"""Skip a step whose gradient norm is too large or not finite.

    .. math:: (u, s') = \begin{cases} \mathrm{inner}(g, s) & \lVert g \rVert^2 < c \\
              (0, s) & \text{otherwise} \end{cases}

    Around `accumulate`, `skip_large_updates` excludes a bad batch from the mean.

    Args:
        inner: The transform to guard, of fnopt or any (init, update) pair.
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
        # Roots are compared, because the square of a norm may overflow where the norm doesn't.
        norm = global_norm(updates)
        most = jnp.sqrt(jnp.asarray(self.max_squared_norm, default_float())).astype(norm.dtype)
        # The comparison is False for NaN.
        good = norm < most
        new_updates, inner_state = self._step_if(
            good, updates, state.inner_state, params, extra_args
        )
        skipped = jnp.where(good, state.skipped, safe_increment(state.skipped))
        return new_updates, SkipLargeUpdatesState(skipped, inner_state)


class ApplyIfFiniteState(NamedTuple):
    """Counts of nonfinite steps (consecutive, total), a flag for the last step, the inner state."""

    notfinite_count: jax.Array
    last_finite: jax.Array
    total_notfinite: jax.Array
    inner_state: Any


class apply_if_finite(Wrapper):
    r"""Skip a step that would make parameters or state infinite or NaN.

    .. math:: (u, s') = \begin{cases} \mathrm{inner}(g, s) & \text{if } g,\ u \text{ are finite and
              } s' \text{ is where } s \text{ is} \\ (0, s) & \text{otherwise} \end{cases}

    A nonfinite step leaves parameters and inner state bitwise unchanged. The result is checked as
    well as the gradient, because a finite gradient of 1e25 makes a float32 mean square infinite for
    the rest of training. This check computes the inner step twice, which is cheap for methods with
    a few operations per parameter.

    By default, every nonfinite step is skipped. optax takes a nonfinite step after some consecutive
    skips, which makes every parameter NaN; `max_consecutive_errors` selects this rule. Watch
    `notfinite_count` in the state instead, and stop training if the count grows.

    Args:
        inner: The transform to guard, of fnopt or any (init, update) pair.
        max_consecutive_errors: The number of consecutive nonfinite steps that are skipped before a
            nonfinite step is taken; None skips all.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.apply_if_finite(fnopt.sgd(1.0))
        >>> grads = {"a": jnp.ones(2), "b": jnp.asarray(jnp.nan)}
        >>> updates, state = tx.update(grads, tx.init(grads))
        >>> updates["a"], state.notfinite_count, state.last_finite
        (Array([0., 0.], dtype=float32), Array(1, dtype=int32), Array(False, dtype=bool))
    """

    # Without a bound, training with bad params stops, but the params get no worse.
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
        bad_so_far = safe_increment(state.notfinite_count)
        anyway = jnp.zeros((), bool)
        if self.max_consecutive_errors is not None:
            most = jnp.asarray(self.max_consecutive_errors, default_float())
            anyway = bad_so_far.astype(most.dtype) > most
        finite = all_finite(updates)
        usable = finite | anyway

        def step() -> tuple[Any, Any]:
            # The inner transform never meets a NaN that is thrown away afterwards, because a search
            # inside it might not end, and a derivative would be NaN under vmap.
            safe = mask_updates(usable, updates)
            new, inner_state = self.inner.update(safe, state.inner_state, params, **extra_args)
            return new, cast_like(inner_state, state.inner_state)

        # The step is computed twice, first for the check and then for the result. Storing the first
        # result until the check ends would take a second copy of params and state, and would be
        # slower.
        seen_updates, seen_state = step()
        finite &= all_finite(seen_updates) & _stays_finite(seen_state, state.inner_state)
        skipped = jax.tree.map(jnp.zeros_like, seen_updates), state.inner_state
        new_updates, inner_state = jax.lax.cond(finite | anyway, step, lambda: skipped)
        return new_updates, ApplyIfFiniteState(
            jnp.where(finite, zero_count(), bad_so_far),
            finite,
            jnp.where(finite, state.total_notfinite, safe_increment(state.total_notfinite)),
            inner_state,
        )


def mask_updates(condition: jax.Array, updates: Any) -> Any:
    """Return the updates, or zeros where the condition is False."""

    def zero_leaf(u: Any) -> Any:
        if jnp.result_type(u) == jax.dtypes.float0:  # the gradient of a frozen integer: a zero
            return u
        return jnp.where(condition, u, sharded_full_like(u, 0))

    return jax.tree.map(zero_leaf, updates)


def _hold_on_all_shards(conditions: Callable[[], list[jax.Array]]) -> jax.Array:
    """Whether conditions hold on all shards."""
    with sum_over_shards() as total:
        # Bools become numbers, because a sum over shards can't add bools.
        failing = [(~holds).astype(jnp.float32) for holds in conditions()]
        failed = functools.reduce(jnp.add, failing, jnp.zeros((), jnp.float32))
        failed = total(failed) if shard_axes() else failed
        # A root is expensive enough for XLA to compute it once. XLA would recompute a cheap number
        # for every leaf that depends on it, and the program's length would grow with the square of
        # the number of leaves.
        return jnp.sqrt(failed) == 0


def all_finite(tree: Any) -> jax.Array:
    """Whether no float in a tree is infinite or NaN."""
    leaves = filter(is_inexact, jax.tree.leaves(tree))
    return _hold_on_all_shards(lambda: [jnp.isfinite(x).all() for x in leaves])


def _stays_finite(new: Any, old: Any) -> jax.Array:
    """Whether all finite elements stay finite; existing infinities are allowed."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    floats = [(x, y) for x, y in pairs if is_inexact(x)]
    return _hold_on_all_shards(
        lambda: [(jnp.isfinite(x) | ~jnp.isfinite(y)).all() for x, y in floats]
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
            raise TypeError("keep_params_nonnegative: complex params have no sign; mask them out.")
        return jnp.maximum(g, -p)


class ZeroNansState(NamedTuple):
    """For every leaf, whether the last gradient had a NaN."""

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
        found = jax.tree.map(
            lambda g: jnp.any(jnp.isnan(g)) if is_inexact(g) else jnp.zeros((), bool), updates
        )
        kept = jax.tree.map(
            lambda g: jnp.where(jnp.isnan(g), jnp.zeros_like(g), g) if is_inexact(g) else g, updates
        )
        return kept, ZeroNansState(found)
