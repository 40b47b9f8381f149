"""optax's names with optax's conventions, made of fnopt's parts: a script moves by one line.

    from fnopt.interop import optax_api as optax

Rates, decays and masks may be plain functions, labels may be a function of the params, and
`MultiSteps`, `inject_hyperparams`, `multi_transform` and `freeze(mask)` are called as there. What
comes out are fnopt optimizers. optax itself is not needed. A name that has no counterpart raises an
AttributeError that says what to use.
"""

from __future__ import annotations

from typing import Any

from fnopt.interop.optax_api import _names
from fnopt.interop.optax_api._hyperparams import InjectHyperparamsState, inject_hyperparams
from fnopt.interop.optax_api._lookahead import LookaheadParams, LookaheadState, lookahead
from fnopt.interop.optax_api._multi_steps import MultiSteps, skip_large_updates, skip_not_finite
from fnopt.interop.optax_api._norms import safe_norm, safe_root_mean_squares
from fnopt.interop.optax_api._per_example import (
    DifferentiallyPrivateAggregateState,
    differentially_private_aggregate,
    dpsgd,
    per_example_global_norm_clip,
    per_example_layer_norm_clip,
)
from fnopt.interop.optax_api._types import (
    AccumulationType,
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskedNode,
    init_empty_state,
    with_extra_args_support,
)
from fnopt.interop.optax_api._wrappers import (
    add_noise,
    freeze,
    join_schedules,
    masked,
    measure_with_ema,
    monitor,
    noisy_sgd,
    partition,
    scale_by_learning_rate,
    scale_by_schedule,
    selective_transform,
    stateless_with_tree_map,
)

multi_transform = partition

__all__ = [
    "AccumulationType",
    "DifferentiallyPrivateAggregateState",
    "EmptyState",
    "GradientTransformation",
    "GradientTransformationExtraArgs",
    "InjectHyperparamsState",
    "LookaheadParams",
    "LookaheadState",
    "MaskedNode",
    "MultiSteps",
    "add_noise",
    "differentially_private_aggregate",
    "dpsgd",
    "freeze",
    "init_empty_state",
    "inject_hyperparams",
    "join_schedules",
    "lookahead",
    "masked",
    "measure_with_ema",
    "monitor",
    "multi_transform",
    "noisy_sgd",
    "partition",
    "per_example_global_norm_clip",
    "per_example_layer_norm_clip",
    "safe_norm",
    "safe_root_mean_squares",
    "scale_by_learning_rate",
    "scale_by_schedule",
    "selective_transform",
    "skip_large_updates",
    "skip_not_finite",
    "stateless_with_tree_map",
    "with_extra_args_support",
]


def __getattr__(name: str) -> Any:
    value = _names.find(name, __name__)
    globals()[name] = value  # found without this function the next time
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_names.known()})
