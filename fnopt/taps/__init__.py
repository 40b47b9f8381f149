"""Values, cotangents and Jacobians at named nodes inside a function."""

from __future__ import annotations

from fnopt.programs import Node
from fnopt.taps._between import grad_between, jacobian_between
from fnopt.taps._capture import Captured, capture, nodes
from fnopt.taps._patch import patch
from fnopt.taps._tap import tap

__all__ = [
    "Captured",
    "Node",
    "capture",
    "grad_between",
    "jacobian_between",
    "nodes",
    "patch",
    "tap",
]
