"""Nonlinear least squares: the method, and the loop to convergence."""

from __future__ import annotations

from fnopt.least_squares._covariance import covariance, standard_errors
from fnopt.least_squares._curve_fit import OptimizeWarning, curve_fit
from fnopt.least_squares._dogleg import dogleg
from fnopt.least_squares._driver import least_squares
from fnopt.least_squares._gauss_newton import gauss_newton
from fnopt.least_squares._levenberg_marquardt import levenberg_marquardt
from fnopt.least_squares._method import LeastSquaresMethod, LeastSquaresState
from fnopt.least_squares._solution import History, Solution, StepInfo
from fnopt.least_squares._uncertainty import (
    Band,
    confidence_intervals,
    correlation,
    predict_band,
    reduced_chi_square,
    t_quantile,
)
from fnopt.least_squares.batched import BatchFit, curve_fit_batch

__all__ = [
    "Band",
    "BatchFit",
    "History",
    "LeastSquaresMethod",
    "LeastSquaresState",
    "OptimizeWarning",
    "Solution",
    "StepInfo",
    "confidence_intervals",
    "correlation",
    "covariance",
    "curve_fit",
    "curve_fit_batch",
    "dogleg",
    "gauss_newton",
    "least_squares",
    "levenberg_marquardt",
    "predict_band",
    "reduced_chi_square",
    "standard_errors",
    "t_quantile",
]
