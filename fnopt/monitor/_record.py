"""Transforms that store measurements of the updates in their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Transformation, check_same_tree, hyper, static
from fnopt.errors import count_text, where
from fnopt.monitor._flags import FlagState, health_flags
from fnopt.monitor._groups import Grouping, as_groups, group
from fnopt.monitor._health import Health
from fnopt.monitor._measure import CHEAP, as_stats, common_dtype, measure, zero_statistics
from fnopt.numerics import bias_correction, compute_dtype, ema, safe_increment, zero_count


class RecordHealthState(NamedTuple):
    """State of `record_health`.

    Attributes:
        count: Number of updates, int32.
        flags: The state of the flags.
        ring: Ring buffers of the statistics, `[size, groups, ...]`, keyed by name. Recording `i` is
            entry `i % size`. `'flag'` contains `Flag` codes.
    """

    count: jax.Array
    flags: FlagState
    ring: dict[str, jax.Array]


class record_health(Transformation):
    r"""Return updates unchanged, and store the health of the last steps in the state.

    .. math:: u = g, \qquad s_{t+1} = s_t \cup \mathrm{health}(g_t)

    At the start of a chain, `record_health` records the gradients. At the end of a chain,
    `record_health` records the updates, and the ratio is the relative step length. The state is a
    ring buffer of fixed size, which works in `jax.lax.scan`, `jax.jit` and `jax.vmap`, and in
    checkpoints. `health_history` reads the state.

    Args:
        size: Number of recordings in the ring buffer.
        every: The interval: the updates 0, `every`, 2 `every`, ... are recorded. In other updates
            nothing is computed.
        stats: The statistics, as in `health`; the norm is always included.
        groups: The groups of leaves, as in `health`.
        flags: The thresholds of the flags.

    Raises:
        ValueError: In `update`, if `stats` contains the ratio and no params are passed.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> from fnopt.monitor import health_history, record_health
        >>> tx = fnopt.chain(record_health(size=2), fnopt.sgd(0.1))
        >>> params = {"w": jnp.asarray([3.0, 4.0])}
        >>> state = tx.init(params)
        >>> for i in range(3):
        ...     updates, state = tx.update(params, state, params)
        ...     params = fnopt.apply_updates(params, updates)
        >>> history = health_history(tx, state, params)
        >>> history.steps, history.values["norm"].round(3)
        (array([1, 2]), array([[4.5 ],
           [4.05]], dtype=float32))
    """

    size: int = static(default=128, least=1)
    every: int = static(default=1, least=1)
    stats: tuple[str, ...] = static(default=CHEAP, convert=as_stats)
    groups: Any = static(default=None, convert=as_groups)
    flags: health_flags = health_flags()

    @property
    def recorded(self) -> tuple[str, ...]:
        """Names of the recorded statistics, including the norm, which the flags need."""
        return as_stats(("norm", *self.stats))

    def init(self, params: Any) -> RecordHealthState:
        """Initial state with an empty ring buffer, whose shape depends on the groups."""
        grouping, dtype = group(params, self.groups), _dtype(params)
        n = len(grouping.names)
        ring = zero_statistics(self.recorded, dtype, n) | {"flag": jnp.zeros(n, jnp.int32)}
        ring = {k: jnp.zeros((self.size, *v.shape), v.dtype) for k, v in ring.items()}
        return RecordHealthState(zero_count(), self.flags.init(n, dtype), ring)

    def update(
        self, updates: Any, state: RecordHealthState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, RecordHealthState]:
        """Return the updates unchanged; record their health every `every` steps."""
        if params is None and "ratio" in self.stats:
            raise ValueError(
                f"{where()}params is None, expected a tree like the updates, because the statistic "
                "'ratio' needs the params. Call update(updates, state, params), or omit 'ratio' "
                "from stats."
            )
        grouping = group(updates, self.groups)
        _check_groups(grouping, state)
        if self.every == 1:
            new = self._record(updates, params, grouping, state)
        else:
            # `cond`, so that other steps don't compute the statistics.
            new = jax.lax.cond(
                state.count % self.every == 0,
                lambda: self._record(updates, params, grouping, state),
                lambda: state,
            )
        return updates, new._replace(count=safe_increment(state.count))

    def _record(
        self, updates: Any, params: Any, grouping: Grouping, state: RecordHealthState
    ) -> RecordHealthState:
        if "ratio" in self.stats:
            check_same_tree(updates, params, "gradients", "params")
        leaves, weights = jax.tree.leaves(updates), jax.tree.leaves(params)
        rows = measure(leaves, weights, grouping, self.recorded)
        # The dtypes of a state must not change in a scan, even if updates and params differ.
        rows = {k: v.astype(state.ring[k].dtype) for k, v in rows.items()}
        health = Health(grouping.names, grouping.sizes, grouping.skipped, grouping.shapes, **rows)
        flags = self.flags.update(health, state.flags)
        rows["flag"] = flags.code
        index = (state.count // self.every) % self.size
        ring = {k: state.ring[k].at[index].set(row) for k, row in rows.items()}
        return RecordHealthState(state.count, flags, ring)


def _dtype(params: Any) -> Any:
    return common_dtype(
        [x for x in jax.tree.leaves(params) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    )


def _check_groups(grouping: Grouping, state: RecordHealthState) -> None:
    expected = state.flags.dead.shape[-1]
    if len(grouping.names) != expected:
        raise ValueError(
            f"{where()}the updates have {count_text(len(grouping.names), 'group')}, expected "
            f"{expected} as in the state. Use the state that init(params) returned for these "
            "params."
        )


class SnapshotState(NamedTuple):
    """State of `snapshot`.

    Attributes:
        count: Number of updates, int32.
        measured: A dict with one entry, from the name to the (bias-corrected) measurement.
        average: The average before the bias correction; `()` without `decay`.
    """

    count: jax.Array
    measured: dict[str, Any]
    average: Any


class snapshot(Transformation):
    r"""Return updates unchanged, and store a measurement of the updates in the state.

    .. math:: u = g, \qquad s = m(g) \quad\text{or}\quad
              s_t = \frac{1 - \beta}{1 - \beta^t} \sum_{i \le t} \beta^{t-i}\, m(g_i)

    At the start of a chain, `snapshot` measures the gradients; at the end, the final updates.
    `fnopt.tree.get(state, measure_name)` returns the measurement, which is zero before the first
    step.

    Args:
        measure_name: The name of the measurement in the state.
        measure: Function of the updates that returns a tree of arrays, for example
            `fnopt.global_norm`.
        decay: :math:`\beta` of a bias-corrected moving average in at least float32. With `None`,
            the last measurement is stored.

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
        """Initial state: zeros with the shapes of the measurement."""
        shapes = jax.eval_shape(self.measure, params)
        # Two different arrays, because a donated state must not contain an array twice.
        zeros, average = (
            jax.tree.map(lambda s: jnp.zeros(s.shape, self._dtype(s.dtype)), shapes)
            for _ in range(2)
        )
        average = () if self.decay is None else average
        return SnapshotState(zero_count(), {self.measure_name: zeros}, average)

    def update(
        self, updates: Any, state: SnapshotState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, SnapshotState]:
        """Return the updates unchanged; store their measurement in the state."""
        value, count = self.measure(updates), safe_increment(state.count)
        value = jax.tree.map(
            lambda x, old: jnp.asarray(x).astype(old.dtype),
            value,
            state.measured[self.measure_name],
        )
        if self.decay is None:
            return updates, SnapshotState(count, {self.measure_name: value}, ())

        def average_leaf(old: jax.Array, new: jax.Array) -> jax.Array:
            return ema(old, new, jnp.asarray(self.decay, old.real.dtype).astype(old.dtype))

        def correct_leaf(x: jax.Array) -> jax.Array:
            decay = jnp.asarray(self.decay, x.real.dtype)
            return x / bias_correction(decay, count).astype(x.dtype)

        average = jax.tree.map(average_leaf, state.average, value)
        measured = {self.measure_name: jax.tree.map(correct_leaf, average)}
        return updates, SnapshotState(count, measured, average)

    def _dtype(self, dtype: Any) -> Any:
        return dtype if self.decay is None else compute_dtype(dtype)
