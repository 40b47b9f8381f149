"""Adaptive scales: reduction on a plateau of the loss, and float16 loss scaling."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    EventCount,
    Scalar,
    Transformation,
    hyper,
    map_leaves,
    scalar_loss,
    select_tree,
    static,
)
from fnopt.errors import where
from fnopt.numerics import default_float, is_inexact, safe_increment, zero_count
from fnopt.transforms._chain import Wrapper, find_state
from fnopt.transforms._conditionally import all_finite, mask_updates


class ReduceOnPlateauState(NamedTuple):
    """Scale, best loss, plateau, cooldown and averaging counts, and the average loss."""

    scale: jax.Array
    best_value: jax.Array
    plateau_count: jax.Array
    cooldown_count: jax.Array
    count: EventCount
    avg_value: jax.Array


class reduce_on_plateau(Transformation):
    r"""Reduce the scale of updates when the loss stops improving.

    .. math:: u_t = c_t\, g_t, \qquad c_{t+1} = \begin{cases} \max(f c_t,\, c_{min}) &
              \text{no } \bar v < v_{best} - r\, |v_{best}| - a \text{ in } p \text{ means} \\
              c_t & \text{otherwise} \end{cases}

    `update` needs the loss as the extra argument `value`. Put `reduce_on_plateau` at the end of a
    chain.

    Args:
        factor: :math:`f`, between 0 and 1.
        patience: :math:`p`, the number of means without improvement after which the scale is
            reduced. PyTorch's `ReduceLROnPlateau` reduces the scale one mean later: its `patience`
            is :math:`p - 1`.
        rtol: :math:`r`, the smallest decrease regarded as an improvement, relative to the modulus
            of the best loss.
        atol: :math:`a`, the smallest absolute decrease regarded as an improvement.
        cooldown: The number of means that are ignored after a reduction.
        accumulation_size: The number of losses in a mean.
        min_scale: :math:`c_{min}`.

    Raises:
        ValueError: If a number is out of range, or `rtol` and `atol` are both zero.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.reduce_on_plateau(factor=0.5, patience=2), {"w": jnp.ones(1)}
        >>> state = tx.init(g)
        >>> for loss in (3.0, 2.0, 2.0, 2.0):
        ...     updates, state = tx.update(g, state, value=loss)
        >>> updates
        {'w': Array([0.5], dtype=float32)}
    """

    # The defaults of PyTorch's ReduceLROnPlateau.
    factor: Scalar = hyper(default=0.1, gt=0, lt=1)
    patience: Scalar = hyper(default=10, ge=1, infinite=True)
    rtol: Scalar = hyper(default=1e-4, ge=0, le=1)
    atol: Scalar = hyper(default=0.0, ge=0)
    cooldown: Scalar = hyper(default=0, ge=0, infinite=True)
    accumulation_size: int = static(default=1, least=1)
    min_scale: Scalar = hyper(default=0.0, ge=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        are_numbers = isinstance(self.rtol, float) and isinstance(self.atol, float)
        if are_numbers and self.rtol == self.atol == 0:
            raise ValueError(
                f"{where()}reduce_on_plateau: rtol and atol are both 0, expected a positive rtol "
                "or atol."
            )

    def init(self, params: Any) -> ReduceOnPlateauState:
        """Return a scale of one, and an infinite best loss."""
        dtype = default_float()
        one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)
        return ReduceOnPlateauState(
            one, jnp.full_like(one, jnp.inf), zero_count(), zero_count(), zero_count(), zero
        )

    def update(
        self,
        updates: Any,
        state: ReduceOnPlateauState,
        params: Any = None,
        *,
        value: Any,
        **extra_args: Any,
    ) -> tuple[Any, ReduceOnPlateauState]:
        """Update the scale for this loss, and multiply the updates by the scale."""
        dtype = state.avg_value.dtype
        count = safe_increment(state.count)
        value = scalar_loss(value, dtype)
        # A running mean, because a sum of losses may overflow.
        mean = state.avg_value + (value - state.avg_value) * (1 / count.astype(dtype))
        state = state._replace(count=count, avg_value=mean)
        is_complete = count >= self.accumulation_size
        new_state = select_tree(is_complete, self._compare_mean(state), state)
        return map_leaves(lambda c, g: c * g, updates, hyper=new_state.scale), new_state

    def _compare_mean(self, state: ReduceOnPlateauState) -> ReduceOnPlateauState:
        """Update the scale and the counts after a completed mean of losses."""
        dtype = state.avg_value.dtype
        h = jax.tree.map(lambda x: jnp.asarray(x, dtype), self)
        # The threshold uses the modulus, because (1 - r) times a negative loss is above the loss.
        is_first = jnp.isinf(state.best_value)
        size = jnp.where(is_first, jnp.zeros_like(state.best_value), jnp.abs(state.best_value))
        improves = state.avg_value < state.best_value - h.rtol * size - h.atol
        plateau_count = jnp.where(improves, zero_count(), safe_increment(state.plateau_count))
        cools_down = state.cooldown_count > 0
        # Hyper-parameters are floats, also those that are numbers of steps.
        patience = jnp.round(h.patience).astype(plateau_count.dtype)
        reduces = ~cools_down & (plateau_count >= patience)
        reduced_scale = jnp.maximum(state.scale * h.factor, h.min_scale)
        cooldown_count = jnp.where(cools_down, state.cooldown_count - 1, zero_count())
        cooldown = jnp.round(h.cooldown).astype(cooldown_count.dtype)
        return ReduceOnPlateauState(
            jnp.where(reduces, reduced_scale, state.scale),
            jnp.where(improves, state.avg_value, state.best_value),
            jnp.where(cools_down | reduces, zero_count(), plateau_count),
            jnp.where(reduces, cooldown, cooldown_count),
            zero_count(),
            jnp.zeros_like(state.avg_value),
        )


class DynamicLossScaleState(NamedTuple):
    """Scale, finite steps since the last change of the scale, skipped steps, and inner state."""

    scale: jax.Array
    good_steps: jax.Array
    total_skipped: jax.Array
    inner_state: Any


class dynamic_loss_scale(Wrapper):
    r"""Divide gradients by the scale of the loss, and adapt the scale to the range of float16.

    .. math:: (u, s') = \begin{cases} \mathrm{inner}(g / \sigma, s) & g \text{ is finite} \\
              (0, s) & \text{otherwise} \end{cases} \qquad
              \sigma' = \begin{cases} \sigma \gamma & \text{after } n \text{ good steps} \\
              \sigma \beta & g \text{ is not finite} \end{cases}

    Gradients below 6e-8 are zero in float16. Therefore multiply the loss by `loss_scale(state)`
    before differentiation; this transform divides the gradient by the scale in float32. If a
    gradient overflows, the step is skipped: parameters and inner state are bitwise unchanged, and
    the scale is halved. After `growth_interval` finite steps the scale is doubled. bfloat16 has the
    range of float32 and needs no loss scaling.

    Put `dynamic_loss_scale` around the whole optimizer, including `accumulate`:
    `dynamic_loss_scale(accumulate(tx, k))` skips a gradient that overflows, and the next gradient
    completes the sum. Inside `accumulate`, `dynamic_loss_scale` sees only the sum. One overflow
    then discards all `k` gradients, which must have the same scale. Only gradients are checked;
    `apply_if_finite` also checks the step.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
        init_scale: The initial scale.
        growth_interval: :math:`n`, the number of consecutive finite steps after which the scale
            increases.
        growth_factor: :math:`\gamma`, the factor by which the scale increases; scaling by a power
            of two is exact.
        backoff_factor: :math:`\beta`, the factor of the scale after an overflow.
        min_scale: The lower bound of the scale.
        max_scale: The upper bound of the scale.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> tx, w = fnopt.dynamic_loss_scale(fnopt.sgd(1.0), 2.0**10), jnp.ones(())
        >>> state = tx.init(w)
        >>> loss = lambda w: 1e-9 * w.astype(jnp.float32)  # its gradient is zero in float16
        >>> scaled = lambda w: loss(w) * fnopt.loss_scale(state)
        >>> updates, state = tx.update(jax.grad(scaled)(w.astype(jnp.float16)), state, w)
        >>> print(f"{updates:.1e}", state.scale)
        -9.9e-10 1024.0

    Reference:
        Micikevicius et al., 2017, arXiv:1710.03740.
    """

    # Factors and interval of Micikevicius et al. (2018), as in jmp and PyTorch's GradScaler.
    init_scale: Scalar = hyper(default=2.0**15, gt=0)
    growth_interval: Scalar = hyper(default=2000, ge=1, infinite=True)
    growth_factor: Scalar = hyper(default=2.0, ge=1)
    backoff_factor: Scalar = hyper(default=0.5, gt=0, le=1)
    min_scale: Scalar = hyper(default=1.0, gt=0)
    max_scale: Scalar = hyper(default=2.0**24, gt=0, infinite=True)

    def init(self, params: Any) -> DynamicLossScaleState:
        """Return the initial scale, and the inner state."""
        # A sum is a copy, because donating the state would delete the buffer of `self.init_scale`.
        scale = jnp.asarray(self.init_scale, jnp.float32) + jnp.zeros((), jnp.float32)
        return DynamicLossScaleState(scale, zero_count(), zero_count(), self.inner.init(params))

    def update(
        self, updates: Any, state: DynamicLossScaleState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, DynamicLossScaleState]:
        """Take a step for the unscaled gradient if it is finite, otherwise return zeros."""
        finite = all_finite(updates)

        def unscale(updates: Any) -> Any:
            # Non-finite updates are replaced by zeros, because `vmap` turns the conditional into a
            # select, which computes the inner step even if the step is skipped.
            leaves, treedef = jax.tree.flatten(mask_updates(finite, updates))
            # Frozen params may be integers, whose updates are unchanged.
            return treedef.unflatten(
                map_leaves(lambda s, g: g / s, g, hyper=state.scale) if is_inexact(g) else g
                for g in leaves
            )

        new_updates, inner_state = self._step_if(
            finite, updates, state.inner_state, params, extra_args, prepare=unscale
        )
        scale, good_steps = self._next_scale(state, finite)
        total_skipped = jnp.where(finite, state.total_skipped, safe_increment(state.total_skipped))
        return new_updates, DynamicLossScaleState(scale, good_steps, total_skipped, inner_state)

    def _next_scale(self, state: DynamicLossScaleState, finite: jax.Array) -> tuple[Any, Any]:
        """Return the scale after a step, and the number of finite steps since its last change."""
        h = {name: jnp.asarray(getattr(self, name), jnp.float32) for name in self._leaf_names[1:]}
        good_steps = jnp.where(finite, safe_increment(state.good_steps), zero_count())
        grows = good_steps.astype(jnp.float32) >= h["growth_interval"]
        larger_scale = jnp.minimum(state.scale * h["growth_factor"], h["max_scale"])
        smaller_scale = jnp.maximum(state.scale * h["backoff_factor"], h["min_scale"])
        scale = jnp.where(finite, jnp.where(grows, larger_scale, state.scale), smaller_scale)
        return scale, jnp.where(grows, zero_count(), good_steps)


def loss_scale(state: Any) -> jax.Array:
    """Return the current factor of the loss under `dynamic_loss_scale`.

    Args:
        state: The state of `dynamic_loss_scale`, or of an optimizer that contains it.

    Returns:
        A float32 scalar.

    Raises:
        ValueError: If `state` contains no state of `dynamic_loss_scale`, or more than one.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.dynamic_loss_scale(fnopt.adam(1e-3))
        >>> fnopt.loss_scale(tx.init(jnp.ones(2)))
        Array(32768., dtype=float32)
    """
    return find_state(state, DynamicLossScaleState, "loss_scale", "dynamic_loss_scale").scale
