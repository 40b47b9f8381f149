"""The states of the transforms: what `init` returns, one NamedTuple each."""

from __future__ import annotations

from fnopt.core import show_shapes
from fnopt.transforms._accumulate import AccumulateState
from fnopt.transforms._apply_every import ApplyEveryState
from fnopt.transforms._apply_if_finite import ApplyIfFiniteState
from fnopt.transforms._average_params import AverageParamsState
from fnopt.transforms._backtracking_linesearch import (
    BacktrackingLinesearchInfo,
    ScaleByBacktrackingLinesearchState,
)
from fnopt.transforms._cautious import CautiousState
from fnopt.transforms._conditionally import ConditionallyState, SkipLargeUpdatesState
from fnopt.transforms._constraints import ZeroNansState
from fnopt.transforms._decay_to_anchor import DecayToAnchorState
from fnopt.transforms._distance_over_gradients import ScaleByDistanceOverGradientsState
from fnopt.transforms._dynamic_loss_scale import DynamicLossScaleState
from fnopt.transforms._ema import EmaState
from fnopt.transforms._flatten import FlattenState
from fnopt.transforms._gradient_noise import AddGradientNoiseState
from fnopt.transforms._grokfast import GrokfastState
from fnopt.transforms._hypergradient import HypergradientState
from fnopt.transforms._kahan import KahanState
from fnopt.transforms._layered_step import LayeredState
from fnopt.transforms._learning_rate import ScaleByLearningRateState
from fnopt.transforms._lookahead import LookaheadState
from fnopt.transforms._masked import MaskedState
from fnopt.transforms._master_copy import MasterCopyState
from fnopt.transforms._mechanize import MechanizeState
from fnopt.transforms._momentum import TraceState
from fnopt.transforms._precision_policy import PrecisionPolicyState
from fnopt.transforms._quantized_state import QuantizedStateState
from fnopt.transforms._reduce_on_plateau import ReduceOnPlateauState
from fnopt.transforms._reduce_variance import ReduceVarianceState
from fnopt.transforms._rounded import StochasticRoundingState
from fnopt.transforms._sam import SAMState
from fnopt.transforms._scale_by_schedule import ScaleByScheduleState
from fnopt.transforms._schedule_free import ScheduleFreeState
from fnopt.transforms._sparse_rows import SparseRowsState
from fnopt.transforms._split_real_and_imaginary import SplitRealAndImaginaryState
from fnopt.transforms._weight_decay import AddDecayedWeightsState
from fnopt.transforms._zoom_linesearch import ScaleByZoomLinesearchState, ZoomLinesearchInfo

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
