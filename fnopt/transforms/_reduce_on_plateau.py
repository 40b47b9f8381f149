"""Reduction of the step size on a plateau of the loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    EventCount,
    Scalar,
    Transformation,
    default_float,
    hyper,
    map_leaves,
    safe_increment,
    scalar_loss,
    static,
    where,
    zero_count,
)


class ReduceOnPlateauState(NamedTuple):
    """The factor, the best loss, steps without a better one, of rest, in the mean; the mean."""

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

    `update` needs the loss as the extra argument `value`. It belongs at the end of a chain.

    Args:
        factor: :math:`f`, between 0 and 1.
        patience: :math:`p`, after how many means without a better one the factor shrinks. In
            PyTorch's `ReduceLROnPlateau` it shrinks one later: its `patience` is :math:`p - 1`.
        rtol: :math:`r`, the relative decrease that counts, of the modulus of the best loss.
        atol: :math:`a`, the absolute decrease that counts.
        cooldown: Number of means that are not counted after the factor has shrunk.
        accumulation_size: Over how many losses a mean is taken.
        min_scale: :math:`c_{min}`.

    Raises:
        ValueError: If a number is out of its range, or `rtol` and `atol` are both zero.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.reduce_on_plateau(factor=0.5, patience=2), {"w": jnp.ones(1)}
        >>> state = tx.init(g)
        >>> for loss in (3.0, 2.0, 2.0, 2.0):
        ...     updates, state = tx.update(g, state, value=loss)
        >>> updates
        {'w': Array([0.5], dtype=float32)}
    """

    factor: Scalar = hyper(default=0.1, gt=0, lt=1)
    patience: Scalar = hyper(default=10, ge=1, infinite=True)
    rtol: Scalar = hyper(default=1e-4, ge=0, le=1)
    atol: Scalar = hyper(default=0.0, ge=0)
    cooldown: Scalar = hyper(default=0, ge=0, infinite=True)
    accumulation_size: int = static(default=1, least=1)
    min_scale: Scalar = hyper(default=0.0, ge=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = isinstance(self.rtol, float) and isinstance(self.atol, float)
        if numbers and self.rtol == self.atol == 0:
            raise ValueError(
                f"{where()}reduce_on_plateau: rtol and atol are both 0, expected one above it."
            )

    def init(self, params: Any) -> ReduceOnPlateauState:
        """A factor of one, and an infinite loss."""
        del params
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
        """The scaled updates; the factor is that after this loss."""
        dtype = state.avg_value.dtype
        seen = safe_increment(state.count)
        value = scalar_loss(value, dtype)
        share = 1 / seen.astype(dtype)
        mean = state.avg_value + (value - state.avg_value) * share
        added = state._replace(count=seen, avg_value=mean)
        full = seen >= self.accumulation_size
        judged = self._compare_mean(added)
        new = jax.tree.map(lambda a, b: jnp.where(full, a, b), judged, added)
        return map_leaves(lambda c, g: c * g, updates, hyper=new.scale), new

    def _compare_mean(self, state: ReduceOnPlateauState) -> ReduceOnPlateauState:
        """The state after a whole mean."""
        dtype = state.avg_value.dtype
        now = jax.tree.map(lambda x: jnp.asarray(x, dtype), self)
        # Of the modulus: (1 - r) times a negative best loss is a threshold above it.
        first = jnp.isinf(state.best_value)
        size = jnp.where(first, jnp.zeros_like(state.best_value), jnp.abs(state.best_value))
        better = state.avg_value < state.best_value - now.rtol * size - now.atol
        waited = jnp.where(better, zero_count(), safe_increment(state.plateau_count))
        resting = state.cooldown_count > 0
        shrinks = ~resting & (waited >= jnp.round(now.patience).astype(waited.dtype))
        smaller = jnp.maximum(state.scale * now.factor, now.min_scale)
        rest = jnp.where(resting, state.cooldown_count - 1, zero_count())
        return ReduceOnPlateauState(
            jnp.where(shrinks, smaller, state.scale),
            jnp.where(better, state.avg_value, state.best_value),
            jnp.where(resting | shrinks, zero_count(), waited),
            jnp.where(shrinks, jnp.round(now.cooldown).astype(rest.dtype), rest),
            zero_count(),
            jnp.zeros_like(state.avg_value),
        )
