"""Transforms: gradients to updates, one idea each."""

from fnopt.transforms._adam import ScaleByAdamState, scale_by_adam
from fnopt.transforms._basic import identity, set_to_zero, stateless
from fnopt.transforms._chain import Chain, chain
from fnopt.transforms._clip import clip, clip_by_global_norm
from fnopt.transforms._learning_rate import ScaleByLearningRateState, scale_by_learning_rate

__all__ = [
    "Chain",
    "ScaleByAdamState",
    "ScaleByLearningRateState",
    "chain",
    "clip",
    "clip_by_global_norm",
    "identity",
    "scale_by_adam",
    "scale_by_learning_rate",
    "set_to_zero",
    "stateless",
]
