"""Analysis and evaluation of jaxprs, and eager calls that compile each program once.

Only this package knows the structure of jaxprs, which may change with a release of JAX.
"""

from __future__ import annotations

from fnopt.errors import deprecated_names
from fnopt.programs import _jaxprs as jaxprs
from fnopt.programs._calls import is_on_one_device, jit_call, tiered_call, trace_and_call
from fnopt.programs._control_flow import (
    Cond,
    Control,
    Scan,
    ShardMap,
    While,
    call_view,
    control_view,
)
from fnopt.programs._intercept import NodeFn, NodeValues
from fnopt.programs._intercept import intercept_nodes as intercept_nodes
from fnopt.programs._keys import MAX_PROGRAMS
from fnopt.programs._nodes import HIDDEN_BY_RULE, SCOPE_PREFIX, JaxprNodes, Node, NodeVar
from fnopt.programs._nodes import find_nodes as find_nodes
from fnopt.programs._traced_function import TracedFunction, is_data, trace_function
from fnopt.programs._tracing import convert_closure, copy_function, has_tracers, is_eager, is_jitted
from fnopt.programs._tracing import jit_copy as jit_copy

# Deprecated names, whose use warns.
_RENAMED = {
    "IN_RULE": "HIDDEN_BY_RULE",
    "Level": "JaxprNodes",
    "Mark": "NodeVar",
    "Recorded": "TracedFunction",
    "Records": "NodeValues",
    "SCOPE": "SCOPE_PREFIX",
    "Visit": "NodeFn",
    "call_compiled": "trace_and_call",
    "call_recorded": "jit_call",
    "called_with": "call_view",
    "opened": "convert_closure",
    "recorded": "trace_function",
    "runs_now": "is_eager",
    "runs_on_one_device": "is_on_one_device",
    "uncached": "copy_function",
}


__getattr__ = deprecated_names(__name__, _RENAMED)

__all__ = [
    "HIDDEN_BY_RULE",
    "MAX_PROGRAMS",
    "SCOPE_PREFIX",
    "Cond",
    "Control",
    "JaxprNodes",
    "Node",
    "NodeFn",
    "NodeValues",
    "NodeVar",
    "Scan",
    "ShardMap",
    "TracedFunction",
    "While",
    "call_view",
    "control_view",
    "convert_closure",
    "copy_function",
    "has_tracers",
    "is_data",
    "is_eager",
    "is_jitted",
    "is_on_one_device",
    "jaxprs",
    "jit_call",
    "tiered_call",
    "trace_and_call",
    "trace_function",
]
