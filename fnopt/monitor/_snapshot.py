"""A measurement of the updates, kept in the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    Transformation,
    bias_correction,
    compute_dtype,
    ema,
    hyper,
    safe_increment,
    static,
    zero_count,
)


class SnapshotState(NamedTuple):
    """Step count, the measurement by its name, and its average before the bias correction."""

    count: jax.Array
    measured: dict[str, Any]
    average: Any


class snapshot(Transformation):
    r"""Pass updates through unchanged, and keep a measurement of them in the state.

    .. math:: u = g, \qquad s = m(g) \quad\text{or}\quad
              s_t = \frac{1 - \beta}{1 - \beta^t} \sum_{i \le t} \beta^{t-i}\, m(g_i)

    First in a chain it sees the gradients, last the updates. `fnopt.tree.get(state, measure_name)`
    reads the measurement; before the first step it is zero.

    Args:
        measure_name: The name to find it by.
        measure: `measure(updates)` returns an array or a tree of arrays; it is traced.
        decay: :math:`\beta` of an average over the steps, corrected for its start at zero, in at
            least float32; by default the last measurement alone.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> from fnopt.monitor import snapshot
        >>> tx = fnopt.chain(snapshot("norm", fnopt.global_norm), fnopt.clip_by_global_norm(1.0))
        >>> grads = {"w": jnp.asarray([3.0, 4.0])}
        >>> _, state = tx.update(grads, tx.init(grads))
        >>> fnopt.tree.get(state, "norm")
        Array(5., dtype=float32)
    """

    State = SnapshotState

    measure_name: str = static()
    measure: Callable[[Any], Any] = static()
    decay: Scalar | None = hyper(default=None, ge=0, lt=1)

    def init(self, params: Any) -> SnapshotState:
        """Zeros of the measurement's shapes."""
        shapes = jax.eval_shape(self.measure, params)

        def zeros() -> Any:
            return jax.tree.map(lambda s: jnp.zeros(s.shape, self._dtype(s.dtype)), shapes)

        average = () if self.decay is None else zeros()
        return SnapshotState(zero_count(), {self.measure_name: zeros()}, average)

    def update(
        self, updates: Any, state: SnapshotState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, SnapshotState]:
        """The updates as they came."""
        del params, extra_args
        now, count = self.measure(updates), safe_increment(state.count)
        now = jax.tree.map(
            lambda x, old: jnp.asarray(x).astype(old.dtype), now, state.measured[self.measure_name]
        )
        if self.decay is None:
            return updates, SnapshotState(count, {self.measure_name: now}, ())

        def average_leaf(old: jax.Array, new: jax.Array) -> jax.Array:
            return ema(old, new, jnp.asarray(self.decay, old.real.dtype).astype(old.dtype))

        def correct_leaf(x: jax.Array) -> jax.Array:
            decay = jnp.asarray(self.decay, x.real.dtype)
            return x / bias_correction(decay, count).astype(x.dtype)

        average = jax.tree.map(average_leaf, state.average, now)
        measured = {self.measure_name: jax.tree.map(correct_leaf, average)}
        return updates, SnapshotState(count, measured, average)

    def _dtype(self, dtype: Any) -> Any:
        return dtype if self.decay is None else compute_dtype(dtype)
