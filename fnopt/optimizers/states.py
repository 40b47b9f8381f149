"""States of the optimizers and of their update directions."""

from __future__ import annotations

from fnopt.optimizers._adabelief import ScaleByDiffgradState
from fnopt.optimizers._adafactor import ScaleByCameState, ScaleByFactoredRmsState
from fnopt.optimizers._adagrad import ScaleByAdadeltaState, ScaleByRssState, ScaleBySM3State
from fnopt.optimizers._adam import ScaleByAdamState
from fnopt.optimizers._adam_mini import ScaleByAdamMiniState
from fnopt.optimizers._adam_variants import ScaleByQhadamState
from fnopt.optimizers._adan import ScaleByAdanState, ScaleByOptimisticGradientState
from fnopt.optimizers._ademamix import ScaleByAdemamixState, ScaleBySimplifiedAdemamixState
from fnopt.optimizers._adopt import ScaleByAdoptState
from fnopt.optimizers._amsgrad import ScaleByAdamaxState, ScaleByAmsgradState
from fnopt.optimizers._bartlett import GaussNewtonBartlettState
from fnopt.optimizers._batch_step import GaussNewtonDescentState
from fnopt.optimizers._dadapt_adamw import ScaleByDadaptAdamwState
from fnopt.optimizers._dion import ScaleByDionState
from fnopt.optimizers._dog import ScaleByDogState, ScaleByDowgState
from fnopt.optimizers._galore import ScaleByGaloreState
from fnopt.optimizers._kfac_state import KfacState
from fnopt.optimizers._kl_shampoo import ScaleByKlShampooState
from fnopt.optimizers._lamb import ScaleByFromageState, ScaleByNovogradState
from fnopt.optimizers._lbfgs import ScaleByLBFGSState
from fnopt.optimizers._lion import ScaleByLionState, ScaleByRpropState
from fnopt.optimizers._madgrad import ScaleByCocobState, ScaleByMadgradState
from fnopt.optimizers._matrix_norms import HyperballState
from fnopt.optimizers._matrix_scale import NormalizeNeuronsState
from fnopt.optimizers._momo import MomoAdamState, MomoState
from fnopt.optimizers._polyak_sgd import LowerBound, ScaleByPolyakState
from fnopt.optimizers._precondition_by_inputs import PreconditionByInputsState
from fnopt.optimizers._prodigy import ScaleByProdigyState
from fnopt.optimizers._psgd_kron import ScaleByPsgdKronState
from fnopt.optimizers._rmsprop import ScaleByRmsState, ScaleByStddevState
from fnopt.optimizers._shampoo import ScaleByShampooState
from fnopt.optimizers._soap import ScaleBySoapState
from fnopt.optimizers._sophia import HutchinsonState, ScaleBySophiaState
from fnopt.optimizers._stochastic_reconfiguration import StochasticReconfigurationState

__all__ = [
    "GaussNewtonBartlettState",
    "GaussNewtonDescentState",
    "HutchinsonState",
    "HyperballState",
    "KfacState",
    "LowerBound",
    "MomoAdamState",
    "MomoState",
    "NormalizeNeuronsState",
    "PreconditionByInputsState",
    "ScaleByAdadeltaState",
    "ScaleByAdamMiniState",
    "ScaleByAdamState",
    "ScaleByAdamaxState",
    "ScaleByAdanState",
    "ScaleByAdemamixState",
    "ScaleByAdoptState",
    "ScaleByAmsgradState",
    "ScaleByCameState",
    "ScaleByCocobState",
    "ScaleByDadaptAdamwState",
    "ScaleByDiffgradState",
    "ScaleByDionState",
    "ScaleByDogState",
    "ScaleByDowgState",
    "ScaleByFactoredRmsState",
    "ScaleByFromageState",
    "ScaleByGaloreState",
    "ScaleByKlShampooState",
    "ScaleByLBFGSState",
    "ScaleByLionState",
    "ScaleByMadgradState",
    "ScaleByNovogradState",
    "ScaleByOptimisticGradientState",
    "ScaleByPolyakState",
    "ScaleByProdigyState",
    "ScaleByPsgdKronState",
    "ScaleByQhadamState",
    "ScaleByRmsState",
    "ScaleByRpropState",
    "ScaleByRssState",
    "ScaleBySM3State",
    "ScaleByShampooState",
    "ScaleBySimplifiedAdemamixState",
    "ScaleBySoapState",
    "ScaleBySophiaState",
    "ScaleByStddevState",
    "StochasticReconfigurationState",
]
