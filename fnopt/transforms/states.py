"""The states of the transforms: what `init` returns, one NamedTuple each."""

from __future__ import annotations

from fnopt.transforms._accumulate import AccumulateState
from fnopt.transforms._apply_if_finite import ApplyIfFiniteState
from fnopt.transforms._backtracking_linesearch import (
    BacktrackingLinesearchInfo,
    ScaleByBacktrackingLinesearchState,
)
from fnopt.transforms._constraints import ZeroNansState
from fnopt.transforms._ema import EmaState
from fnopt.transforms._learning_rate import ScaleByLearningRateState
from fnopt.transforms._masked import MaskedState
from fnopt.transforms._momentum import TraceState
from fnopt.transforms._weight_decay import AddDecayedWeightsState
from fnopt.transforms._zoom_linesearch import ScaleByZoomLinesearchState, ZoomLinesearchInfo

__all__ = [
    "AccumulateState",
    "AddDecayedWeightsState",
    "ApplyIfFiniteState",
    "BacktrackingLinesearchInfo",
    "EmaState",
    "MaskedState",
    "ScaleByBacktrackingLinesearchState",
    "ScaleByLearningRateState",
    "ScaleByZoomLinesearchState",
    "TraceState",
    "ZeroNansState",
    "ZoomLinesearchInfo",
]
