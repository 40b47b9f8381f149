"""Transforms: gradients to updates, one idea each."""

from fnopt.transforms._accumulate import AccumulateState, accumulate, has_updated
from fnopt.transforms._adagrad import ScaleByRssState, scale_by_rss
from fnopt.transforms._adam import ScaleByAdamState, scale_by_adam
from fnopt.transforms._apply_if_finite import ApplyIfFiniteState, apply_if_finite
from fnopt.transforms._basic import identity, scale, set_to_zero, stateless
from fnopt.transforms._chain import Chain, chain
from fnopt.transforms._clip import clip, clip_by_global_norm
from fnopt.transforms._diffgrad import ScaleByDiffgradState, scale_by_diffgrad
from fnopt.transforms._freeze import freeze
from fnopt.transforms._learning_rate import ScaleByLearningRateState, scale_by_learning_rate
from fnopt.transforms._lion import ScaleByLionState, scale_by_lion
from fnopt.transforms._masked import MaskedState, masked
from fnopt.transforms._momentum import TraceState, trace
from fnopt.transforms._partition import partition
from fnopt.transforms._rms import ScaleByRmsState, ScaleByStddevState, scale_by_rms, scale_by_stddev
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
    "ScaleByAdamState",
    "ScaleByDiffgradState",
    "ScaleByLearningRateState",
    "ScaleByLionState",
    "ScaleByRmsState",
    "ScaleByRssState",
    "ScaleByStddevState",
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
    "scale_by_adam",
    "scale_by_diffgrad",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_stddev",
    "select",
    "set_to_zero",
    "stateless",
    "trace",
]
