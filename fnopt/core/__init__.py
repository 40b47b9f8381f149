"""The contract: values, transformations, leaf-wise arithmetic, and inspection of states.

Names in `__all__` are public, for authors of transforms. All other names are internal to fnopt.
"""

from __future__ import annotations

from fnopt.core import _exponents as exponents
from fnopt.core._abstract import (
    compute_dtype,
    default_float,
    dtype_of,
    is_abstract,
    is_array_like,
    is_inexact,
    real_dtype,
    safe_increment,
    zero_count,
    zeros_for,
)
from fnopt.core._apply import Params, apply_updates, cast_like
from fnopt.core._batching import (
    ArrayStack,
    check_chunk_size,
    map_chunks,
    map_stacks,
    scan_chunks,
    stack_alike,
)
from fnopt.core._checks import (
    accepts_args,
    check_batch,
    check_choice,
    check_count,
    check_key,
    check_number,
    check_params,
    check_returned,
    check_tolerance,
    is_integer,
    type_text,
)
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
from fnopt.core._leaves import check_inexact, check_same_tree, check_scalars, is_none, map_leaves
from fnopt.core._leaves import select_tree as select_tree
from fnopt.core._moments import (
    as_dtype,
    bias_correction,
    ema,
    incremental_update,
    mean_weights,
    periodic_update,
    positive_root,
)
from fnopt.core._norms import (
    axis_norms,
    global_norm,
    joint_norm,
    out_of_range,
    safe_norms,
)
from fnopt.core._numbers import (
    HIGHEST,
    add_epsilon,
    clip_squarable,
    floor_power_of_two,
    is_static_zero,
    materialized_transpose,
    matmul,
    nonzero,
    per_row,
    range_divisor,
    safe_divide,
    safe_sqrt,
    squared_modulus,
    sum_of_squares,
    zero_slope_at_zero,
)
from fnopt.core._other_libraries import deprecated_names, missing_attribute, wrong_arguments
from fnopt.core._paths import leaf_paths, leaf_text, leaves_with_names, matches, path_name
from fnopt.core._rounding import (
    is_narrow,
    round_to_nearest,
    stochastic_round,
    stochastic_round_leaves,
)
from fnopt.core._rows import Rows, is_rows
from fnopt.core._slots import (
    CustomSlot,
    EventCount,
    RealSlot,
    Slot,
    count_of,
    custom_slots,
    declared_slots,
    first_count,
    next_count,
    slot_copy,
    slot_zeros,
)
from fnopt.core._static import static
from fnopt.core._status import Status, is_converged, status_messages
from fnopt.core._text import (
    error_scope,
    import_optional,
    names_text,
    show_report,
    show_shapes,
    table_lines,
    where,
)
from fnopt.core._transformation import EmptyState, Member, Transformation, is_wide
from fnopt.core._users_functions import (
    NotForJaxError,
    explain_example_errors,
    explain_jax_errors,
    explain_missing_keys,
)
from fnopt.core._value import (
    Scalar,
    ScalarOrSchedule,
    Schedule,
    Value,
    as_number,
    call_text,
    hyper,
)

# Old names, which warn.
_RENAMED = {
    "OwnSlot": "CustomSlot",
    "check_clip_norm": "fnopt.gradients._loss.check_clip_norm",
    "check_some": "fnopt.gradients._loss.check_not_empty",
    "check_weights": "fnopt.gradients._loss.check_weights",
    "checked_chunk_size": "check_chunk_size",
    "checked_loss": "fnopt.gradients._loss.check_example_loss",
    "described": "type_text",
    "folded": "fnopt.gradients._loss.fold_in_step",
    "foreign": "from_pair",
    "increment": "safe_increment",
    "listing": "names_text",
    "place": "error_scope",
    "shown": "leaf_text",
}


__getattr__ = deprecated_names(__name__, _RENAMED)

__all__ = [
    "EXTRA_ARGS",
    "CustomSlot",
    "EmptyState",
    "Leafwise",
    "Member",
    "NotForJaxError",
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
    "as_dtype",
    "as_transformation",
    "bias_correction",
    "check_inexact",
    "check_same_tree",
    "compute_dtype",
    "ema",
    "exponents",
    "from_config",
    "from_pair",
    "global_norm",
    "hyper",
    "hyperparams",
    "incremental_update",
    "is_converged",
    "leaf_paths",
    "leaves_with_names",
    "map_leaves",
    "matches",
    "missing_attribute",
    "named",
    "nonzero",
    "periodic_update",
    "positive_root",
    "real_dtype",
    "safe_increment",
    "slot_names",
    "slot_zeros",
    "slots",
    "squared_modulus",
    "static",
    "step_count",
    "stochastic_round",
    "to_config",
    "where",
    "zero_count",
]
