"""Dependence analysis: the inputs on which each output of a jaxpr can depend."""

from __future__ import annotations

from fnopt.jacobians.dependence._interpret import RULES, dependence
from fnopt.jacobians.dependence._sets import ALL, EMPTY, Sets

__all__ = ["ALL", "EMPTY", "RULES", "Sets", "dependence"]
