"""Optimizers: one method a file, its direction (`scale_by_...`) and its recipes."""

from __future__ import annotations

from fnopt.optimizers import states as states
from fnopt.optimizers._adagrad import adagrad, scale_by_rss
from fnopt.optimizers._adam import adam, adamw, nadam, scale_by_adam
from fnopt.optimizers._diffgrad import diffgrad, scale_by_diffgrad
from fnopt.optimizers._lion import lion, scale_by_lion
from fnopt.optimizers._rmsprop import rmsprop, scale_by_rms, scale_by_stddev
from fnopt.optimizers._sgd import accumulated_sgd, sgd, sgdr

__all__ = [
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
