"""Nonlinear least squares: the method, and the loop to convergence."""

from __future__ import annotations

from fnopt.least_squares._covariance import covariance, standard_errors
from fnopt.least_squares._curve_fit import OptimizeWarning, curve_fit
from fnopt.least_squares._driver import least_squares
from fnopt.least_squares._levenberg_marquardt import LevenbergMarquardtState, levenberg_marquardt
from fnopt.least_squares._solution import History, Solution, StepInfo
from fnopt.least_squares.batched import BatchFit, curve_fit_batch

__all__ = [
    "BatchFit",
    "History",
    "LevenbergMarquardtState",
    "OptimizeWarning",
    "Solution",
    "StepInfo",
    "covariance",
    "curve_fit",
    "curve_fit_batch",
    "least_squares",
    "levenberg_marquardt",
    "standard_errors",
]
