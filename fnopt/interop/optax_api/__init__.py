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
from fnopt.interop.optax_api._hyperparams import inject_hyperparams
from fnopt.interop.optax_api._multi_steps import MultiSteps
from fnopt.interop.optax_api._types import (
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
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
    "EmptyState",
    "GradientTransformation",
    "GradientTransformationExtraArgs",
    "MultiSteps",
    "add_noise",
    "freeze",
    "init_empty_state",
    "inject_hyperparams",
    "join_schedules",
    "masked",
    "measure_with_ema",
    "monitor",
    "multi_transform",
    "noisy_sgd",
    "partition",
    "scale_by_learning_rate",
    "scale_by_schedule",
    "selective_transform",
    "stateless_with_tree_map",
    "with_extra_args_support",
]


def __getattr__(name: str) -> Any:
    value = _names.find(name, __name__)
    globals()[name] = value  # found without this function the next time
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_names.known()})
