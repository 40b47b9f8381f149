"""Minimisation of any smooth function: the methods, and the loop to convergence."""

from __future__ import annotations

from fnopt.solvers.smooth._bfgs import bfgs
from fnopt.solvers.smooth._driver import minimize
from fnopt.solvers.smooth._lbfgsb import lbfgsb
from fnopt.solvers.smooth._method import MinimizeMethod
from fnopt.solvers.smooth._newton_cg import newton_cg
from fnopt.solvers.smooth._nonlinear_cg import nonlinear_cg
from fnopt.solvers.smooth._projected_gradient import projected_gradient
from fnopt.solvers.smooth._result import Minimum

__all__ = [
    "MinimizeMethod",
    "Minimum",
    "bfgs",
    "lbfgsb",
    "minimize",
    "newton_cg",
    "nonlinear_cg",
    "projected_gradient",
]
