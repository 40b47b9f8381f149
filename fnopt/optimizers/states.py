"""The states of the optimizers: what `init` returns, one NamedTuple each."""

from __future__ import annotations

from fnopt.optimizers._adadelta import ScaleByAdadeltaState
from fnopt.optimizers._adagrad import ScaleByRssState
from fnopt.optimizers._adam import ScaleByAdamState
from fnopt.optimizers._adamax import ScaleByAdamaxState
from fnopt.optimizers._adan import ScaleByAdanState
from fnopt.optimizers._ademamix import ScaleByAdemamixState, ScaleBySimplifiedAdemamixState
from fnopt.optimizers._adopt import ScaleByAdoptState
from fnopt.optimizers._amsgrad import ScaleByAmsgradState
from fnopt.optimizers._diffgrad import ScaleByDiffgradState
from fnopt.optimizers._fromage import ScaleByFromageState
from fnopt.optimizers._lion import ScaleByLionState
from fnopt.optimizers._optimistic import ScaleByOptimisticGradientState
from fnopt.optimizers._rmsprop import ScaleByRmsState, ScaleByStddevState
from fnopt.optimizers._rprop import ScaleByRpropState
from fnopt.optimizers._scale_by_lbfgs import ScaleByLBFGSState

__all__ = [
    "ScaleByAdadeltaState",
    "ScaleByAdamState",
    "ScaleByAdamaxState",
    "ScaleByAdanState",
    "ScaleByAdemamixState",
    "ScaleByAdoptState",
    "ScaleByAmsgradState",
    "ScaleByDiffgradState",
    "ScaleByFromageState",
    "ScaleByLBFGSState",
    "ScaleByLionState",
    "ScaleByOptimisticGradientState",
    "ScaleByRmsState",
    "ScaleByRpropState",
    "ScaleByRssState",
    "ScaleBySimplifiedAdemamixState",
    "ScaleByStddevState",
]
