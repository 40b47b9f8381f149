"""Optimizers: one method a file, its direction (`scale_by_...`) and its recipes."""

from __future__ import annotations

from fnopt.optimizers import states as states
from fnopt.optimizers._adabelief import adabelief, scale_by_belief
from fnopt.optimizers._adadelta import adadelta, scale_by_adadelta
from fnopt.optimizers._adagrad import adagrad, scale_by_rss
from fnopt.optimizers._adam import adam, adamw, nadam, nadamw, scale_by_adam
from fnopt.optimizers._adamax import adamax, adamaxw, scale_by_adamax
from fnopt.optimizers._adan import adan, scale_by_adan
from fnopt.optimizers._ademamix import (
    ademamix,
    scale_by_ademamix,
    scale_by_simplified_ademamix,
    simplified_ademamix,
)
from fnopt.optimizers._adopt import adopt, scale_by_adopt
from fnopt.optimizers._amsgrad import amsgrad, scale_by_amsgrad
from fnopt.optimizers._diffgrad import diffgrad, scale_by_diffgrad
from fnopt.optimizers._fromage import fromage, scale_by_fromage
from fnopt.optimizers._lamb import lamb, lars
from fnopt.optimizers._lbfgs import lbfgs
from fnopt.optimizers._lion import lion, scale_by_lion
from fnopt.optimizers._optimistic import (
    optimistic_adam_v2,
    optimistic_gradient_descent,
    scale_by_optimistic_gradient,
)
from fnopt.optimizers._polyak_sgd import polyak_sgd, scale_by_polyak
from fnopt.optimizers._radam import radam, scale_by_radam
from fnopt.optimizers._rmsprop import rmsprop, scale_by_rms, scale_by_stddev
from fnopt.optimizers._rprop import rprop, scale_by_rprop
from fnopt.optimizers._scale_by_lbfgs import inverse_product as inverse_product
from fnopt.optimizers._scale_by_lbfgs import scale_by_lbfgs
from fnopt.optimizers._sgd import accumulated_sgd, sgd, sgdr
from fnopt.optimizers._sign_sgd import sign_sgd, signum
from fnopt.optimizers._yogi import scale_by_yogi, yogi

__all__ = [
    "accumulated_sgd",
    "adabelief",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamaxw",
    "adamw",
    "adan",
    "ademamix",
    "adopt",
    "amsgrad",
    "diffgrad",
    "fromage",
    "lamb",
    "lars",
    "lbfgs",
    "lion",
    "nadam",
    "nadamw",
    "optimistic_adam_v2",
    "optimistic_gradient_descent",
    "polyak_sgd",
    "radam",
    "rmsprop",
    "rprop",
    "scale_by_adadelta",
    "scale_by_adam",
    "scale_by_adamax",
    "scale_by_adan",
    "scale_by_ademamix",
    "scale_by_adopt",
    "scale_by_amsgrad",
    "scale_by_belief",
    "scale_by_diffgrad",
    "scale_by_fromage",
    "scale_by_lbfgs",
    "scale_by_lion",
    "scale_by_optimistic_gradient",
    "scale_by_polyak",
    "scale_by_radam",
    "scale_by_rms",
    "scale_by_rprop",
    "scale_by_rss",
    "scale_by_simplified_ademamix",
    "scale_by_stddev",
    "scale_by_yogi",
    "sgd",
    "sgdr",
    "sign_sgd",
    "signum",
    "simplified_ademamix",
    "yogi",
]
