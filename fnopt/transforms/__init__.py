"""Gradient transforms, the building blocks of optimizers."""

from __future__ import annotations

from fnopt.transforms import states as states
from fnopt.transforms._accumulate import accumulate, apply_every, has_updated
from fnopt.transforms._adaptive_scale import dynamic_loss_scale, loss_scale, reduce_on_plateau
from fnopt.transforms._average_params import averaged_params, lookahead, params_ema, params_mean
from fnopt.transforms._basic import (
    centralize,
    identity,
    normalize_by_update_norm,
    scale,
    scale_by_learning_rate,
    scale_by_schedule,
    scale_by_sign,
    scale_by_trust_ratio,
    set_to_zero,
    stateless,
)
from fnopt.transforms._block_codes import SIGNED as SIGNED
from fnopt.transforms._block_codes import decode as decode
from fnopt.transforms._block_codes import encode as encode
from fnopt.transforms._chain import Chain, chain, strict
from fnopt.transforms._chain import Wrapper as Wrapper
from fnopt.transforms._clip import (
    adaptive_grad_clip,
    clip,
    clip_by_block_rms,
    clip_by_global_norm,
    scale_by_param_block_norm,
    scale_by_param_block_rms,
)
from fnopt.transforms._clip import clipped_rms as clipped_rms
from fnopt.transforms._clip import rms as rms
from fnopt.transforms._conditionally import all_finite as all_finite
from fnopt.transforms._conditionally import (
    apply_if_finite,
    conditionally_mask,
    conditionally_transform,
    keep_params_nonnegative,
    skip_large_updates,
    zero_nans,
)
from fnopt.transforms._flatten import flatten, split_real_and_imaginary
from fnopt.transforms._gradient_noise import add_gradient_noise
from fnopt.transforms._groups import layer_decay, param_groups, scale_by_group
from fnopt.transforms._layered_step import layered_step
from fnopt.transforms._learned_rate import (
    hypergradient,
    mechanize,
    scale_by_distance_over_gradients,
)
from fnopt.transforms._line_search import LinePoint as LinePoint
from fnopt.transforms._line_search import LineSearch as LineSearch
from fnopt.transforms._line_search import LineSearchCriteria as LineSearchCriteria
from fnopt.transforms._line_search import advance_search as advance_search
from fnopt.transforms._line_search import find_values_and_grads as find_values_and_grads
from fnopt.transforms._line_search import next_rate as next_rate
from fnopt.transforms._line_search import start_search as start_search
from fnopt.transforms._line_search import value_and_grad_from_state
from fnopt.transforms._linesearch_transforms import (
    scale_by_backtracking_linesearch,
    scale_by_zoom_linesearch,
)
from fnopt.transforms._masked import freeze, masked, partition
from fnopt.transforms._momentum import ema, grokfast, reduce_variance, trace
from fnopt.transforms._narrow_params import kahan, master_copy, master_params, stochastic_rounding
from fnopt.transforms._packed import packed
from fnopt.transforms._quantized_state import quantized_state
from fnopt.transforms._sam import sam
from fnopt.transforms._schedule_free import schedule_free, schedule_free_eval_params
from fnopt.transforms._select import Labels, Selector, by_path, by_pattern, select
from fnopt.transforms._select import as_labels as as_labels
from fnopt.transforms._sparse_rows import sparse_rows
from fnopt.transforms._stored_slots import is_coded as is_coded
from fnopt.transforms._stored_slots import offloaded, precision_policy
from fnopt.transforms._tree_algebra import inner as inner
from fnopt.transforms._tree_algebra import larger_estimate as larger_estimate
from fnopt.transforms._tree_algebra import numbers as numbers
from fnopt.transforms._tree_algebra import real_dtype_of as real_dtype_of
from fnopt.transforms._tree_algebra import real_sum as real_sum
from fnopt.transforms._weight_decay import (
    add_decayed_weights,
    cautious,
    cautious_weight_decay,
    decay_to_anchor,
    independent_weight_decay,
)

__all__ = [
    "Chain",
    "Labels",
    "Selector",
    "accumulate",
    "adaptive_grad_clip",
    "add_decayed_weights",
    "add_gradient_noise",
    "apply_every",
    "apply_if_finite",
    "averaged_params",
    "by_path",
    "by_pattern",
    "cautious",
    "cautious_weight_decay",
    "centralize",
    "chain",
    "clip",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "conditionally_mask",
    "conditionally_transform",
    "decay_to_anchor",
    "dynamic_loss_scale",
    "ema",
    "flatten",
    "freeze",
    "grokfast",
    "has_updated",
    "hypergradient",
    "identity",
    "independent_weight_decay",
    "kahan",
    "keep_params_nonnegative",
    "layer_decay",
    "layered_step",
    "lookahead",
    "loss_scale",
    "masked",
    "master_copy",
    "master_params",
    "mechanize",
    "normalize_by_update_norm",
    "offloaded",
    "packed",
    "param_groups",
    "params_ema",
    "params_mean",
    "partition",
    "precision_policy",
    "quantized_state",
    "reduce_on_plateau",
    "reduce_variance",
    "sam",
    "scale",
    "scale_by_backtracking_linesearch",
    "scale_by_distance_over_gradients",
    "scale_by_group",
    "scale_by_learning_rate",
    "scale_by_param_block_norm",
    "scale_by_param_block_rms",
    "scale_by_schedule",
    "scale_by_sign",
    "scale_by_trust_ratio",
    "scale_by_zoom_linesearch",
    "schedule_free",
    "schedule_free_eval_params",
    "select",
    "set_to_zero",
    "skip_large_updates",
    "sparse_rows",
    "split_real_and_imaginary",
    "stateless",
    "stochastic_rounding",
    "strict",
    "trace",
    "value_and_grad_from_state",
    "zero_nans",
]
