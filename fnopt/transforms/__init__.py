"""Transforms: gradients to updates, one idea each."""

from __future__ import annotations

from fnopt.transforms._accumulate import AccumulateState, accumulate, has_updated
from fnopt.transforms._apply_if_finite import ApplyIfFiniteState, apply_if_finite
from fnopt.transforms._basic import identity, scale, set_to_zero, stateless
from fnopt.transforms._chain import Chain, chain
from fnopt.transforms._clip import clip, clip_by_global_norm
from fnopt.transforms._freeze import freeze
from fnopt.transforms._learning_rate import ScaleByLearningRateState, scale_by_learning_rate
from fnopt.transforms._masked import MaskedState, masked
from fnopt.transforms._moments import as_dtype as as_dtype
from fnopt.transforms._moments import bias_correction as bias_correction
from fnopt.transforms._moments import ema as ema
from fnopt.transforms._moments import nonzero as nonzero
from fnopt.transforms._moments import root as root
from fnopt.transforms._moments import squared as squared
from fnopt.transforms._momentum import TraceState, trace
from fnopt.transforms._partition import partition
from fnopt.transforms._select import select
from fnopt.transforms._selectors import Labels, Selector, by_path, by_pattern
from fnopt.transforms._weight_decay import AddDecayedWeightsState, add_decayed_weights

__all__ = [
    "AccumulateState",
    "AddDecayedWeightsState",
    "ApplyIfFiniteState",
    "Chain",
    "Labels",
    "MaskedState",
    "ScaleByLearningRateState",
    "Selector",
    "TraceState",
    "accumulate",
    "add_decayed_weights",
    "apply_if_finite",
    "by_path",
    "by_pattern",
    "chain",
    "clip",
    "clip_by_global_norm",
    "freeze",
    "has_updated",
    "identity",
    "masked",
    "partition",
    "scale",
    "scale_by_learning_rate",
    "select",
    "set_to_zero",
    "stateless",
    "trace",
]
