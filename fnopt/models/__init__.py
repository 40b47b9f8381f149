"""Models for curve fits: functions of x with named params, which can be added and multiplied."""

from __future__ import annotations

import difflib
from typing import NoReturn

from fnopt.models._combined import Datasets
from fnopt.models._model import Model, model
from fnopt.models._peaks import Gaussian, Lorentzian, PseudoVoigt, Voigt, faddeeva
from fnopt.models._shapes import (
    Constant,
    DampedOscillation,
    Exponential,
    Hill,
    Linear,
    Logistic,
    MichaelisMenten,
    Polynomial,
    PowerLaw,
    Step,
)

__all__ = [
    "Constant",
    "DampedOscillation",
    "Datasets",
    "Exponential",
    "Gaussian",
    "Hill",
    "Linear",
    "Logistic",
    "Lorentzian",
    "MichaelisMenten",
    "Model",
    "Polynomial",
    "PowerLaw",
    "PseudoVoigt",
    "Step",
    "Voigt",
    "faddeeva",
    "model",
]


def __getattr__(name: str) -> NoReturn:
    """Suggest a name in place of an unknown name, such as lmfit's `GaussianModel`."""
    spellings = {exported.lower(): exported for exported in __all__}
    lower = name.replace("_", "").lower()
    matches = difflib.get_close_matches(lower.removesuffix("model") or lower, spellings, n=1)
    hint = f" Did you mean {spellings[matches[0]]}?" if matches else ""
    raise AttributeError(f"module 'fnopt.models' has no attribute {name!r}.{hint}")
