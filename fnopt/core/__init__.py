"""Base classes of values and transformations, leaf-wise arithmetic, and inspection of states.

Names in `__all__` are public, for authors of transforms. All other names are internal to fnopt.
Checks and messages are in `fnopt.errors`; arithmetic on arrays is in `fnopt.numerics`.
"""

from __future__ import annotations

from fnopt.core._apply import Params, apply_updates, cast_like
from fnopt.core._config import from_config, to_config
from fnopt.core._extra_args import (
    ANY,
    EXTRA_ARGS,
    extra_arg_names,
    parameter_names,
    scalar_loss,
    translate_extra_args,
)
from fnopt.core._foreign import as_transformation, from_pair
from fnopt.core._inspect import (
    hyperparams,
    map_slots,
    named,
    slot_names,
    slots,
    step_count,
    step_counts,
)
from fnopt.core._leafwise import Leafwise
from fnopt.core._leaves import (
    check_same_tree,
    check_scalars,
    global_norm,
    incremental_update,
    is_none,
    map_leaves,
    periodic_update,
    select_tree,
)
from fnopt.core._rows import Rows, is_rows
from fnopt.core._slots import (
    CustomSlot,
    EventCount,
    RealSlot,
    Slot,
    abstract_to_zeros,
    count_of,
    custom_slots,
    declared_slots,
    first_count,
    is_abstract,
    next_count,
    slot_copy,
    slot_zeros,
)
from fnopt.core._static import static
from fnopt.core._status import Status, is_converged, status_messages
from fnopt.core._transformation import EmptyState, Member, Transformation, is_wide
from fnopt.core._value import (
    Scalar,
    ScalarOrSchedule,
    Schedule,
    Value,
    as_number,
    call_text,
    hyper,
)
from fnopt.errors import deprecated_names

# Deprecated names; access to them warns.
_MOVED = {
    "errors": (
        *("NotForJaxError", "check_inexact", "leaf_paths", "leaves_with_names", "matches"),
        *("missing_attribute", "where"),
    ),
    "numerics": (
        *("as_dtype", "bias_correction", "compute_dtype", "ema", "exponents", "nonzero"),
        *("positive_root", "real_dtype", "safe_increment", "squared_modulus"),
        *("stochastic_round", "zero_count"),
    ),
}
_RENAMED = {
    "OwnSlot": "CustomSlot",
    "check_clip_norm": "fnopt.gradients._loss.check_clip_norm",
    "check_some": "fnopt.gradients._loss.check_not_empty",
    "check_weights": "fnopt.gradients._loss.check_weights",
    "checked_chunk_size": "fnopt.errors.check_chunk_size",
    "checked_loss": "fnopt.gradients._loss.check_example_loss",
    "described": "fnopt.errors.type_text",
    "folded": "fnopt.gradients._loss.fold_in_step",
    "foreign": "from_pair",
    "increment": "fnopt.numerics.safe_increment",
    "listing": "fnopt.errors.names_text",
    "place": "fnopt.errors.error_scope",
    "shown": "fnopt.errors.leaf_text",
    **{name: f"fnopt.{room}.{name}" for room, names in _MOVED.items() for name in names},
}


__getattr__ = deprecated_names(__name__, _RENAMED)

__all__ = [
    "EXTRA_ARGS",
    "CustomSlot",
    "EmptyState",
    "Leafwise",
    "Member",
    "RealSlot",
    "Rows",
    "Scalar",
    "ScalarOrSchedule",
    "Schedule",
    "Slot",
    "Status",
    "Transformation",
    "Value",
    "apply_updates",
    "as_transformation",
    "check_same_tree",
    "from_config",
    "from_pair",
    "global_norm",
    "hyper",
    "hyperparams",
    "incremental_update",
    "is_converged",
    "map_leaves",
    "named",
    "periodic_update",
    "slot_names",
    "slot_zeros",
    "slots",
    "static",
    "step_count",
    "to_config",
]
