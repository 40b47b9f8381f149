"""Transforms: gradients to updates, one idea each."""

from fnopt.transforms._adam import ScaleByAdamState, scale_by_adam
from fnopt.transforms._basic import identity, set_to_zero, stateless
from fnopt.transforms._chain import Chain, chain
from fnopt.transforms._clip import clip, clip_by_global_norm
from fnopt.transforms._learning_rate import ScaleByLearningRateState, scale_by_learning_rate
from fnopt.transforms._select import select
from fnopt.transforms._selectors import Labels, Selector, by_path, by_pattern

__all__ = [
    "Chain",
    "Labels",
    "ScaleByAdamState",
    "ScaleByLearningRateState",
    "Selector",
    "by_path",
    "by_pattern",
    "chain",
    "clip",
    "clip_by_global_norm",
    "identity",
    "scale_by_adam",
    "scale_by_learning_rate",
    "select",
    "set_to_zero",
    "stateless",
]
