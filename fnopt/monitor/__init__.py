"""Looking at training without changing it: the health of gradients, and what a step costs."""

from fnopt.core import exponents
from fnopt.monitor._cost import cost
from fnopt.monitor._cost_phases import GradCost, StepCost
from fnopt.monitor._cost_result import Compiled, Cost, Loop, Unknown
from fnopt.monitor._cost_step import grad_cost, step_cost
from fnopt.monitor._emit import EmitHealthState, emit, emit_health, record_of
from fnopt.monitor._flags import Flag, FlagReport, FlagState, health_flags
from fnopt.monitor._health import Health, health
from fnopt.monitor._history import History, health_history, history_of
from fnopt.monitor._plot import plot_gradient_flow
from fnopt.monitor._progress import Progress
from fnopt.monitor._record import RecordHealthState, record_health
from fnopt.monitor._roofline import PUBLISHED_RATES, Hardware, measure_hardware
from fnopt.monitor._work import Work
from fnopt.monitor._writers import JsonLines, TensorBoard, read_json_lines, tee

histogram_edges = exponents.histogram_edges

__all__ = [
    "PUBLISHED_RATES",
    "Compiled",
    "Cost",
    "EmitHealthState",
    "Flag",
    "FlagReport",
    "FlagState",
    "GradCost",
    "Hardware",
    "Health",
    "History",
    "JsonLines",
    "Loop",
    "Progress",
    "RecordHealthState",
    "StepCost",
    "TensorBoard",
    "Unknown",
    "Work",
    "cost",
    "emit",
    "emit_health",
    "grad_cost",
    "health",
    "health_flags",
    "health_history",
    "histogram_edges",
    "history_of",
    "measure_hardware",
    "plot_gradient_flow",
    "read_json_lines",
    "record_health",
    "record_of",
    "step_cost",
    "tee",
]
