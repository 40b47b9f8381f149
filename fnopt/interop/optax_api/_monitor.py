"""Measurements of the updates, as optax keeps them in the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from fnopt import monitor as ours
from fnopt import transforms
from fnopt.core import zero_count
from fnopt.interop.optax_api._restated import restated


class SnapshotState(NamedTuple):
    """The measurement by its name."""

    measurement: dict[str, Any]


class MonitorState(NamedTuple):
    """The measurements by name, and counts and averages."""

    measurements: dict[str, Any]
    measure_states: tuple[Any, ...]


class _Averaged(NamedTuple):
    """A measurement whose average is wanted."""

    measure: Callable[[Any], Any]
    decay: Any


@dataclasses.dataclass(frozen=True)
class _Measured:
    """The states of several snapshots as one."""

    names: tuple[str, ...]
    optax_type: type = MonitorState

    def as_optax(self, state: Any) -> MonitorState:
        """Measurements, and what is beside them."""
        found = {name: s.measured[name] for name, s in zip(self.names, state, strict=True)}
        return MonitorState(found, tuple((s.count, s.average) for s in state))

    def as_fnopt(self, state: MonitorState) -> Any:
        """The states of the snapshots."""
        beside = zip(self.names, state.measure_states, strict=True)
        return tuple(
            ours.SnapshotState(count, {name: state.measurements[name]}, average)
            for name, (count, average) in beside
        )


def snapshot(measure_name: str, measure: Callable[[Any], Any]) -> Any:
    """A measurement of the updates, kept in the state by its name."""
    return restated(ours.snapshot(measure_name, measure), _WithoutAverage())


@dataclasses.dataclass(frozen=True)
class _WithoutAverage:
    """The state of a snapshot without an average."""

    optax_type: type = SnapshotState

    def as_optax(self, state: Any) -> SnapshotState:
        """The measurement alone."""
        return SnapshotState(state.measured)

    def as_fnopt(self, state: SnapshotState) -> Any:
        """A state at step 0: steps are counted for averages."""
        return ours.SnapshotState(zero_count(), state.measurement, ())


def measure_with_ema(
    measure: Callable[[Any], Any],
    decay: Any,
    debias: bool = True,
    accumulator_dtype: Any = None,
) -> Any:
    """A measurement for `monitor` that is averaged over the steps, without bias."""
    del accumulator_dtype  # averages are float32 at least
    if not debias:
        raise ValueError("measure_with_ema: debias = False, expected True: there is no other form.")
    return _Averaged(measure, decay)


def monitor(measures: dict[str, Any]) -> Any:
    """Measurements of the updates by name, kept in the state; `tree.get(state, name)` reads one.

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
