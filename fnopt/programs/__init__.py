"""Reading, replaying and keeping the programs (jaxprs) of functions."""

from __future__ import annotations

from fnopt.programs import _read as jaxprs
from fnopt.programs._closure import opened
from fnopt.programs._control import (
    Cond,
    Control,
    Scan,
    ShardMap,
    While,
    called_with,
    control_view,
)
from fnopt.programs._kept import call_compiled, call_recorded, runs_on_one_device
from fnopt.programs._levels import IN_RULE, SCOPE, Level, Mark, Node
from fnopt.programs._levels import find_nodes as find_nodes
from fnopt.programs._recorded import Recorded, is_data, recorded
from fnopt.programs._replay import Records, Visit
from fnopt.programs._replay import replay as replay
from fnopt.programs._tracing import runs_now, uncached
from fnopt.programs._tracing import traced_once as traced_once

__all__ = [
    "IN_RULE",
    "SCOPE",
    "Cond",
    "Control",
    "Level",
    "Mark",
    "Node",
    "Recorded",
    "Records",
    "Scan",
    "ShardMap",
    "Visit",
    "While",
    "call_compiled",
    "call_recorded",
    "called_with",
    "control_view",
    "is_data",
    "jaxprs",
    "opened",
    "recorded",
    "runs_now",
    "runs_on_one_device",
    "uncached",
]
