"""Dependence of the outputs of a function on its inputs, derived from its jaxpr."""

from __future__ import annotations

from fnopt.jacobians.dependence._interpret import RULES, dependence
from fnopt.jacobians.dependence._sets import ALL, EMPTY, Sets

__all__ = ["ALL", "EMPTY", "RULES", "Sets", "dependence"]
