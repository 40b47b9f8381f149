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
"""Function that receives records, which are flat dicts."""


def _entries(metrics: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(metrics, Health):
        metrics = metrics.as_dict()
    if isinstance(metrics, Mapping):
        for key, value in metrics.items():
            yield from _entries(value, f"{path}/{key}" if path else str(key))
    else:
        yield path, metrics


def record_of(step: Any, metrics: Any) -> dict[str, Any]:
    """Flatten metrics on the host to a dict of Python numbers and NumPy arrays.

    Args:
        step: The step number.
        metrics: A dict of numbers, `Health`s and nested dicts; or a `Health`.

    Returns:
        A dict with `'step'` first; nested names are joined by `/`. Scalars are Python numbers,
        arrays are NumPy arrays. An infinite ratio, such as the ratio of a zero bias, is omitted.

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
        # The ratio of zero params is infinite, which contains no information.
        if value.ndim or "ratio" not in name.split("/") or not np.isinf(value):
            record[name] = value if value.ndim else value.item()
    return record


def _check(metrics: Any, step: jax.Array, every: int) -> None:
    if not callable(metrics) or isinstance(metrics, (Mapping, Health)):
        raise TypeError(
            f"{where()}emit: the argument `metrics` is a {type(metrics).__name__}, expected a "
            "function without arguments, as in lambda: {'loss': loss}. emit calls the function "
            "only in the recorded steps."
        )
    if step.ndim or not jnp.issubdtype(step.dtype, jnp.integer):
        raise TypeError(
            f"{where()}emit: the argument `step` is {step.dtype}{list(step.shape)}, expected an "
            "integer scalar."
        )
    check_count(every, "every", "emit")


def emit(sink: Sink, step: Any, metrics: Callable[[], Any], *, every: int = 1) -> None:
    """Send metrics from a jitted function to a function on the host, every few steps.

    In other steps, nothing is computed or sent. Delivery is asynchronous and may reorder records,
    each of which contains the step. Call `jax.effects_barrier()` before you read the records.

    Under `jax.vmap`, there is one record for each batch member. The metrics are then computed in
    every step, because JAX converts a batched condition to a select. If a sink raises an exception,
    for example because the disk is full, the program continues with one warning and sends later
    records.

    Args:
        sink: Function of one flat dict (see `record_of`), such as a `JsonLines`, a `TensorBoard`, a
            `Progress`, or several sinks combined by `tee`.
        step: The step number, an integer scalar.
        metrics: A function without arguments that returns a dict of numbers, `Health`s and nested
            dicts, or a `Health`.
        every: The interval: the steps 0, `every`, 2 `every`, ... are sent.

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
        # Under vmap, the callback also runs for members whose step isn't due.
        if due:
            try:
                sink(record_of(step, values))
            except Exception as error:
                # An exception in a callback would end the training, for example on a full disk.
                name = getattr(sink, "__name__", type(sink).__name__)
                warn_once(
                    sink,
                    f"emit: the sink {name} raised {type(error).__name__}: {error} at step "
                    f"{int(step)}. The program continues and calls the sink in later steps. Later "
                    "errors of this sink raise no warning.",
                )

    send = lambda: jax.debug.callback(deliver, due, step, metrics())  # noqa: E731
    if every == 1:
        send()
    else:
        # `metrics` is called inside the branch, so that other steps don't compute it.
        jax.lax.cond(due, send, lambda: None)


class EmitHealthState(NamedTuple):
    """Number of updates."""

    count: jax.Array


class emit_health(Transformation):
    """Return updates unchanged, and send their `health` to a function every few steps.

    This transform serves training loops whose step function you can't edit. Otherwise use `emit`.

    Args:
        sink: Function of one flat dict: `{'step': 200, 'norm/dense/kernel': 0.3, ...}`.
        every: The interval: the health of the updates 0, `every`, 2 `every`, ... is sent. In other
            updates nothing is computed.
        stats: The statistics, as in `health`.
        groups: The groups of leaves, as in `health`.

    Raises:
        ValueError: In `update`, if `stats` contains the ratio and no params are passed.

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
        """Return the updates unchanged; every `every` steps, send their health to the sink."""
        if any(map(is_inexact, jax.tree.leaves(updates))):
            measure = lambda: health(updates, params, stats=self.stats, groups=self.groups)  # noqa: E731
            emit(self.sink, state.count, measure, every=self.every)
        return updates, EmitHealthState(safe_increment(state.count))
