"""Checks of arguments, and error messages that name the value, the leaf and the transform.

Names in `__all__` are public, for authors of transforms. All other names are internal to fnopt.
"""

from __future__ import annotations

from fnopt.errors._checks import (
    EQUINOX_FILTER,
    accepts_args,
    check_batch,
    check_choice,
    check_chunk_size,
    check_count,
    check_function,
    check_inexact,
    check_key,
    check_number,
    check_params,
    check_returned,
    check_tolerance,
    is_integer,
)
from fnopt.errors._other_libraries import (
    advice_for_attribute,
    deprecated_names,
    missing_attribute,
    wrong_arguments,
)
from fnopt.errors._paths import (
    differences,
    leaf_paths,
    leaf_text,
    leaves_with_names,
    matches,
    path_name,
    unboxed,
)
from fnopt.errors._text import (
    count_text,
    error_scope,
    import_optional,
    names_text,
    show_report,
    show_shapes,
    table_lines,
    type_text,
    where,
)
from fnopt.errors._users_functions import (
    NotForJaxError,
    explain_device_errors,
    explain_example_errors,
    explain_jax_errors,
    explain_missing_keys,
)

__all__ = [
    "NotForJaxError",
    "check_inexact",
    "leaf_paths",
    "leaves_with_names",
    "matches",
    "missing_attribute",
    "where",
]
