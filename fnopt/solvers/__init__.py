"""Least squares and the minimisation of any function: methods, and loops to convergence."""

from __future__ import annotations

from fnopt.solvers._certify import Certificate
from fnopt.solvers._dogleg import dogleg
from fnopt.solvers._driver import least_squares
from fnopt.solvers._equations import Root
from fnopt.solvers._gauss_newton import gauss_newton
from fnopt.solvers._levenberg_marquardt import levenberg_marquardt
from fnopt.solvers._method import LeastSquaresMethod, LeastSquaresState
from fnopt.solvers._root import fixed_point, root
from fnopt.solvers._stopping import SHARE as SHARE
from fnopt.solvers._stopping import checked_status as checked_status
from fnopt.solvers._stopping import cost_converged as cost_converged
from fnopt.solvers._stopping import first_of as first_of
from fnopt.solvers._stopping import is_lost_in_rounding as is_lost_in_rounding
from fnopt.solvers._stopping import step_converged as step_converged
from fnopt.solvers._trust_region import LEAST_GAIN as LEAST_GAIN
from fnopt.solvers._trust_region import TRUST_REGION as TRUST_REGION
from fnopt.solvers._trust_region import Outcome as Outcome
from fnopt.solvers._trust_region import gain_ratio as gain_ratio
from fnopt.solvers._trust_region import nielsen_shrink as nielsen_shrink
from fnopt.solvers.minimize import (
    MinimizeMethod,
    Minimum,
    bfgs,
    lbfgsb,
    minimize,
    newton_cg,
    nonlinear_cg,
    projected_gradient,
)
from fnopt.solvers.problem._call import SCHEMES as SCHEMES
from fnopt.solvers.problem._jacobian_check import disagrees as disagrees
from fnopt.solvers.problem._problem import Problem as Problem
from fnopt.solvers.result._covariance import correlation_of as correlation_of
from fnopt.solvers.result._covariance import covariance_of as covariance_of
from fnopt.solvers.result._covariance import errors_of as errors_of
from fnopt.solvers.result._covariance import knowledge_of as knowledge_of
from fnopt.solvers.result._covariance import scatter as scatter
from fnopt.solvers.result._report import listed as listed
from fnopt.solvers.result._report import named_entries as named_entries
from fnopt.solvers.result._report import report as report
from fnopt.solvers.result._solution import Solution, StepHistory, StepInfo

__all__ = [
    "Certificate",
    "LeastSquaresMethod",
    "LeastSquaresState",
    "MinimizeMethod",
    "Minimum",
    "Root",
    "Solution",
    "StepHistory",
    "StepInfo",
    "bfgs",
    "dogleg",
    "fixed_point",
    "gauss_newton",
    "lbfgsb",
    "least_squares",
    "levenberg_marquardt",
    "minimize",
    "newton_cg",
    "nonlinear_cg",
    "projected_gradient",
    "root",
]
