"""Shardings: explicit meshes, device-varying arrays, collectives, and states placed like params.

The types of arrays on a mesh with explicit axes, and inside `jax.shard_map`, say how they are
sharded, and JAX refuses an operation whose result could be sharded in several ways. The functions
here make these choices for the whole library. Elsewhere they are the functions of JAX.
"""

from __future__ import annotations

from fnopt.sharding._collectives import all_gather as all_gather
from fnopt.sharding._collectives import all_gather_rows as all_gather_rows
from fnopt.sharding._collectives import all_gather_tree as all_gather_tree
from fnopt.sharding._collectives import any_row as any_row
from fnopt.sharding._collectives import check_axis_name as check_axis_name
from fnopt.sharding._collectives import local_rows as local_rows
from fnopt.sharding._collectives import pmax_rows as pmax_rows
from fnopt.sharding._collectives import psum as psum
from fnopt.sharding._collectives import psum_rows as psum_rows
from fnopt.sharding._collectives import pvary_over_rows as pvary_over_rows
from fnopt.sharding._collectives import row_axes as row_axes
from fnopt.sharding._collectives import row_shards as row_shards
from fnopt.sharding._collectives import rows_sharded_over as rows_sharded_over
from fnopt.sharding._explicit import (
    concatenate,
    explicit_spec,
    is_sharded,
    replicate,
    reshape,
    reshard_like,
    sharded_full_like,
)
from fnopt.sharding._explicit import is_tracing as is_tracing
from fnopt.sharding._explicit import product_sharding as product_sharding
from fnopt.sharding._explicit import replicate_for_batch as replicate_for_batch
from fnopt.sharding._explicit import reshard_to as reshard_to
from fnopt.sharding._explicit import use_mesh_of as use_mesh_of
from fnopt.sharding._loops import cond, while_loop
from fnopt.sharding._loops import pvary_for as pvary_for
from fnopt.sharding._sequential import sequential as sequential
from fnopt.sharding._sequential import wait_for as wait_for
from fnopt.sharding._shards import SHARD_SUM as SHARD_SUM
from fnopt.sharding._shards import UnshardedLeaves as UnshardedLeaves
from fnopt.sharding._shards import shard_axes, sum_over_shards
from fnopt.sharding._shards import shards_over as shards_over
from fnopt.sharding._shards import unsharded_leaves as unsharded_leaves
from fnopt.sharding._state import fits_param as fits_param
from fnopt.sharding._state import is_on_explicit_mesh as is_on_explicit_mesh
from fnopt.sharding._state import match_params as match_params
from fnopt.sharding._state import place_state as place_state
from fnopt.sharding._state import reshard_leaves_like as reshard_leaves_like
from fnopt.sharding._state import step_despite_types as step_despite_types
from fnopt.sharding._varying import match_mesh as match_mesh
from fnopt.sharding._varying import pvary_like, varying_axes

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
