"""Damped linear least squares: from a Jacobian and a residual to a step."""

from __future__ import annotations

from fnopt.linear._band import Band, band_of
from fnopt.linear._band_order import reverse_cuthill_mckee
from fnopt.linear._band_system import BandedGramSystem
from fnopt.linear._choice import linear_solver
from fnopt.linear._damped import (
    damped_gram_solution,
    damped_solution,
    divide,
    gauss_newton_solution,
)
from fnopt.linear._dogleg import dogleg_step
from fnopt.linear._gram import gram, scaled_gram
from fnopt.linear._gram_system import TallGramSystem, WideGramSystem
from fnopt.linear._krylov_system import KrylovSystem
from fnopt.linear._norms import column_norms, norm
from fnopt.linear._singular import SingularFactors, numerical_rank, singular_factors
from fnopt.linear._singular_system import SingularSystem
from fnopt.linear._system import DampedStep, System
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
    "Band",
    "BandedGramSystem",
    "DampedStep",
    "KrylovSystem",
    "NormalEquations",
    "SingularFactors",
    "SingularSystem",
    "System",
    "TallGramSystem",
    "WideGramSystem",
    "band_of",
    "column_norms",
    "damped_gram_solution",
    "damped_solution",
    "divide",
    "dogleg_step",
    "gauss_newton_solution",
    "gram",
    "jacobi_scale",
    "linear_solver",
    "norm",
    "normal_equations",
    "numerical_rank",
    "reverse_cuthill_mckee",
    "scaled",
    "scaled_gram",
    "singular_factors",
    "trust_region_solution",
    "unrolled_cholesky",
    "unrolled_inverse",
    "unrolled_rank",
    "unrolled_solve",
]
