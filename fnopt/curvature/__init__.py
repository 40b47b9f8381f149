"""Products with Hessian, Gauss-Newton and Fisher matrices, their spectra, and batch Jacobians."""

from __future__ import annotations

from fnopt.curvature._batch_jacobian import BatchJacobian, batch_jacobian
from fnopt.curvature._batch_loss import BatchLoss as BatchLoss
from fnopt.curvature._centered import CenteredJacobian as CenteredJacobian
from fnopt.curvature._damped_gram import DampedGram as DampedGram
from fnopt.curvature._damped_gram import check_rows as check_rows
from fnopt.curvature._damped_gram import solve_by_cg as solve_by_cg
from fnopt.curvature._damped_gram import solve_by_cholesky as solve_by_cholesky
from fnopt.curvature._diagonal import Estimate, ggn_diagonal, hessian_diagonal, trace_estimate
from fnopt.curvature._eigenbasis import basis_shapes as basis_shapes
from fnopt.curvature._eigenbasis import is_corrected as is_corrected
from fnopt.curvature._eigenbasis import moment_shape as moment_shape
from fnopt.curvature._eigenbasis import rebase_moments as rebase_moments
from fnopt.curvature._kfac_report import KfacReport, KfacRule, kfac_report
from fnopt.curvature._kronecker import KroneckerModel as KroneckerModel
from fnopt.curvature._kronecker import KroneckerSpec as KroneckerSpec
from fnopt.curvature._kronecker import Matrices as Matrices
from fnopt.curvature._kronecker import planned_blocks as planned_blocks
from fnopt.curvature._kronecker_inverse import BlockStack as BlockStack
from fnopt.curvature._kronecker_inverse import stacked_blocks as stacked_blocks
from fnopt.curvature._lanczos import Eigenpairs, top_eigenvalues
from fnopt.curvature._output_step import output_step as output_step
from fnopt.curvature._products import fisher_vp, ggn_vp, hvp
from fnopt.curvature._quadratic import Combination as Combination
from fnopt.curvature._quadratic import StackedDirection as StackedDirection
from fnopt.curvature._quadratic import best_combination as best_combination
from fnopt.curvature._quadratic import direction as direction

__all__ = [
    "BatchJacobian",
    "Eigenpairs",
    "Estimate",
    "KfacReport",
    "KfacRule",
    "batch_jacobian",
    "fisher_vp",
    "ggn_diagonal",
    "ggn_vp",
    "hessian_diagonal",
    "hvp",
    "kfac_report",
    "top_eigenvalues",
    "trace_estimate",
]
