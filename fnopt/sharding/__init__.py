"""Shardings: explicit meshes, device-varying arrays, collectives, and states sharded like params.

On a mesh with explicit axes, and inside `jax.shard_map`, the type of an array contains its
sharding. JAX then raises an error for an operation whose result could be sharded in several ways.
The functions of this package choose the sharding for the whole library. On other meshes, these
functions are equal to JAX's functions.
"""

from __future__ import annotations

from fnopt.sharding._collectives import (
    all_gather,
    all_gather_rows,
    all_gather_tree,
    any_row,
    check_axis_name,
    cond,
    local_rows,
    pmax_rows,
    psum,
    psum_rows,
    pvary_for,
    pvary_like,
    pvary_over_rows,
    row_axes,
    row_shards,
    rows_sharded_over,
    varying_axes,
    while_loop,
)
from fnopt.sharding._explicit import (
    axis_names,
    concatenate,
    explicit_spec,
    is_sharded,
    is_tracing,
    product_sharding,
    replicate,
    replicate_for_batch,
    reshape,
    reshard_like,
    reshard_to,
    sharded_full_like,
    use_mesh_of,
)
from fnopt.sharding._sequential import sequential, wait_for
from fnopt.sharding._shards import (
    SHARD_SUM,
    UnshardedLeaves,
    shard_axes,
    shards_over,
    sum_over_shards,
    unsharded_leaves,
)
from fnopt.sharding._state import (
    fits_param,
    is_on_explicit_mesh,
    is_on_mesh,
    match_params,
    place_state,
    step_with_divided_slots,
)

__all__ = [
    "concatenate",
    "cond",
    "explicit_spec",
    "is_sharded",
    "pvary_like",
    "replicate",
    "reshape",
    "reshard_like",
    "shard_axes",
    "sharded_full_like",
    "sum_over_shards",
    "varying_axes",
    "while_loop",
]
