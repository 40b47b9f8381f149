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
from fnopt.linear._unrolled import (
    NormalEquations,
    jacobi_scale,
    normal_equations,
    scaled,
    unrolled_cholesky,
    unrolled_inverse,
    unrolled_rank,
    unrolled_solve,
)

__all__ = [
    "NormalEquations",
    "SingularFactors",
    "column_norms",
    "damped_gram_solution",
    "damped_solution",
    "divide",
    "gauss_newton_solution",
    "jacobi_scale",
    "norm",
    "normal_equations",
    "numerical_rank",
    "scaled",
    "singular_factors",
    "trust_region_solution",
    "unrolled_cholesky",
    "unrolled_inverse",
    "unrolled_rank",
    "unrolled_solve",
]
