"""State classes of the transforms, one NamedTuple per transform."""

from __future__ import annotations

from fnopt.errors import show_shapes
from fnopt.transforms._accumulate import AccumulateState, ApplyEveryState
from fnopt.transforms._adaptive_scale import DynamicLossScaleState, ReduceOnPlateauState
from fnopt.transforms._average_params import AverageParamsState, LookaheadState
from fnopt.transforms._basic import ScaleByLearningRateState, ScaleByScheduleState
from fnopt.transforms._conditionally import (
    ApplyIfFiniteState,
    ConditionallyState,
    SkipLargeUpdatesState,
    ZeroNansState,
)
from fnopt.transforms._flatten import FlattenState, SplitRealAndImaginaryState
from fnopt.transforms._gradient_noise import AddGradientNoiseState
from fnopt.transforms._layered_step import LayeredState
from fnopt.transforms._learned_rate import (
    HypergradientState,
    MechanizeState,
    ScaleByDistanceOverGradientsState,
)
from fnopt.transforms._linesearch_transforms import (
    BacktrackingLinesearchInfo,
    ScaleByBacktrackingLinesearchState,
    ScaleByZoomLinesearchState,
    ZoomLinesearchInfo,
)
from fnopt.transforms._masked import MaskedState
from fnopt.transforms._momentum import EmaState, GrokfastState, ReduceVarianceState, TraceState
from fnopt.transforms._narrow_params import KahanState, MasterCopyState, StochasticRoundingState
from fnopt.transforms._quantized_state import QuantizedStateState
from fnopt.transforms._sam import SAMState
from fnopt.transforms._schedule_free import ScheduleFreeState
from fnopt.transforms._sparse_rows import SparseRowsState
from fnopt.transforms._stored_slots import PrecisionPolicyState
from fnopt.transforms._weight_decay import AddDecayedWeightsState, CautiousState, DecayToAnchorState

__all__ = [
    "AccumulateState",
    "AddDecayedWeightsState",
    "AddGradientNoiseState",
    "ApplyEveryState",
    "ApplyIfFiniteState",
    "AverageParamsState",
    "BacktrackingLinesearchInfo",
    "CautiousState",
    "ConditionallyState",
    "DecayToAnchorState",
    "DynamicLossScaleState",
    "EmaState",
    "FlattenState",
    "GrokfastState",
    "HypergradientState",
    "KahanState",
    "LayeredState",
    "LookaheadState",
    "MaskedState",
    "MasterCopyState",
    "MechanizeState",
    "PrecisionPolicyState",
    "QuantizedStateState",
    "ReduceOnPlateauState",
    "ReduceVarianceState",
    "SAMState",
    "ScaleByBacktrackingLinesearchState",
    "ScaleByDistanceOverGradientsState",
    "ScaleByLearningRateState",
    "ScaleByScheduleState",
    "ScaleByZoomLinesearchState",
    "ScheduleFreeState",
    "SkipLargeUpdatesState",
    "SparseRowsState",
    "SplitRealAndImaginaryState",
    "StochasticRoundingState",
    "TraceState",
    "ZeroNansState",
    "ZoomLinesearchInfo",
]

show_shapes(globals()[name] for name in __all__)
