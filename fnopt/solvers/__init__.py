"""Least squares, minimization of smooth functions, and root finding."""

from __future__ import annotations

from fnopt.solvers._certify import Certificate
from fnopt.solvers._dogleg import dogleg
from fnopt.solvers._driver import least_squares
from fnopt.solvers._equations import Root
from fnopt.solvers._gauss_newton import gauss_newton
from fnopt.solvers._lane_steps import LaneProblems as LaneProblems
from fnopt.solvers._lane_steps import differentiable_inverse as differentiable_inverse
from fnopt.solvers._lane_steps import lane_summary as lane_summary
from fnopt.solvers._lane_steps import over_lanes as over_lanes
from fnopt.solvers._lanes import LaneEnds as LaneEnds
from fnopt.solvers._lanes import search_lanes as search_lanes
from fnopt.solvers._levenberg_marquardt import levenberg_marquardt
from fnopt.solvers._method import LeastSquaresMethod, LeastSquaresState
from fnopt.solvers._root import fixed_point, root
from fnopt.solvers._stopping import checked_status as checked_status
from fnopt.solvers._stopping import default_tolerances as default_tolerances
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
from fnopt.solvers.problem._scipy import ScipyTable as ScipyTable
from fnopt.solvers.result._covariance import correlation_of as correlation_of
from fnopt.solvers.result._covariance import covariance_of as covariance_of
from fnopt.solvers.result._covariance import (
    covariance_of_combinations as covariance_of_combinations,
)
from fnopt.solvers.result._covariance import errors_of as errors_of
from fnopt.solvers.result._covariance import factor_of as factor_of
from fnopt.solvers.result._covariance import residual_deviation as residual_deviation
from fnopt.solvers.result._report import listed as listed
from fnopt.solvers.result._report import named_entries as named_entries
from fnopt.solvers.result._report import report as report
from fnopt.solvers.result._residual_report import LeafResiduals, Observation, ResidualReport
from fnopt.solvers.result._solution import Solution, StepHistory, StepInfo

__all__ = [
    "Certificate",
    "LeafResiduals",
    "LeastSquaresMethod",
    "LeastSquaresState",
    "MinimizeMethod",
    "Minimum",
    "Observation",
    "ResidualReport",
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
