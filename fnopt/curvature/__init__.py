"""Products with the Hessian, Gauss-Newton and Fisher matrices, and Gram matrices of examples."""

from __future__ import annotations

from fnopt.curvature._batch_jacobian import BatchJacobian, batch_jacobian
from fnopt.curvature._diagonal import Estimate, ggn_diagonal, hessian_diagonal, trace_estimate
from fnopt.curvature._lanczos import Eigenpairs, top_eigenvalues
from fnopt.curvature._products import fisher_vp, ggn_vp, hvp

__all__ = [
    "BatchJacobian",
    "Eigenpairs",
    "Estimate",
    "batch_jacobian",
    "fisher_vp",
    "ggn_diagonal",
    "ggn_vp",
    "hessian_diagonal",
    "hvp",
    "top_eigenvalues",
    "trace_estimate",
]
