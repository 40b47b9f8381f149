"""From a loss, params and a batch to gradients: one per example, weighted, clipped."""

from __future__ import annotations

from fnopt.gradients._clipped import ExampleInfo, clipped_grad
from fnopt.gradients._norms import per_example_norms
from fnopt.gradients._per_example import per_example_grads, value_and_per_example_grads
from fnopt.gradients._weighted import value_and_weighted_grad, weighted_grad

__all__ = [
    "ExampleInfo",
    "clipped_grad",
    "per_example_grads",
    "per_example_norms",
    "value_and_per_example_grads",
    "value_and_weighted_grad",
    "weighted_grad",
]
