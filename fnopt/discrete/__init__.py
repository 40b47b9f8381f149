"""Discrete optimization: assignment problems, and derivatives of piecewise constant functions."""

from __future__ import annotations

from fnopt.discrete._assignment import hungarian_algorithm
from fnopt.discrete._perturbed import Gumbel, Normal, make_perturbed_fun

__all__ = ["Gumbel", "Normal", "hungarian_algorithm", "make_perturbed_fun"]
