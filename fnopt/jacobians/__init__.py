"""Dense, sparse and per-example Jacobians, sparse Hessians, and sparsity patterns."""

from __future__ import annotations

from fnopt.jacobians._band import BandLayout, band_of, reverse_cuthill_mckee
from fnopt.jacobians._check_sparsity import check_sparsity
from fnopt.jacobians._colored import SparseJacobian
from fnopt.jacobians._coloring import Sparsity, SymmetricSparsity
from fnopt.jacobians._elimination import Elimination, elimination
from fnopt.jacobians._flat import check_real as check_real
from fnopt.jacobians._flat import checked_outputs as checked_outputs
from fnopt.jacobians._flat import forward_from_reverse as forward_from_reverse
from fnopt.jacobians._flat import is_about_forward_mode as is_about_forward_mode
from fnopt.jacobians._flat import jacobian_mode, value_and_jacobian
from fnopt.jacobians._flat import lacks_forward as lacks_forward
from fnopt.jacobians._flat import map_in_chunks as map_in_chunks
from fnopt.jacobians._of_function import JacobianOperator, jacobian
from fnopt.jacobians._of_function import tree_or_matrix as tree_or_matrix
from fnopt.jacobians._per_example import per_example_jacobian
from fnopt.jacobians._ravel import RealVector, ravel, real_vector
from fnopt.jacobians._ravel import held_as_zeros as held_as_zeros
from fnopt.jacobians._ravel import ravel_with_held as ravel_with_held
from fnopt.jacobians._sparse import LARGEST_DENSE as LARGEST_DENSE
from fnopt.jacobians._sparse import SparseJacobianFunction as SparseJacobianFunction
from fnopt.jacobians._sparse import sparse_jacobian
from fnopt.jacobians._sparse_hessian import SparseHessian, sparse_hessian
from fnopt.jacobians._sparsity_pattern import sparsity_pattern

__all__ = [
    "BandLayout",
    "Elimination",
    "JacobianOperator",
    "RealVector",
    "SparseHessian",
    "SparseJacobian",
    "Sparsity",
    "SymmetricSparsity",
    "band_of",
    "check_sparsity",
    "elimination",
    "jacobian",
    "jacobian_mode",
    "per_example_jacobian",
    "ravel",
    "real_vector",
    "reverse_cuthill_mckee",
    "sparse_hessian",
    "sparse_jacobian",
    "sparsity_pattern",
    "value_and_jacobian",
]
