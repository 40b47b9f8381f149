"""Transforms: what optimizers are composed with, one idea each."""

from __future__ import annotations

from fnopt.transforms import states as states
from fnopt.transforms._accumulate import accumulate, has_updated
from fnopt.transforms._apply_if_finite import apply_if_finite
from fnopt.transforms._backtracking_linesearch import scale_by_backtracking_linesearch
from fnopt.transforms._basic import identity, scale, set_to_zero, stateless
from fnopt.transforms._centralize import centralize
from fnopt.transforms._chain import Chain, chain
from fnopt.transforms._clip import clip, clip_by_global_norm
from fnopt.transforms._constraints import keep_params_nonnegative, zero_nans
from fnopt.transforms._ema import ema
from fnopt.transforms._freeze import freeze
from fnopt.transforms._learning_rate import scale_by_learning_rate
from fnopt.transforms._masked import masked
from fnopt.transforms._momentum import trace
from fnopt.transforms._objective import find_kept as find_kept
from fnopt.transforms._objective import value_and_grad_from_state
from fnopt.transforms._partition import partition
from fnopt.transforms._select import select
from fnopt.transforms._selectors import Labels, Selector, by_path, by_pattern
from fnopt.transforms._sign import scale_by_sign
from fnopt.transforms._tree_algebra import inner as inner
from fnopt.transforms._tree_algebra import real_dtype_of as real_dtype_of
from fnopt.transforms._trust_ratio import scale_by_trust_ratio
from fnopt.transforms._weight_decay import add_decayed_weights
from fnopt.transforms._zoom_linesearch import scale_by_zoom_linesearch

__all__ = [
    "Chain",
    "Labels",
    "Selector",
    "accumulate",
    "add_decayed_weights",
    "apply_if_finite",
    "by_path",
    "by_pattern",
    "centralize",
    "chain",
    "clip",
    "clip_by_global_norm",
    "ema",
    "freeze",
    "has_updated",
    "identity",
    "keep_params_nonnegative",
    "masked",
    "partition",
    "scale",
    "scale_by_backtracking_linesearch",
    "scale_by_learning_rate",
    "scale_by_sign",
    "scale_by_trust_ratio",
    "scale_by_zoom_linesearch",
    "select",
    "set_to_zero",
    "stateless",
    "trace",
    "value_and_grad_from_state",
    "zero_nans",
]
