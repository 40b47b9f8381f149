"""Named optimizers: every one is a chain of transforms."""

from fnopt.optimizers._adagrad import adagrad
from fnopt.optimizers._adam import adam, adamw, nadam
from fnopt.optimizers._diffgrad import diffgrad
from fnopt.optimizers._lion import lion
from fnopt.optimizers._rmsprop import rmsprop
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
    "sgd",
    "sgdr",
]
