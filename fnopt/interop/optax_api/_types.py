"""optax's classes of transformations and states, for scripts that construct or check them."""

from __future__ import annotations

import enum
from typing import Any

from fnopt import core, monitor, optimizers, transforms
from fnopt.core import EmptyState as EmptyState
from fnopt.core import Transformation, from_pair


class _Pair(type):
    """Metaclass whose calls return fnopt transformations, which pass `isinstance` checks."""

    def __call__(cls, init: Any, update: Any) -> Transformation:
        return from_pair(init, update)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Transformation)


class GradientTransformation(metaclass=_Pair):
    """An (init, update) pair: `GradientTransformation(init_fn, update_fn)`.

    The constructor returns an fnopt Transformation, and every fnopt Transformation is an instance
    of this class. A Transformation has `init` and `update`, and unpacks to these two functions.

    Example:
        >>> from fnopt.interop import optax_api as optax
        >>> isinstance(optax.adam(1e-3), optax.GradientTransformation)
        True
        >>> double = lambda updates, state, params: (2 * updates, state)
        >>> init, update = optax.GradientTransformation(optax.init_empty_state, double)
        >>> init({"w": 1.0})
        EmptyState()
    """


class GradientTransformationExtraArgs(GradientTransformation, metaclass=_Pair):
    """An (init, update) pair with extra arguments, such as every fnopt Transformation."""


MaskedNode = type(None)  # leaves that a mask excludes


def init_empty_state(params: Any) -> EmptyState:
    """State of a stateless transformation."""
    del params
    return EmptyState()


def with_extra_args_support(tx: Any) -> Any:
    """Return `tx` unchanged, because all fnopt transformations accept extra arguments."""
    return tx


class AccumulationType(enum.StrEnum):
    """Rule of `microbatch` for the accumulation of results."""

    MEAN = "mean"
    SUM = "sum"
    RUNNING_MEAN = "running_mean"
    CONCAT = "concat"


_WITHOUT_FIELDS = (
    *("AdaptiveGradClipState", "ClipState", "ClipByGlobalNormState", "NonNegativeParamsState"),
    *("NormalizeState", "ScaleState", "ScaleByTrustRatioState"),
)
_RENAMED = {
    "COCOBState": "ScaleByCocobState",
    "DAdaptAdamWState": "ScaleByDadaptAdamwState",
    "DoGState": "ScaleByDogState",
    "DoWGState": "ScaleByDowgState",
    "GaLoreState": "ScaleByGaloreState",
    "MadgradState": "ScaleByMadgradState",
    "MuonState": "EmaState",
    "ProdigyState": "ScaleByProdigyState",
    "SophiaState": "ScaleBySophiaState",
    "FactoredState": "ScaleByFactoredRmsState",
    "ScaleByAdaDeltaState": "ScaleByAdadeltaState",
    "ScaleByRStdDevState": "ScaleByStddevState",
    "ScaleBySimplifiedAdEMAMixState": "ScaleBySimplifiedAdemamixState",
    "AddNoiseState": "AddGradientNoiseState",
    "ApplyEvery": "ApplyEveryState",
    "ConditionallyMaskState": "ConditionallyState",
    "ConditionallyTransformState": "ConditionallyState",
    "ReduceLROnPlateauState": "ReduceOnPlateauState",
    # In fnopt, the variance of AdaBelief is a slot of Adam's state.
    "ScaleByBeliefState": "ScaleByAdamState",
    **dict.fromkeys(_WITHOUT_FIELDS, "EmptyState"),
}


def find_state(name: str) -> Any:
    """State class with a name of optax or fnopt; `None` if there is no such class."""
    if name not in _RENAMED and not name.endswith("State"):
        return None
    ours = _RENAMED.get(name, name)
    rooms = (optimizers.states, transforms.states, monitor, core)
    return next((getattr(room, ours) for room in rooms if hasattr(room, ours)), None)
