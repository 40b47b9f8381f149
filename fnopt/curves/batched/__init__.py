"""Batches of small curve fits."""

from __future__ import annotations

from fnopt.curves.batched._curve_fit_batch import curve_fit_batch
from fnopt.curves.batched._fit import BatchFit

__all__ = ["BatchFit", "curve_fit_batch"]
