"""Damped linear least squares: from a Jacobian and a residual to a step."""

from __future__ import annotations

from fnopt.linear._band import BandLayout, band_of, reverse_cuthill_mckee
from fnopt.linear._band_system import BandedGramSystem
from fnopt.linear._dogleg import dogleg_step
from fnopt.linear._gram_system import TallGramSystem, WideGramSystem, gram, scaled_gram
from fnopt.linear._inverse_root import matrix_inverse_pth_root
from fnopt.linear._krylov_system import KrylovSystem
from fnopt.linear._norms import column_norms, divide, norm
from fnopt.linear._norms import row_norm as row_norm
from fnopt.linear._power_iteration import power_iteration
from fnopt.linear._system import DampedStep, System, linear_solver
from fnopt.linear._triangle import (
    SingularFactors,
    Triangle,
    damped_triangle,
    gauss_newton_solution,
    noise_damping,
    numerical_rank,
    singular_factors,
    singular_triangle,
    triangle,
)
from fnopt.linear._triangle import row_triangle as row_triangle
from fnopt.linear._triangle_system import LiftedSystem, TriangleSystem
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
from fnopt.linear._unrolled import Rows as Rows

__all__ = [
    "BandLayout",
    "BandedGramSystem",
    "DampedStep",
    "KrylovSystem",
    "LiftedSystem",
    "NormalEquations",
    "SingularFactors",
    "System",
    "TallGramSystem",
    "Triangle",
    "TriangleSystem",
    "WideGramSystem",
    "band_of",
    "column_norms",
    "damped_triangle",
    "divide",
    "dogleg_step",
    "gauss_newton_solution",
    "gram",
    "jacobi_scale",
    "linear_solver",
    "matrix_inverse_pth_root",
    "noise_damping",
    "norm",
    "normal_equations",
    "numerical_rank",
    "power_iteration",
    "reverse_cuthill_mckee",
    "scaled",
    "scaled_gram",
    "singular_factors",
    "singular_triangle",
    "triangle",
    "unrolled_cholesky",
    "unrolled_inverse",
    "unrolled_rank",
    "unrolled_solve",
]
