"""Per-example, weighted and clipped gradients of a batch, and their statistics."""

from __future__ import annotations

from fnopt.gradients._aggregate import median_of_means, sign_agreement, trimmed_mean
from fnopt.gradients._clip_rule import clip_factors as clip_factors
from fnopt.gradients._clipped import ExampleInfo, clipped_grad
from fnopt.gradients._hardest import HardExamples, hardest_examples
from fnopt.gradients._independence import check_examples_independent
from fnopt.gradients._loss import BoundLoss as BoundLoss
from fnopt.gradients._loss import check_example_loss as check_example_loss
from fnopt.gradients._microbatch import micro_vmap, microbatch
from fnopt.gradients._noise import NoiseInfo, PoissonBatch, add_noise, poisson_batch, sensitivity
from fnopt.gradients._per_example import (
    per_example_grads,
    per_example_norms,
    value_and_per_example_grads,
)
from fnopt.gradients._similarity import GradientSimilarity, gradient_similarity
from fnopt.gradients._sparse_rows import sparse_value_and_grad
from fnopt.gradients._statistics import GradientStatistics, gradient_statistics, noise_scale
from fnopt.gradients._strategy import gradient_bytes as gradient_bytes
from fnopt.gradients._sums import weighted_total as weighted_total
from fnopt.gradients._weighted import scale_gradient, value_and_weighted_grad, weighted_grad
from fnopt.gradients.ghost._report import GhostReport, ParamRule, ghost_report

__all__ = [
    "ExampleInfo",
    "GhostReport",
    "GradientSimilarity",
    "GradientStatistics",
    "HardExamples",
    "NoiseInfo",
    "ParamRule",
    "PoissonBatch",
    "add_noise",
    "check_examples_independent",
    "clipped_grad",
    "ghost_report",
    "gradient_similarity",
    "gradient_statistics",
    "hardest_examples",
    "median_of_means",
    "micro_vmap",
    "microbatch",
    "noise_scale",
    "per_example_grads",
    "per_example_norms",
    "poisson_batch",
    "scale_gradient",
    "sensitivity",
    "sign_agreement",
    "sparse_value_and_grad",
    "trimmed_mean",
    "value_and_per_example_grads",
    "value_and_weighted_grad",
    "weighted_grad",
]
