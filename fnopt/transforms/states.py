"""The states of the transforms: what `init` returns, one NamedTuple each."""

from __future__ import annotations

from fnopt.transforms._accumulate import AccumulateState
from fnopt.transforms._apply_if_finite import ApplyIfFiniteState
from fnopt.transforms._learning_rate import ScaleByLearningRateState
from fnopt.transforms._masked import MaskedState
from fnopt.transforms._momentum import TraceState
from fnopt.transforms._weight_decay import AddDecayedWeightsState

__all__ = [
    "AccumulateState",
    "AddDecayedWeightsState",
    "ApplyIfFiniteState",
    "MaskedState",
    "ScaleByLearningRateState",
    "TraceState",
]
