"""Monitoring of training: health of gradients, history and writers."""

from __future__ import annotations

from fnopt.monitor._emit import EmitHealthState, emit, emit_health, record_of
from fnopt.monitor._flags import Flag, FlagReport, FlagState, health_flags
from fnopt.monitor._health import Health, health
from fnopt.monitor._history import History, health_history, history_of
from fnopt.monitor._plot import plot_gradient_flow
from fnopt.monitor._progress import Progress
from fnopt.monitor._record import RecordHealthState, SnapshotState, record_health, snapshot
from fnopt.monitor._writers import JsonLines, TensorBoard, read_json_lines, tee
from fnopt.numerics import exponents

histogram_edges = exponents.histogram_edges

__all__ = [
    "EmitHealthState",
    "Flag",
    "FlagReport",
    "FlagState",
    "Health",
    "History",
    "JsonLines",
    "Progress",
    "RecordHealthState",
    "SnapshotState",
    "TensorBoard",
    "emit",
    "emit_health",
    "health",
    "health_flags",
    "health_history",
    "histogram_edges",
    "history_of",
    "plot_gradient_flow",
    "read_json_lines",
    "record_health",
    "record_of",
    "snapshot",
    "tee",
]
