"""Residual functions of pytrees as functions of vectors, and their derivatives."""

from __future__ import annotations

from fnopt.residuals._flat import FlatResidual, flat_residual
from fnopt.residuals._jacobian import curvature_along, jacobian_mode, linearise

__all__ = ["FlatResidual", "curvature_along", "flat_residual", "jacobian_mode", "linearise"]
