"""The contract: values, transformations, leaf-wise arithmetic, and ways to look inside."""

from fnopt.core import _exponents as exponents
from fnopt.core import _jaxpr as jaxprs
from fnopt.core._apply import apply_updates
from fnopt.core._closure import opened
from fnopt.core._colouring import Sparsity
from fnopt.core._compiled import call_compiled, fresh, runs_now
from fnopt.core._config import from_config, to_config
from fnopt.core._dtypes import (
    compute_dtype,
    default_float,
    increment,
    is_inexact,
    real_dtype,
    zero_count,
)
from fnopt.core._errors import listing, place, where
from fnopt.core._inspect import Slot, hyperparams, named, slot_names, slots
from fnopt.core._jacobian import at_once, in_chunks, jacobian_mode, value_and_jacobian
from fnopt.core._leaves import check_inexact, check_same_tree, map_leaves, slot_zeros
from fnopt.core._norm import global_norm
from fnopt.core._paths import leaf_paths, leaves_with_names, path_name, shown
from fnopt.core._ravel import ravel
from fnopt.core._real_vector import RealVector, real_vector
from fnopt.core._recorded import Recorded, call_recorded, is_data, recorded
from fnopt.core._sparse_jacobian import SparseJacobian
from fnopt.core._status import Status, is_converged
from fnopt.core._transformation import (
    EmptyState,
    Member,
    Transformation,
    as_transformation,
    check_state,
    foreign,
)
from fnopt.core._value import (
    Scalar,
    ScalarOrSchedule,
    Schedule,
    Value,
    as_number,
    call_text,
    hyper,
    registry,
    static,
)

__all__ = [
    "EmptyState",
    "Member",
    "RealVector",
    "Recorded",
    "Scalar",
    "ScalarOrSchedule",
    "Schedule",
    "Slot",
    "SparseJacobian",
    "Sparsity",
    "Status",
    "Transformation",
    "Value",
    "apply_updates",
    "as_number",
    "as_transformation",
    "at_once",
    "call_compiled",
    "call_recorded",
    "call_text",
    "check_inexact",
    "check_same_tree",
    "check_state",
    "compute_dtype",
    "default_float",
    "exponents",
    "foreign",
    "fresh",
    "from_config",
    "global_norm",
    "hyper",
    "hyperparams",
    "in_chunks",
    "increment",
    "is_converged",
    "is_data",
    "is_inexact",
    "jacobian_mode",
    "jaxprs",
    "leaf_paths",
    "leaves_with_names",
    "listing",
    "map_leaves",
    "named",
    "opened",
    "path_name",
    "place",
    "ravel",
    "real_dtype",
    "real_vector",
    "recorded",
    "registry",
    "runs_now",
    "shown",
    "slot_names",
    "slot_zeros",
    "slots",
    "static",
    "to_config",
    "value_and_jacobian",
    "where",
    "zero_count",
]
