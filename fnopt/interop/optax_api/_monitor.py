"""Measurements of the updates, stored in the state as in optax."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from fnopt import monitor as ours
from fnopt import transforms
from fnopt.interop.optax_api._restated import restated
from fnopt.numerics import zero_count


class SnapshotState(NamedTuple):
    """A measurement, by its name."""

    measurement: dict[str, Any]


class MonitorState(NamedTuple):
    """Measurements by name, with counts and averages."""

    measurements: dict[str, Any]
    measure_states: tuple[Any, ...]


class _Averaged(NamedTuple):
    """A measurement with a moving average."""

    measure: Callable[[Any], Any]
    decay: Any


@dataclasses.dataclass(frozen=True)
class _Measured:
    """Combine the states of several snapshots in one state."""

    names: tuple[str, ...]
    optax_type: type = MonitorState

    def as_optax(self, state: Any) -> MonitorState:
        """Convert the states of the measurements to optax's state."""
        found = {name: s.measured[name] for name, s in zip(self.names, state, strict=True)}
        return MonitorState(found, tuple((s.count, s.average) for s in state))

    def as_fnopt(self, state: MonitorState) -> Any:
        """Convert optax's state to the states of the measurements."""
        beside = zip(self.names, state.measure_states, strict=True)
        return tuple(
            ours.SnapshotState(count, {name: state.measurements[name]}, average)
            for name, (count, average) in beside
        )


def snapshot(measure_name: str, measure: Callable[[Any], Any]) -> Any:
    """Measure the updates, and store the result in the state under a name."""
    return restated(ours.snapshot(measure_name, measure), _WithoutAverage())


@dataclasses.dataclass(frozen=True)
class _WithoutAverage:
    """State of a snapshot without an average."""

    optax_type: type = SnapshotState

    def as_optax(self, state: Any) -> SnapshotState:
        """Return the measurement alone."""
        return SnapshotState(state.measured)

    def as_fnopt(self, state: SnapshotState) -> Any:
        """Make a state with step count 0, because only averages count steps."""
        return ours.SnapshotState(zero_count(), state.measurement, ())


def measure_with_ema(
    measure: Callable[[Any], Any],
    decay: Any,
    debias: bool = True,
    accumulator_dtype: Any = None,
) -> Any:
    """Make a measurement for `monitor` with a bias-corrected moving average over the steps."""
    del accumulator_dtype  # averages are float32 at least
    if not debias:
        raise ValueError("measure_with_ema: debias = False, expected True: there is no other form.")
    return _Averaged(measure, decay)


def monitor(measures: dict[str, Any]) -> Any:
    """Store measurements of the updates in the state; `tree.get(state, name)` returns them.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.interop import optax_api as optax
        >>> tx = optax.chain(optax.monitor({"norm": optax.tree.norm}), optax.sgd(0.1))
        >>> _, state = tx.update(jnp.asarray([3.0, 4.0]), tx.init(jnp.ones(2)))
        >>> optax.tree.get(state, "norm")
        Array(5., dtype=float32)
    """
    watchers = []
    for name, given in measures.items():
        measure, decay = given if isinstance(given, _Averaged) else (given, None)
        watchers.append(ours.snapshot(name, measure, decay))
    return restated(transforms.chain(*watchers), _Measured(tuple(measures)))
