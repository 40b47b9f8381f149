"""Ready-made models of curves: functions of x with named params, that add and multiply."""

from __future__ import annotations

from fnopt.models._combined import Datasets
from fnopt.models._model import Model, model
from fnopt.models._peaks import Gaussian, Lorentzian, PseudoVoigt, Voigt
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
from fnopt.models._voigt import faddeeva

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
