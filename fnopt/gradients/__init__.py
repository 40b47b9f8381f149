"""From a loss, params and a batch to gradients: one per example, weighted, clipped."""

from __future__ import annotations

from fnopt.gradients._aggregate import median_of_means, sign_agreement, trimmed_mean
from fnopt.gradients._between import grad_between, jacobian_between
from fnopt.gradients._capture import Captured, capture
from fnopt.gradients._check_sparsity import check_sparsity
from fnopt.gradients._clipped import ExampleInfo, clipped_grad
from fnopt.gradients._hardest import HardExamples, hardest_examples
from fnopt.gradients._independence import check_examples_independent
from fnopt.gradients._jacobian import jacobian
from fnopt.gradients._jacobian_operator import JacobianOperator
from fnopt.gradients._list_nodes import nodes
from fnopt.gradients._nodes import Node
from fnopt.gradients._noise import NoiseInfo, add_noise
from fnopt.gradients._noise_scale import noise_scale
from fnopt.gradients._norms import per_example_norms
from fnopt.gradients._patch import patch
from fnopt.gradients._per_example import per_example_grads, value_and_per_example_grads
from fnopt.gradients._per_example_jacobian import per_example_jacobian
from fnopt.gradients._poisson import PoissonBatch, poisson_batch
from fnopt.gradients._similarity import GradientSimilarity, gradient_similarity
from fnopt.gradients._sparse_jacobian import sparse_jacobian
from fnopt.gradients._sparsity_pattern import sparsity_pattern
from fnopt.gradients._statistics import GradientStatistics, gradient_statistics
from fnopt.gradients._tap import tap
from fnopt.gradients._weighted import value_and_weighted_grad, weighted_grad
from fnopt.gradients.ghost import GhostReport, ParamRule, Parity, ghost_parity, ghost_report

__all__ = [
    "Captured",
    "ExampleInfo",
    "GhostReport",
    "GradientSimilarity",
    "GradientStatistics",
    "HardExamples",
    "JacobianOperator",
    "Node",
    "NoiseInfo",
    "ParamRule",
    "Parity",
    "PoissonBatch",
    "add_noise",
    "capture",
    "check_examples_independent",
    "check_sparsity",
    "clipped_grad",
    "ghost_parity",
    "ghost_report",
    "grad_between",
    "gradient_similarity",
    "gradient_statistics",
    "hardest_examples",
    "jacobian",
    "jacobian_between",
    "median_of_means",
    "nodes",
    "noise_scale",
    "patch",
    "per_example_grads",
    "per_example_jacobian",
    "per_example_norms",
    "poisson_batch",
    "sign_agreement",
    "sparse_jacobian",
    "sparsity_pattern",
    "tap",
    "trimmed_mean",
    "value_and_per_example_grads",
    "value_and_weighted_grad",
    "weighted_grad",
]
