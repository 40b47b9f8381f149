"""Measurements of the updates, with optax's states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from fnopt import monitor as ours
from fnopt import transforms
from fnopt.interop.optax_api._restated import restated
from fnopt.numerics import zero_count


class SnapshotState(NamedTuple):
    """Dict with a measurement, keyed by its name."""

    measurement: dict[str, Any]


class MonitorState(NamedTuple):
    """Measurements keyed by name, and the step counts and averages of each."""

    measurements: dict[str, Any]
    measure_states: tuple[Any, ...]


class _Averaged(NamedTuple):
    """A measurement with a moving average."""

    measure: Callable[[Any], Any]
    decay: Any


@dataclasses.dataclass(frozen=True)
class _Measured:
    """Conversion between `MonitorState` and the states of several `fnopt.monitor.snapshot`s."""

    names: tuple[str, ...]
    optax_type: type = MonitorState

    def as_optax(self, state: Any) -> MonitorState:
        """Convert the states of the snapshots to optax's state."""
        values = {name: s.measured[name] for name, s in zip(self.names, state, strict=True)}
        return MonitorState(values, tuple((s.count, s.average) for s in state))

    def as_fnopt(self, state: MonitorState) -> Any:
        """Convert optax's state to the states of the snapshots."""
        pairs = zip(self.names, state.measure_states, strict=True)
        return tuple(
            ours.SnapshotState(count, {name: state.measurements[name]}, average)
            for name, (count, average) in pairs
        )


def snapshot(measure_name: str, measure: Callable[[Any], Any]) -> Any:
    """Return updates unchanged; store `measure(updates)` in the state under a name."""
    return restated(ours.snapshot(measure_name, measure), _WithoutAverage())


@dataclasses.dataclass(frozen=True)
class _WithoutAverage:
    """Conversion between optax's and fnopt's state of a snapshot without an average."""

    optax_type: type = SnapshotState

    def as_optax(self, state: Any) -> SnapshotState:
        """Convert the state to optax's class, which has no step count."""
        return SnapshotState(state.measured)

    def as_fnopt(self, state: SnapshotState) -> Any:
        """Convert the state to fnopt's class."""
        # The step count may be 0, because only averages depend on it.
        return ours.SnapshotState(zero_count(), state.measurement, ())


def measure_with_ema(
    measure: Callable[[Any], Any],
    decay: Any,
    debias: bool = True,
    accumulator_dtype: Any = None,
) -> Any:
    """Make a measurement for `monitor` with a bias-corrected moving average over the steps."""
    del accumulator_dtype  # fnopt's averages are at least float32
    if not debias:
        raise ValueError(
            "measure_with_ema: debias is False, expected True: averages without a bias correction "
            "aren't supported."
        )
    return _Averaged(measure, decay)


def monitor(measures: dict[str, Any]) -> Any:
    """Store measurements of the updates in the state, where `tree.get(state, name)` reads them.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.interop import optax_api as optax
        >>> tx = optax.chain(optax.monitor({"norm": optax.tree.norm}), optax.sgd(0.1))
        >>> _, state = tx.update(jnp.asarray([3.0, 4.0]), tx.init(jnp.ones(2)))
        >>> optax.tree.get(state, "norm")
        Array(5., dtype=float32)
    """
    snapshots = []
    for name, measurement in measures.items():
        is_averaged = isinstance(measurement, _Averaged)
        measure, decay = measurement if is_averaged else (measurement, None)
        snapshots.append(ours.snapshot(name, measure, decay))
    return restated(transforms.chain(*snapshots), _Measured(tuple(measures)))
