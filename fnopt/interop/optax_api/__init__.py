"""optax's names with optax's signatures, for scripts in which only the import is changed.

    from fnopt.interop import optax_api as optax

Rates and decays may be functions of the step, and masks and labels may be functions of the params.
`MultiSteps`, `inject_hyperparams`, `multi_transform` and `freeze(mask)` have optax's signatures.
The functions return fnopt optimizers and don't need an installation of optax. A name without a
counterpart raises an AttributeError that suggests an alternative.
"""

from __future__ import annotations

import sys
from typing import Any

from fnopt.interop.optax_api import _names
from fnopt.interop.optax_api._functions import (
    global_norm,
    multi_normal,
    nnls,
    safe_increment,
    safe_norm,
    safe_root_mean_squares,
)
from fnopt.interop.optax_api._hyperparams import (
    InjectHyperparamsState,
    InjectStatefulHyperparamsState,
    inject_hyperparams,
)
from fnopt.interop.optax_api._lookahead import LookaheadParams, LookaheadState, lookahead
from fnopt.interop.optax_api._micro import (
    Accumulator,
    micro_grad,
    micro_vmap,
    microbatch,
    reshape_batch_axis,
)
from fnopt.interop.optax_api._monitor import (
    MonitorState,
    SnapshotState,
    measure_with_ema,
    monitor,
    snapshot,
)
from fnopt.interop.optax_api._multi_steps import MultiSteps, skip_large_updates, skip_not_finite
from fnopt.interop.optax_api._muon import muon, scale_by_muon
from fnopt.interop.optax_api._per_example import (
    DifferentiallyPrivateAggregateState,
    differentially_private_aggregate,
    dpsgd,
    per_example_global_norm_clip,
    per_example_layer_norm_clip,
)
from fnopt.interop.optax_api._restated import (
    MechanicState,
    MultiStepsState,
    PartitionState,
    SAMState,
    ScheduleFreeState,
    schedule_free_eval_params,
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
    StatefulSchedule,
    WrappedSchedule,
    add_noise,
    centralize,
    freeze,
    join_schedules,
    masked,
    nadam,
    nadamw,
    noisy_sgd,
    partition,
    scale_by_backtracking_linesearch,
    scale_by_learning_rate,
    scale_by_schedule,
    scale_by_zoom_linesearch,
    selective_transform,
    stateless_with_tree_map,
)

multi_transform = partition
safe_int32_increment = safe_increment
MultiTransformState = PartitionState
inject_stateful_hyperparams = inject_hyperparams
# The version of optax whose names are available.
__version__ = "0.2.8"

__all__ = [
    "AccumulationType",
    "Accumulator",
    "DifferentiallyPrivateAggregateState",
    "EmptyState",
    "GradientTransformation",
    "GradientTransformationExtraArgs",
    "InjectHyperparamsState",
    "InjectStatefulHyperparamsState",
    "LookaheadParams",
    "LookaheadState",
    "MaskedNode",
    "MechanicState",
    "MonitorState",
    "MultiSteps",
    "MultiStepsState",
    "MultiTransformState",
    "PartitionState",
    "SAMState",
    "ScheduleFreeState",
    "SnapshotState",
    "StatefulSchedule",
    "WrappedSchedule",
    "add_noise",
    "centralize",
    "differentially_private_aggregate",
    "dpsgd",
    "freeze",
    "global_norm",
    "init_empty_state",
    "inject_hyperparams",
    "inject_stateful_hyperparams",
    "join_schedules",
    "lookahead",
    "masked",
    "measure_with_ema",
    "micro_grad",
    "micro_vmap",
    "microbatch",
    "monitor",
    "multi_normal",
    "multi_transform",
    "muon",
    "nadam",
    "nadamw",
    "nnls",
    "noisy_sgd",
    "partition",
    "per_example_global_norm_clip",
    "per_example_layer_norm_clip",
    "reshape_batch_axis",
    "safe_increment",
    "safe_int32_increment",
    "safe_norm",
    "safe_root_mean_squares",
    "scale_by_backtracking_linesearch",
    "scale_by_learning_rate",
    "scale_by_muon",
    "scale_by_schedule",
    "scale_by_zoom_linesearch",
    "schedule_free_eval_params",
    "selective_transform",
    "skip_large_updates",
    "skip_not_finite",
    "snapshot",
    "stateless_with_tree_map",
    "with_extra_args_support",
]


# Submodules for imports such as `from fnopt.interop.optax_api.contrib import muon`.
for _name, _space in _names.namespaces(__name__).items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _space


def __getattr__(name: str) -> Any:
    value = _names.find(name, __name__)
    globals()[name] = value  # the next lookup doesn't call this function
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_names.names()})
