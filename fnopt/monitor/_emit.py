"""Emission of metrics from a jitted program every few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Transformation, static
from fnopt.errors import check_count, where
from fnopt.monitor._groups import as_groups
from fnopt.monitor._health import Health, health
from fnopt.monitor._measure import CHEAP, as_stats
from fnopt.monitor._writers import check_sink, warn_once
from fnopt.numerics import is_inexact, safe_increment

Sink = Callable[[dict[str, Any]], Any]
"""A receiver of records: a function of one flat dict."""


def _entries(metrics: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(metrics, Health):
        metrics = metrics.as_dict()
    if isinstance(metrics, Mapping):
        for key, value in metrics.items():
            yield from _entries(value, f"{path}/{key}" if path else str(key))
    else:
        yield path, metrics


def record_of(step: Any, metrics: Any) -> dict[str, Any]:
    """Flatten metrics, on the host, to a dict of plain numbers.

    Args:
        step: The number of the step.
        metrics: A dict of numbers, `Health`s and nested dicts; or a `Health`.

    Returns:
        A dict with `'step'` first; nested names are joined by `/`. Scalars are Python numbers,
        arrays are NumPy arrays. An infinite ratio, as for zero biases, is omitted.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.monitor import health, record_of
        >>> h = health({"w": jnp.asarray([3.0, 4.0])})
        >>> record_of(7, {"loss": 0.5, "grads": h})
        {'step': 7, 'loss': 0.5, 'grads/norm/w': 5.0, 'grads/nonfinite/w': 0.0}
    """
    values = {k: np.asarray(v) for k, v in _entries(metrics, "")}
    record: dict[str, Any] = {"step": int(step)}
    for name, value in values.items():
        # The ratio to params of zero is infinite and carries no information.
        if value.ndim or "ratio" not in name.split("/") or not np.isinf(value):
            record[name] = value if value.ndim else value.item()
    return record


def _check(metrics: Any, step: jax.Array, every: int) -> None:
    if not callable(metrics) or isinstance(metrics, (Mapping, Health)):
        raise TypeError(
            f"{where()}emit: metrics is a {type(metrics).__name__}, expected a function without "
            "arguments, as in lambda: {'loss': loss}. emit calls it only for the steps that "
            "are sent."
        )
    if step.ndim or not jnp.issubdtype(step.dtype, jnp.integer):
        raise TypeError(
            f"{where()}emit: step is {step.dtype}{list(step.shape)}, expected a whole number."
        )
    check_count(every, "every", "emit")


def emit(sink: Sink, step: Any, metrics: Callable[[], Any], *, every: int = 1) -> None:
    """Send metrics from a jitted function to a function on the host, every few steps.

    On all other steps nothing is computed and nothing is sent. Delivery is asynchronous and may
    reorder records (each has its step): call `jax.effects_barrier()` before reading the records of
    the sink. Under `jax.vmap` there is one record for each batch member, and the metrics are
    computed in every step, since a batched condition becomes a select. If a sink raises an
    exception (because the disk is full, for example), the program continues with one warning, and
    later records are still sent.

    Args:
        sink: Receives one flat dict (see `record_of`): a function, a `JsonLines`, a `TensorBoard`,
            a `Progress`, or several sinks combined by `tee`.
        step: The number of the step, an integer scalar.
        metrics: A function without arguments that returns a dict of numbers, `Health`s and nested
            dicts, or a `Health`.
        every: Sends the steps 0, `every`, 2 `every`, ...

    Raises:
        TypeError: If `sink` or `metrics` isn't a function, or the step isn't an integer.
        ValueError: If `every` is below 1.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.monitor import emit
        >>> @jax.jit
        ... def run(x):
        ...     def body(i, x):
        ...         emit(print, i, lambda: {"x": x}, every=2)
        ...         return x / 2
        ...     return jax.lax.fori_loop(0, 4, body, x)
        >>> _ = run(1.0).block_until_ready(); jax.effects_barrier()
        {'step': 0, 'x': 1.0}
        {'step': 2, 'x': 0.25}
    """
    check_sink(sink, "emit: ")
    step = jnp.asarray(step)
    _check(metrics, step, every)
    due = step % every == 0

    def deliver(due: Any, step: Any, values: Any) -> None:
        if due:  # under vmap all members get here, also those whose step isn't due
            try:
                sink(record_of(step, values))
            except Exception as error:
                # An exception in a callback would end the program, and a full disk the training.
                name = getattr(sink, "__name__", type(sink).__name__)
                warn_once(
                    sink,
                    f"emit: the sink {name} raised {type(error).__name__}: {error} at step "
                    f"{int(step)}. The program goes on and calls the sink for later steps too. "
                    "Later failures give no warning.",
                )

    send = lambda: jax.debug.callback(deliver, due, step, metrics())  # noqa: E731
    if every == 1:
        send()
    else:
        # The metrics are computed in the branch: other steps pay nothing.
        jax.lax.cond(due, send, lambda: None)


class EmitHealthState(NamedTuple):
    """The number of updates so far."""

    count: jax.Array


class emit_health(Transformation):
    """Pass updates through unchanged, and send their health to a function every few steps.

    It applies `emit` to `health` as a transform, for training loops whose step you can't edit.

    Args:
        sink: Receives one flat dict: `{'step': 200, 'norm/dense/kernel': 0.3, ...}`.
        every: Sends the updates 0, `every`, 2 `every`, ...; in all other updates nothing is
            computed.
        stats: The statistics, as for `health`.
        groups: The groups of leaves, as for `health`.

    Raises:
        ValueError: In use, if the ratio is among `stats` and no params are given.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> from fnopt.monitor import emit_health
        >>> tx = fnopt.chain(emit_health(print, stats="norm"), fnopt.sgd(0.1))
        >>> params = {"w": jnp.asarray([3.0, 4.0])}
        >>> _ = tx.update(params, tx.init(params), params); jax.effects_barrier()
        {'step': 0, 'norm/w': 5.0}
    """

    State = EmitHealthState

    sink: Sink = static(convert=check_sink)
    every: int = static(default=100, least=1)
    stats: tuple[str, ...] = static(default=CHEAP, convert=as_stats)
    groups: Any = static(default=None, convert=as_groups)

    def update(
        self, updates: Any, state: EmitHealthState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmitHealthState]:
        """Return the updates unchanged; on the chosen steps send their health to the sink."""
        if any(map(is_inexact, jax.tree.leaves(updates))):
            measure = lambda: health(updates, params, stats=self.stats, groups=self.groups)  # noqa: E731
            emit(self.sink, state.count, measure, every=self.every)
        return updates, EmitHealthState(safe_increment(state.count))
