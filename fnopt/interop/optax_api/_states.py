"""optax's names of states: fnopt's classes, with fnopt's fields."""

from __future__ import annotations

from typing import Any

from fnopt import core, monitor, optimizers, transforms

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
    # The belief is a slot of Adam's state here.
    "ScaleByBeliefState": "ScaleByAdamState",
    **dict.fromkeys(_WITHOUT_FIELDS, "EmptyState"),
}


def find_state(name: str) -> Any:
    """The class of a state of this name, or None."""
    if name not in _RENAMED and not name.endswith("State"):
        return None
    ours = _RENAMED.get(name, name)
    rooms = (optimizers.states, transforms.states, monitor, core)
    return next((getattr(room, ours) for room in rooms if hasattr(room, ours)), None)
