"""Accumulation of gradients and of updates over several calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Leafwise,
    ScalarOrSchedule,
    Slot,
    hyper,
    is_none,
    map_leaves,
    slot_zeros,
    static,
)
from fnopt.errors import type_text, unboxed, where
from fnopt.numerics import (
    default_float,
    is_array_like,
    is_inexact,
    nonzero,
    safe_increment,
    zero_count,
)
from fnopt.transforms._chain import Wrapper


class AccumulateState(NamedTuple):
    """Calls since the last step, number of steps, sum of weights, and weighted sum of gradients."""

    mini_step: jax.Array
    gradient_step: jax.Array
    weight: jax.Array
    acc: Slot
    inner_state: Any

    @property
    def count(self) -> jax.Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Number of emitted steps, which is the count for schedules."""
        return self.gradient_step


class accumulate(Wrapper):
    r"""Accumulate gradients over `k` calls, then take one step of the inner transform.

    .. math:: u_t = \begin{cases} \mathrm{inner}\left(\sum_i w_i\, g_i \,/\, \sum_i w_i\right),
              \quad i = t-k+1, \dots, t & k \text{ divides } t \\ 0 & \text{otherwise} \end{cases}

    The step is equivalent to a step for a batch `k` times as large, with the memory for a small
    batch. The inner transform runs on the emitting calls only, so its schedules count emitted
    steps. The sum is stored in at least float32; the inner transform receives the mean in the
    gradients' dtype. With `k=1`, the updates are bitwise equal to the updates of the inner
    transform.

    The weights are 1 by default. Batches of different sizes need weights. Let each loss be a mean
    over the tokens of its batch. Then `update(..., weight=tokens)` takes the same step as for a
    single batch with all tokens.

    Put `dynamic_loss_scale` and `apply_if_finite` around `accumulate`, as in
    `dynamic_loss_scale(accumulate(tx, k))`. The outer transform then skips a gradient that
    overflows, and the next gradient completes the sum. Inside `accumulate`, a transform sees only
    the sum, and one overflow discards all `k` gradients.

    Args:
        inner: The transform that takes the steps, a `Transformation` or any (init, update) pair.
        k: Number of gradients per step, an integer, or a `Schedule` over emitted steps.
        use_grad_mean: Whether the inner transform receives the weighted mean of the gradients; if
            False, their weighted sum.

    Raises:
        ValueError: If `k` is less than 1 or not an integer.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.accumulate(fnopt.sgd(1.0), k=2)
        >>> state = tx.init({"w": jnp.ones(())})
        >>> updates, state = tx.update({"w": jnp.asarray(1.0)}, state)
        >>> updates, fnopt.has_updated(state)
        ({'w': Array(0., dtype=float32)}, Array(False, dtype=bool))
        >>> updates, state = tx.update({"w": jnp.asarray(3.0)}, state)
        >>> updates, fnopt.has_updated(state)
        ({'w': Array(-2., dtype=float32)}, Array(True, dtype=bool))
    """

    k: ScalarOrSchedule = hyper(ge=1, schedule=True)
    use_grad_mean: bool = static(default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.k, float) and not self.k.is_integer():
            raise ValueError(f"{where()}accumulate: k = {self.k}, expected an integer.")

    def init(self, params: Any) -> AccumulateState:
        """Return an empty sum, and the inner state."""
        # The leaves of an inner `freeze` (counters, keys) have no gradient to accumulate.
        acc = slot_zeros(jax.tree.map(lambda p: p if is_inexact(p) else None, params))
        weight = jnp.zeros((), default_float())
        return AccumulateState(zero_count(), zero_count(), weight, acc, self.inner.init(params))

    def update(
        self,
        updates: Any,
        state: AccumulateState,
        params: Any = None,
        *,
        weight: Any = None,
        **extra_args: Any,
    ) -> tuple[Any, AccumulateState]:
        """Return zeros until the sum has `k` gradients; then return the inner updates for the sum.

        Args:
            updates: The gradients.
            state: The state.
            params: The params.
            weight: The weight of the gradients, a nonnegative number such as the number of tokens
                in the batch; None means 1. A gradient of weight 0 may be NaN. If all weights are 0,
                the mean is 0.
            **extra_args: The extra arguments of the inner transform.

        Returns:
            The updates and the state.

        Raises:
            ValueError: If `weight` isn't one real number.
        """
        count = safe_increment(state.mini_step)
        k = self.at(state.gradient_step).k
        # `k` may be a schedule, whose values are floats.
        emits = count.astype(default_float()) >= jnp.asarray(k, default_float())
        one = jnp.ones_like(state.weight)
        new_weight = one if weight is None else _as_weight(weight, one.dtype)
        acc = self._add(updates, state, None if weight is None else new_weight)
        total = jnp.where(state.mini_step == 0, new_weight, state.weight + new_weight)
        if weight is not None:
            extra_args["weight"] = total  # weight of the mean, for a nested accumulation

        new_updates, inner_state = self._step_if(
            emits,
            updates,
            state.inner_state,
            params,
            extra_args,
            prepare=lambda updates: self._finish(updates, acc, total),
        )
        mini_step = jnp.where(emits, zero_count(), count)
        gradient_step = jnp.where(emits, safe_increment(state.gradient_step), state.gradient_step)
        return new_updates, AccumulateState(mini_step, gradient_step, total, acc, inner_state)

    def _add(self, updates: Any, state: AccumulateState, weight: Any) -> Any:
        # The first gradient replaces the old sum, so no step resets the sum. Therefore the sum of a
        # single gradient equals this gradient bitwise.
        is_first = state.mini_step == 0

        def add_leaf(*row: Any) -> Any:
            *weight, g, acc = row
            # The gradient of a mean over 0 tokens may be NaN, and zero times NaN is NaN.
            for w in weight:
                g = jnp.where(w == 0, jnp.zeros_like(g), w * g)
            return g, jnp.where(is_first, g, acc + g)

        gradients = _none_where_none(updates, state.acc)
        sums = _none_where_none(state.acc, gradients)
        acc = map_leaves(add_leaf, gradients, hyper=weight, outputs=2, acc=sums)[1]
        return _fill(acc, state.acc)

    def _finish(self, updates: Any, acc: Any, total: jax.Array) -> Any:
        total = nonzero(total)

        def finish_leaf(g: Any, acc: Any) -> Any:
            del g  # used only for its dtype
            # `finfo(complex64).dtype` is float32, which avoids a complex division.
            return acc / total.astype(jnp.finfo(acc.dtype).dtype) if self.use_grad_mean else acc

        gradients = _none_where_none(updates, acc)
        sums = _none_where_none(acc, gradients)
        return _fill(map_leaves(finish_leaf, gradients, acc=sums), updates)


def _as_weight(weight: Any, dtype: Any) -> jax.Array:
    """Check that a weight is one real number, and convert it to a scalar array."""
    if not is_array_like(weight) or jnp.shape(weight) != () or jnp.iscomplexobj(weight):
        raise ValueError(
            f"{where()}accumulate: weight is {type_text(weight)}, expected one real number, such "
            "as the number of tokens in the batch."
        )
    return jnp.asarray(weight).astype(dtype)


def _none_where_none(tree: Any, other: Any) -> Any:
    """Replace the leaves of `tree` by None where `other` has the leaf None.

    Inside `freeze`, leaves may have no sum (counters) or no gradient (None). If the structures
    differ, `tree` is returned unchanged, so that a later check reports the mismatch.
    """
    if len({jax.tree.structure(x, is_leaf=is_none) for x in (tree, other)}) > 1:
        return tree
    return jax.tree.map(lambda x, y: None if y is None else x, tree, other, is_leaf=is_none)


def _fill(tree: Any, other: Any) -> Any:
    """Replace the None leaves of a tree by the leaves of another tree."""
    return jax.tree.map(lambda x, y: y if x is None else x, tree, other, is_leaf=is_none)


def has_updated(state: AccumulateState) -> jax.Array:
    """Whether the last call of `accumulate` took a step of the inner transform.

    Args:
        state: The state that the call returned; inside a chain, `named(tx, state)["accumulate"]`.

    Returns:
        A boolean scalar; False before the first step.

    Raises:
        TypeError: If `state` isn't the state of `accumulate`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.accumulate(fnopt.sgd(1.0), k=1)
        >>> fnopt.has_updated(tx.update(jnp.ones(2), tx.init(jnp.ones(2)))[1])
        Array(True, dtype=bool)
    """
    state = unboxed(state)
    if not isinstance(state, AccumulateState):
        raise TypeError(
            f"has_updated: the state is a {type(state).__name__}, expected "
            "AccumulateState. For a chain, pass "
            'fnopt.named(tx, state)["accumulate"].'
        )
    return (state.mini_step == 0) & (state.gradient_step > 0)


class ApplyEveryState(NamedTuple):
    """Step count, and sum of the updates since the last emitted update."""

    count: jax.Array
    grad_acc: Slot


class apply_every(Leafwise):
    r"""Accumulate updates; return the sum every `k` steps, and zeros in between.

    .. math:: u_t = \begin{cases} \sum_{i=t-k+1}^{t} g_i & k \text{ divides } t \\
              0 & \text{otherwise} \end{cases}

    In a chain, transforms before `apply_every` take `k` steps at the same parameters, and
    transforms after `apply_every` receive zeros in between. To accumulate a large batch, with one
    step of the whole optimizer for the mean gradient, use `accumulate`.

    Args:
        k: The number of steps between emitted sums, an integer.

    Raises:
        ValueError: If `k` isn't an integer of at least 1.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.apply_every(2), {"w": jnp.ones(2)}
        >>> first, state = tx.update(g, tx.init(g))
        >>> second, state = tx.update(g, state)
        >>> print(first["w"], second["w"])
        [0. 0.] [2. 2.]
    """

    State = ApplyEveryState

    k: int = static(default=1, least=1)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Compute whether a new sum begins in this step, and whether the step returns the sum."""
        return {"begins": (t - 1) % self.k == 0, "emits": t % self.k == 0}

    def leaf(self, h: Any, g: Any, acc: Any) -> Any:
        acc = jnp.where(h.begins > 0, g, acc + g)
        return jnp.where(h.emits > 0, acc, jnp.zeros_like(acc)), acc
