"""Ready-made models for curve fits: functions of x with named params, closed under + and *."""

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
    """Explain unknown names, such as lmfit's `GaussianModel`."""
    spellings = {known.lower(): known for known in __all__}
    plain = name.replace("_", "").lower()
    near = difflib.get_close_matches(plain.removesuffix("model") or plain, spellings, n=1)
    hint = f" Did you mean {spellings[near[0]]}?" if near else ""
    raise AttributeError(f"module 'fnopt.models' has no attribute {name!r}.{hint}")
