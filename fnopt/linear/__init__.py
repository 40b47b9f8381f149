"""Damped linear least squares: from a Jacobian and a residual to a step."""

from __future__ import annotations

from fnopt.linear._damped import (
    damped_gram_solution,
    damped_solution,
    divide,
    gauss_newton_solution,
)
from fnopt.linear._norms import column_norms, norm
from fnopt.linear._singular import SingularFactors, numerical_rank, singular_factors
from fnopt.linear._trust_region import trust_region_solution

__all__ = [
    "SingularFactors",
    "column_norms",
    "damped_gram_solution",
    "damped_solution",
    "divide",
    "gauss_newton_solution",
    "norm",
    "numerical_rank",
    "singular_factors",
    "trust_region_solution",
]
