"""Which inputs of a function an output can depend on, read from its program."""

from __future__ import annotations

from fnopt.jacobians.dependence._interpret import dependence
from fnopt.jacobians.dependence._sets import ALL, EMPTY, Sets
from fnopt.jacobians.dependence._table import RULES

__all__ = ["ALL", "EMPTY", "RULES", "Sets", "dependence"]
