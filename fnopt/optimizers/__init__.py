"""Named optimizers: every one is a chain of transforms."""

from __future__ import annotations

from fnopt.optimizers._adagrad import adagrad
from fnopt.optimizers._adam import adam, adamw, nadam
from fnopt.optimizers._diffgrad import diffgrad
from fnopt.optimizers._lion import lion
from fnopt.optimizers._rmsprop import rmsprop
from fnopt.optimizers._scale_by_adam import ScaleByAdamState, scale_by_adam
from fnopt.optimizers._scale_by_diffgrad import ScaleByDiffgradState, scale_by_diffgrad
from fnopt.optimizers._scale_by_lion import ScaleByLionState, scale_by_lion
from fnopt.optimizers._scale_by_rms import (
    ScaleByRmsState,
    ScaleByStddevState,
    scale_by_rms,
    scale_by_stddev,
)
from fnopt.optimizers._scale_by_rss import ScaleByRssState, scale_by_rss
from fnopt.optimizers._sgd import accumulated_sgd, sgd, sgdr

__all__ = [
    "ScaleByAdamState",
    "ScaleByDiffgradState",
    "ScaleByLionState",
    "ScaleByRmsState",
    "ScaleByRssState",
    "ScaleByStddevState",
    "accumulated_sgd",
    "adagrad",
    "adam",
    "adamw",
    "diffgrad",
    "lion",
    "nadam",
    "rmsprop",
    "scale_by_adam",
    "scale_by_diffgrad",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_stddev",
    "sgd",
    "sgdr",
]
