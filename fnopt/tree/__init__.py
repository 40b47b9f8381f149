"""Arithmetic on pytrees, and search and replacement of subtrees.

Import the package, not its names: `from fnopt import tree`, then `tree.sum(x)`.
"""

from __future__ import annotations

from fnopt.tree._arithmetic import (
    add,
    add_scale,
    clip,
    conj,
    div,
    mul,
    real,
    scale,
    sub,
    where,
)
from fnopt.tree._like import (
    batch_shape,
    cast,
    cast_like,
    dtype,
    full_like,
    ones_like,
    random_like,
    split_key_like,
    unwrap_random_key_data,
    zeros_like,
)
from fnopt.tree._moments import (
    bias_correction,
    update_infinity_moment,
    update_moment,
    update_moment_per_elem_norm,
)
from fnopt.tree._reduce import allclose, max, min, norm, size, sum, vdot
from fnopt.tree._restore import RestoreReport, restore
from fnopt.tree._search import NamedTupleKey, get, get_all_with_path, map_params, set

__all__ = [
    "NamedTupleKey",
    "RestoreReport",
    "add",
    "add_scale",
    "allclose",
    "batch_shape",
    "bias_correction",
    "cast",
    "cast_like",
    "clip",
    "conj",
    "div",
    "dtype",
    "full_like",
    "get",
    "get_all_with_path",
    "map_params",
    "max",
    "min",
    "mul",
    "norm",
    "ones_like",
    "random_like",
    "real",
    "restore",
    "scale",
    "set",
    "size",
    "split_key_like",
    "sub",
    "sum",
    "unwrap_random_key_data",
    "update_infinity_moment",
    "update_moment",
    "update_moment_per_elem_norm",
    "vdot",
    "where",
    "zeros_like",
]
