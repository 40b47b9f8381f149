"""Optimizers: one method a file, its direction (`scale_by_...`) and its recipes."""

from __future__ import annotations

from fnopt.optimizers import states as states
from fnopt.optimizers._adabelief import adabelief, scale_by_belief
from fnopt.optimizers._adagrad import adagrad, scale_by_rss
from fnopt.optimizers._adam import adam, adamw, nadam, nadamw, scale_by_adam
from fnopt.optimizers._adamax import adamax, adamaxw, scale_by_adamax
from fnopt.optimizers._amsgrad import amsgrad, scale_by_amsgrad
from fnopt.optimizers._diffgrad import diffgrad, scale_by_diffgrad
from fnopt.optimizers._lbfgs import lbfgs
from fnopt.optimizers._lion import lion, scale_by_lion
from fnopt.optimizers._radam import radam, scale_by_radam
from fnopt.optimizers._rmsprop import rmsprop, scale_by_rms, scale_by_stddev
from fnopt.optimizers._scale_by_lbfgs import inverse_product as inverse_product
from fnopt.optimizers._scale_by_lbfgs import scale_by_lbfgs
from fnopt.optimizers._sgd import accumulated_sgd, sgd, sgdr
from fnopt.optimizers._yogi import scale_by_yogi, yogi

__all__ = [
    "accumulated_sgd",
    "adabelief",
    "adagrad",
    "adam",
    "adamax",
    "adamaxw",
    "adamw",
    "amsgrad",
    "diffgrad",
    "lbfgs",
    "lion",
    "nadam",
    "nadamw",
    "radam",
    "rmsprop",
    "scale_by_adam",
    "scale_by_adamax",
    "scale_by_amsgrad",
    "scale_by_belief",
    "scale_by_diffgrad",
    "scale_by_lbfgs",
    "scale_by_lion",
    "scale_by_radam",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_stddev",
    "scale_by_yogi",
    "sgd",
    "sgdr",
    "yogi",
]
