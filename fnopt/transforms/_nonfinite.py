"""Guards against invalid updates: NaN, infinities, and negative parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Leafwise,
    Scalar,
    Transformation,
    cast_like,
    default_float,
    hyper,
    is_inexact,
    safe_increment,
    zero_count,
)
from fnopt.sharding import shard_axes, sharded_full_like, sum_over_shards
from fnopt.transforms._chain import Wrapper


class ApplyIfFiniteState(NamedTuple):
    """Bad steps in a row, whether the last step was good, bad steps in all, the inner state."""

    notfinite_count: jax.Array
    last_finite: jax.Array
    total_notfinite: jax.Array
    inner_state: Any


class apply_if_finite(Wrapper):
    r"""Skip a step that would put infinities or NaN into parameters or state.

    .. math:: (u, s') = \begin{cases} \mathrm{inner}(g, s) & \text{if } g,\ u \text{ are finite and
              } s' \text{ is where } s \text{ is} \\ (0, s) & \text{otherwise} \end{cases}

    A bad step leaves params and inner state as they were, in every bit. The result is checked too,
    not only the gradient. A finite gradient of 1e25 makes a float32 mean square infinite for the
    rest of training. The inner step is computed twice for this, which costs little for methods with
    a few operations per param.

    By default, every bad step is skipped. optax takes the next bad step after some skipped ones in
    a row, which makes every param NaN. Watch `notfinite_count` in the state instead, and stop if it
    grows. `max_consecutive_errors` gives optax's rule.

    Args:
        inner: The transform to guard, fnopt's or any (init, update) pair.
        max_consecutive_errors: Number of bad steps in a row that are skipped before one is taken;
            None skips all.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.apply_if_finite(fnopt.sgd(1.0))
        >>> grads = {"a": jnp.ones(2), "b": jnp.asarray(jnp.nan)}
        >>> updates, state = tx.update(grads, tx.init(grads))
        >>> updates["a"], state.notfinite_count, state.last_finite
        (Array([0., 0.], dtype=float32), Array(1, dtype=int32), Array(False, dtype=bool))
    """

    max_consecutive_errors: Scalar | None = hyper(default=None, ge=0, infinite=True)

    def init(self, params: Any) -> ApplyIfFiniteState:
        """No bad steps so far, and the inner state."""
        return ApplyIfFiniteState(
            zero_count(), jnp.ones((), bool), zero_count(), self.inner.init(params)
        )

    def update(
        self, updates: Any, state: ApplyIfFiniteState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ApplyIfFiniteState]:
        """The inner step if all is finite, else zeros and the state as it was."""
        bad_so_far = safe_increment(state.notfinite_count)
        anyway = self._gives_up(bad_so_far)
        finite = all_finite(updates)
        usable = finite | anyway

        def step() -> tuple[Any, Any]:
            # The inner transform never meets a NaN that is thrown away afterwards: a search inside
            # it might not end, and a derivative would be NaN under vmap.
            safe = or_zeros(usable, updates)
            new, inner_state = self.inner.update(safe, state.inner_state, params, **extra_args)
            return new, cast_like(inner_state, state.inner_state)

        # The step is computed twice, to look at it and to take it. To keep the first result until
        # its last number is known would take a second copy of params and state, and be slower.
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

    def _gives_up(self, bad: jax.Array) -> jax.Array:
        if self.max_consecutive_errors is None:
            return jnp.zeros((), bool)
        most = jnp.asarray(self.max_consecutive_errors, default_float())
        return bad.astype(most.dtype) > most


def or_zeros(condition: jax.Array, updates: Any) -> Any:
    """The updates, or zeros where the condition is False."""

    def zero_leaf(u: Any) -> Any:
        if jnp.result_type(u) == jax.dtypes.float0:  # the gradient of a frozen integer: a zero
            return u
        return jnp.where(condition, u, sharded_full_like(u, 0))

    return jax.tree.map(zero_leaf, updates)


def _everywhere(conditions: Callable[[], list[jax.Array]]) -> jax.Array:
    """Whether conditions hold on all devices, where leaves are sharded."""
    with sum_over_shards() as total:
        failing = [(~holds).astype(jnp.float32) for holds in conditions()]
        failed = functools.reduce(jnp.add, failing, jnp.zeros((), jnp.float32))
        failed = total(failed) if shard_axes() else failed
        # A root is dear enough for XLA to compute it once. A cheap number it would compute anew for
        # every leaf that depends on it: programs whose length grows with the square of the leaves.
        return jnp.sqrt(failed) == 0


def all_finite(tree: Any) -> jax.Array:
    """Whether no float in a tree is infinite or NaN."""
    leaves = filter(is_inexact, jax.tree.leaves(tree))
    return _everywhere(lambda: [jnp.isfinite(x).all() for x in leaves])


def _stays_finite(new: Any, old: Any) -> jax.Array:
    """Whether all finite elements stay finite; intended infinities may stay."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    floats = [(x, y) for x, y in pairs if is_inexact(x)]
    return _everywhere(lambda: [(jnp.isfinite(x) | ~jnp.isfinite(y)).all() for x, y in floats])


class keep_params_nonnegative(Leafwise):
    r"""Shorten updates where they would make a parameter negative: :math:`u = \max(g, -\theta)`.

    It belongs at the end of a chain. Params that are negative at the start go to zero.

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
    r"""Replace NaN by zero; infinities stay.

    A NaN is seldom alone: the other entries of that gradient are doubtful too. To skip the
    whole step and keep the state, use `apply_if_finite`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.zero_nans(), {"w": jnp.asarray([jnp.nan, 2.0])}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> updates, state.found_nan["w"]
        ({'w': Array([0., 2.], dtype=float32)}, Array(True, dtype=bool))
    """

    def init(self, params: Any) -> ZeroNansState:
        """No NaN was found."""
        return ZeroNansState(jax.tree.map(lambda _: jnp.zeros((), bool), params))

    def update(
        self, updates: Any, state: ZeroNansState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ZeroNansState]:
        """The updates without NaN, and where there was one."""
        found = jax.tree.map(
            lambda g: jnp.any(jnp.isnan(g)) if is_inexact(g) else jnp.zeros((), bool), updates
        )
        kept = jax.tree.map(
            lambda g: jnp.where(jnp.isnan(g), jnp.zeros_like(g), g) if is_inexact(g) else g, updates
        )
        return kept, ZeroNansState(found)
