"""Minimization of smooth scalar functions: the driver `minimize` and its methods."""

from __future__ import annotations

from fnopt.solvers.minimize._driver import minimize
from fnopt.solvers.minimize._method import MinimizeMethod
from fnopt.solvers.minimize._newton_cg import newton_cg
from fnopt.solvers.minimize._nonlinear_cg import nonlinear_cg
from fnopt.solvers.minimize._projected_gradient import projected_gradient
from fnopt.solvers.minimize._quasi_newton import bfgs, lbfgsb
from fnopt.solvers.minimize._result import Minimum

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
