"""Damped linear least squares: steps from a Jacobian and residuals."""

from __future__ import annotations

from fnopt.errors import deprecated_names
from fnopt.linear._band import BandedGramSystem
from fnopt.linear._eliminated_system import BlockLayout, EliminatedGramSystem
from fnopt.linear._gram_system import SparseGramSystem as SparseGramSystem
from fnopt.linear._gram_system import TallGramSystem, WideGramSystem, gram
from fnopt.linear._host_system import HostGramSystem, HostLayout
from fnopt.linear._krylov_system import KrylovSystem
from fnopt.linear._krylov_system import to_boundary as to_boundary
from fnopt.linear._matrix_functions import matrix_inverse_pth_root, power_iteration
from fnopt.linear._norms import are_squares_safe as are_squares_safe
from fnopt.linear._norms import divide as divide
from fnopt.linear._norms import least_square_sum as least_square_sum
from fnopt.linear._norms import length as length
from fnopt.linear._norms import norm
from fnopt.linear._norms import row_norm as row_norm
from fnopt.linear._secular import ROUNDING_MARGIN as ROUNDING_MARGIN
from fnopt.linear._secular import dogleg_step
from fnopt.linear._secular import rounding_damping as rounding_damping
from fnopt.linear._system import DampedStep, System, linear_solver
from fnopt.linear._triangle import (
    SingularFactors,
    Triangle,
    damped_triangle,
    gauss_newton_solution,
    numerical_rank,
    singular_factors,
    triangle,
)
from fnopt.linear._triangle import is_determined as is_determined
from fnopt.linear._triangle import noise_damping as noise_damping
from fnopt.linear._triangle import row_triangle as row_triangle
from fnopt.linear._triangle import singular_triangle as singular_triangle
from fnopt.linear._triangle_system import LiftedSystem, TriangleSystem
from fnopt.linear._triangle_system import cut_to_radius as cut_to_radius
from fnopt.linear._unrolled import Rows as Rows
from fnopt.linear._unrolled import normal_equations as normal_equations
from fnopt.linear._unrolled import sum_points as sum_points
from fnopt.linear._unrolled import unrolled_backward as unrolled_backward
from fnopt.linear._unrolled import unrolled_cholesky as unrolled_cholesky
from fnopt.linear._unrolled import unrolled_forward as unrolled_forward
from fnopt.linear._unrolled import unrolled_inverse as unrolled_inverse
from fnopt.linear._unrolled import unrolled_rank as unrolled_rank
from fnopt.linear._unrolled import unrolled_solve as unrolled_solve

# Old names, which warn.
_RENAMED = {
    "BandLayout": "fnopt.jacobians.BandLayout",
    "band_of": "fnopt.jacobians.band_of",
    "reverse_cuthill_mckee": "fnopt.jacobians.reverse_cuthill_mckee",
}
__getattr__ = deprecated_names(__name__, _RENAMED)

__all__ = [
    "BandedGramSystem",
    "BlockLayout",
    "DampedStep",
    "EliminatedGramSystem",
    "HostGramSystem",
    "HostLayout",
    "KrylovSystem",
    "LiftedSystem",
    "SingularFactors",
    "System",
    "TallGramSystem",
    "Triangle",
    "TriangleSystem",
    "WideGramSystem",
    "damped_triangle",
    "dogleg_step",
    "gauss_newton_solution",
    "gram",
    "linear_solver",
    "matrix_inverse_pth_root",
    "norm",
    "numerical_rank",
    "power_iteration",
    "singular_factors",
    "triangle",
]
