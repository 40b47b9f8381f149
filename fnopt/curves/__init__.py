"""Curve fits of one or many data sets, with covariances, confidence intervals and bands."""

from __future__ import annotations

from fnopt.curves._curve_fit import curve_fit
from fnopt.curves._failures import FitError, OptimizeWarning
from fnopt.curves._fit import Fit
from fnopt.curves._plot import plot_fit
from fnopt.curves._profile import profile_intervals
from fnopt.curves._t_quantile import t_quantile
from fnopt.curves._uncertainty import (
    Band,
    confidence_intervals,
    correlation,
    covariance,
    predict_band,
    reduced_chi_square,
    standard_errors,
)
from fnopt.curves.batched._curve_fit_batch import curve_fit_batch
from fnopt.curves.batched._fit import BatchFit

__all__ = [
    "Band",
    "BatchFit",
    "Fit",
    "FitError",
    "OptimizeWarning",
    "confidence_intervals",
    "correlation",
    "covariance",
    "curve_fit",
    "curve_fit_batch",
    "plot_fit",
    "predict_band",
    "profile_intervals",
    "reduced_chi_square",
    "standard_errors",
    "t_quantile",
]
