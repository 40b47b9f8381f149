"""Arithmetic on arrays: dtypes, norms and roots without overflow, averages, rounding.

Names in `__all__` are public, for authors of transforms. All other names are internal to fnopt.
"""

from __future__ import annotations

from fnopt.numerics import _exponents as exponents
from fnopt.numerics._batching import ArrayStack, map_chunks, map_stacks, scan_chunks, stack_alike
from fnopt.numerics._dtypes import (
    broadcasts_to,
    compute_dtype,
    default_float,
    dtype_of,
    is_array_like,
    is_inexact,
    is_traced,
    real_dtype,
    safe_increment,
    shape_of,
    wide_dtype,
    zero_count,
)
from fnopt.numerics._moments import as_dtype, bias_correction, ema, mean_weights, positive_root
from fnopt.numerics._norms import (
    axis_norms,
    euclidean_norm,
    joint_norm,
    out_of_range,
    safe_norms,
)
from fnopt.numerics._numbers import (
    HIGHEST,
    add_epsilon,
    cast,
    clip_all_squarable,
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
    widen,
    zero_slope_at_zero,
)
from fnopt.numerics._rounding import (
    is_narrow,
    round_to_nearest,
    saturating_cast,
    stochastic_round,
    stochastic_round_leaves,
)

__all__ = [
    "as_dtype",
    "bias_correction",
    "compute_dtype",
    "ema",
    "nonzero",
    "positive_root",
    "real_dtype",
    "safe_increment",
    "saturating_cast",
    "squared_modulus",
    "stochastic_round",
    "zero_count",
]
