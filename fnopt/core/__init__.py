"""The contract: values, transformations, leaf-wise arithmetic, and ways to look inside."""

from __future__ import annotations

from fnopt.core import _exponents as exponents
from fnopt.core._abstract import is_abstract as is_abstract
from fnopt.core._abstract import zeros_for as zeros_for
from fnopt.core._apply import Params as Params
from fnopt.core._apply import apply_updates
from fnopt.core._apply import cast_like as cast_like
from fnopt.core._checks import BY_KEYWORD as BY_KEYWORD
from fnopt.core._checks import (
    check_batch,
    check_choice,
    check_clip_norm,
    check_count,
    check_key,
    check_number,
    check_params,
    check_some,
    check_tolerance,
    check_weights,
    checked_loss,
    described,
    folded,
)
from fnopt.core._checks import check_returned as check_returned
from fnopt.core._checks import is_whole as is_whole
from fnopt.core._checks import takes as takes
from fnopt.core._chunks import checked_chunk_size
from fnopt.core._chunks import scan_chunks as scan_chunks
from fnopt.core._config import from_config, to_config
from fnopt.core._counts import count_of as count_of
from fnopt.core._counts import first_count as first_count
from fnopt.core._counts import next_count as next_count
from fnopt.core._display import show_report as show_report
from fnopt.core._display import show_shapes as show_shapes
from fnopt.core._dtypes import (
    compute_dtype,
    default_float,
    increment,
    is_array_like,
    is_inexact,
    real_dtype,
    zero_count,
)
from fnopt.core._dtypes import dtype_of as dtype_of
from fnopt.core._errors import listing, place, where
from fnopt.core._extra_args import ANY as ANY
from fnopt.core._extra_args import EXTRA_ARGS
from fnopt.core._extra_args import as_value as as_value
from fnopt.core._extra_args import named_by as named_by
from fnopt.core._extra_args import names_taken as names_taken
from fnopt.core._follow import incremental_update, periodic_update
from fnopt.core._foreign import as_transformation, foreign
from fnopt.core._inspect import hyperparams, named, slot_names, slots, step_count
from fnopt.core._inspect import step_counts as step_counts
from fnopt.core._kinds import Kind as Kind
from fnopt.core._kinds import by_kind as by_kind
from fnopt.core._kinds import each_in_order as each_in_order
from fnopt.core._leafwise import Leafwise
from fnopt.core._leaves import check_inexact, check_same_tree, check_scalars, map_leaves
from fnopt.core._leaves import is_none as is_none
from fnopt.core._map_slots import map_slots as map_slots
from fnopt.core._missing_keys import missing_keys as missing_keys
from fnopt.core._moments import as_dtype, bias_correction, ema, positive_root
from fnopt.core._moments import mean_weights as mean_weights
from fnopt.core._norm import global_norm
from fnopt.core._numbers import clipped as clipped
from fnopt.core._numbers import divisor as divisor
from fnopt.core._numbers import flat_at_zero as flat_at_zero
from fnopt.core._numbers import is_known_zero as is_known_zero
from fnopt.core._numbers import joint_norm as joint_norm
from fnopt.core._numbers import nonzero, squared_modulus
from fnopt.core._numbers import norm_of_leaves as norm_of_leaves
from fnopt.core._numbers import norms_over as norms_over
from fnopt.core._numbers import out_of_range as out_of_range
from fnopt.core._numbers import over_length as over_length
from fnopt.core._numbers import power_of_two as power_of_two
from fnopt.core._numbers import product as product
from fnopt.core._numbers import quotient as quotient
from fnopt.core._numbers import root as root
from fnopt.core._numbers import safe_norms as safe_norms
from fnopt.core._numbers import squarable as squarable
from fnopt.core._numbers import sum_of_squares as sum_of_squares
from fnopt.core._numbers import with_epsilon as with_epsilon
from fnopt.core._one_example import of_one_example as of_one_example
from fnopt.core._optional import optional as optional
from fnopt.core._paths import leaf_paths, leaves_with_names, path_name, shown
from fnopt.core._patterns import matches
from fnopt.core._products import HIGHEST as HIGHEST
from fnopt.core._products import matmul as matmul
from fnopt.core._products import per_row as per_row
from fnopt.core._products import turned as turned
from fnopt.core._products import weighted_rows as weighted_rows
from fnopt.core._rounding import is_narrow as is_narrow
from fnopt.core._rounding import nearest as nearest
from fnopt.core._rounding import stochastic_leaves as stochastic_leaves
from fnopt.core._rounding import stochastic_round
from fnopt.core._rows import Rows
from fnopt.core._rows import is_rows as is_rows
from fnopt.core._slots import OwnSlot, RealSlot, Slot, slot_zeros
from fnopt.core._slots import Tally as Tally
from fnopt.core._slots import declared_slots as declared_slots
from fnopt.core._slots import own_slots as own_slots
from fnopt.core._slots import slot_copy as slot_copy
from fnopt.core._slots import stored_after as stored_after
from fnopt.core._static import static
from fnopt.core._status import Status, is_converged
from fnopt.core._status import messages as messages
from fnopt.core._transformation import (
    EmptyState,
    Member,
    Transformation,
    check_state,
)
from fnopt.core._transformation import is_wide as is_wide
from fnopt.core._translated import translated as translated
from fnopt.core._unknown import advice as advice
from fnopt.core._value import (
    Scalar,
    ScalarOrSchedule,
    Schedule,
    Value,
    as_number,
    call_text,
    config_name,
    hyper,
    registry,
)
from fnopt.core._value import is_negative as is_negative
from fnopt.core._written_for_jax import written_for_jax as written_for_jax
from fnopt.core._wrong_arguments import wrong_arguments as wrong_arguments

__all__ = [
    "EXTRA_ARGS",
    "EmptyState",
    "Leafwise",
    "Member",
    "OwnSlot",
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
    "as_number",
    "as_transformation",
    "bias_correction",
    "call_text",
    "check_batch",
    "check_choice",
    "check_clip_norm",
    "check_count",
    "check_inexact",
    "check_key",
    "check_number",
    "check_params",
    "check_same_tree",
    "check_scalars",
    "check_some",
    "check_state",
    "check_tolerance",
    "check_weights",
    "checked_chunk_size",
    "checked_loss",
    "compute_dtype",
    "config_name",
    "default_float",
    "described",
    "ema",
    "exponents",
    "folded",
    "foreign",
    "from_config",
    "global_norm",
    "hyper",
    "hyperparams",
    "increment",
    "incremental_update",
    "is_array_like",
    "is_converged",
    "is_inexact",
    "leaf_paths",
    "leaves_with_names",
    "listing",
    "map_leaves",
    "matches",
    "named",
    "nonzero",
    "path_name",
    "periodic_update",
    "place",
    "positive_root",
    "real_dtype",
    "registry",
    "shown",
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
