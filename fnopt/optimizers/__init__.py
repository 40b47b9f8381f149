"""Optimizers (`adam`, ...) and their update directions (`scale_by_adam`, ...)."""

from __future__ import annotations

from fnopt.optimizers import states as states
from fnopt.optimizers._adabelief import (
    adabelief,
    diffgrad,
    scale_by_belief,
    scale_by_diffgrad,
    scale_by_yogi,
    yogi,
)
from fnopt.optimizers._adabound import adabound, amsbound, scale_by_adabound, scale_by_amsbound
from fnopt.optimizers._adafactor import adafactor, came, scale_by_came, scale_by_factored_rms
from fnopt.optimizers._adagrad import (
    adadelta,
    adagrad,
    scale_by_adadelta,
    scale_by_rss,
    scale_by_sm3,
    sm3,
)
from fnopt.optimizers._adam import adam, adamw, nadam, nadamw, scale_by_adam
from fnopt.optimizers._adam_mini import adam_mini, scale_by_adam_mini
from fnopt.optimizers._adam_variants import (
    mars,
    qhadam,
    scale_by_qhadam,
    scale_by_stable_adam,
    stable_adamw,
)
from fnopt.optimizers._adamp import adamp, scale_by_adamp
from fnopt.optimizers._adan import (
    adan,
    optimistic_adam,
    optimistic_adam_v2,
    optimistic_gradient_descent,
    scale_by_adan,
    scale_by_optimistic_gradient,
)
from fnopt.optimizers._ademamix import (
    ademamix,
    scale_by_ademamix,
    scale_by_simplified_ademamix,
    simplified_ademamix,
)
from fnopt.optimizers._adopt import acprop, adopt, scale_by_acprop, scale_by_adopt
from fnopt.optimizers._amsgrad import adamax, adamaxw, amsgrad, scale_by_adamax, scale_by_amsgrad
from fnopt.optimizers._bartlett import gauss_newton_bartlett_estimator_diag_hessian
from fnopt.optimizers._dadapt_adamw import dadapt_adamw, scale_by_dadapt_adamw
from fnopt.optimizers._dion import scale_by_dion
from fnopt.optimizers._dog import dog, dowg, scale_by_dog, scale_by_dowg
from fnopt.optimizers._galore import galore, scale_by_galore
from fnopt.optimizers._gauss_newton_descent import gauss_newton_descent
from fnopt.optimizers._kfac import kfac
from fnopt.optimizers._kl_shampoo import kl_shampoo, scale_by_kl_shampoo
from fnopt.optimizers._lamb import (
    fromage,
    lamb,
    lars,
    novograd,
    scale_by_fromage,
    scale_by_novograd,
)
from fnopt.optimizers._lbfgs import inverse_product as inverse_product
from fnopt.optimizers._lbfgs import lbfgs, scale_by_lbfgs
from fnopt.optimizers._lion import lion, rprop, scale_by_lion, scale_by_rprop
from fnopt.optimizers._madgrad import cocob, madgrad, scale_by_cocob, scale_by_madgrad
from fnopt.optimizers._matrix_axes import matrix_axes
from fnopt.optimizers._matrix_norms import cap_spectral_norm, floor_update_ratio, hyperball
from fnopt.optimizers._matrix_report import MatrixReport, MatrixRow, matrix_report
from fnopt.optimizers._matrix_rule import MatrixDimensionNumbers
from fnopt.optimizers._matrix_scale import normalize_neurons, scale_by_matrix_shape
from fnopt.optimizers._momo import momo, momo_adam
from fnopt.optimizers._muon import muon, normuon
from fnopt.optimizers._natural_gradient import natural_gradient
from fnopt.optimizers._orthogonalize import orthogonalize
from fnopt.optimizers._partition_matrices import matrix_labels, partition_matrices
from fnopt.optimizers._polyak_sgd import polyak_sgd, scale_by_polyak
from fnopt.optimizers._precondition_by_inputs import precondition_by_inputs
from fnopt.optimizers._prodigy import prodigy, scale_by_prodigy
from fnopt.optimizers._psgd_kron import psgd_kron, scale_by_psgd_kron
from fnopt.optimizers._qk_clip import qk_clip
from fnopt.optimizers._radam import radam, scale_by_radam
from fnopt.optimizers._rmsprop import rmsprop, scale_by_rms, scale_by_stddev
from fnopt.optimizers._sgd import (
    accumulated_sgd,
    noisy_sgd,
    schedule_free_adamw,
    schedule_free_sgd,
    sgd,
    sgdr,
    sign_sgd,
    signum,
)
from fnopt.optimizers._shampoo import scale_by_shampoo, shampoo
from fnopt.optimizers._soap import scale_by_soap, soap
from fnopt.optimizers._sophia import hutchinson_estimator_diag_hessian, scale_by_sophia, sophia
from fnopt.optimizers._stochastic_reconfiguration import stochastic_reconfiguration
from fnopt.optimizers._subtract_direction import subtract_direction
from fnopt.optimizers._width_scaled import width_scaled

__all__ = [
    "MatrixDimensionNumbers",
    "MatrixReport",
    "MatrixRow",
    "accumulated_sgd",
    "acprop",
    "adabelief",
    "adabound",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adam_mini",
    "adamax",
    "adamaxw",
    "adamp",
    "adamw",
    "adan",
    "ademamix",
    "adopt",
    "amsbound",
    "amsgrad",
    "came",
    "cap_spectral_norm",
    "cocob",
    "dadapt_adamw",
    "diffgrad",
    "dog",
    "dowg",
    "floor_update_ratio",
    "fromage",
    "galore",
    "gauss_newton_bartlett_estimator_diag_hessian",
    "gauss_newton_descent",
    "hutchinson_estimator_diag_hessian",
    "hyperball",
    "kfac",
    "kl_shampoo",
    "lamb",
    "lars",
    "lbfgs",
    "lion",
    "madgrad",
    "mars",
    "matrix_axes",
    "matrix_labels",
    "matrix_report",
    "momo",
    "momo_adam",
    "muon",
    "nadam",
    "nadamw",
    "natural_gradient",
    "noisy_sgd",
    "normalize_neurons",
    "normuon",
    "novograd",
    "optimistic_adam",
    "optimistic_adam_v2",
    "optimistic_gradient_descent",
    "orthogonalize",
    "partition_matrices",
    "polyak_sgd",
    "precondition_by_inputs",
    "prodigy",
    "psgd_kron",
    "qhadam",
    "qk_clip",
    "radam",
    "rmsprop",
    "rprop",
    "scale_by_acprop",
    "scale_by_adabound",
    "scale_by_adadelta",
    "scale_by_adam",
    "scale_by_adam_mini",
    "scale_by_adamax",
    "scale_by_adamp",
    "scale_by_adan",
    "scale_by_ademamix",
    "scale_by_adopt",
    "scale_by_amsbound",
    "scale_by_amsgrad",
    "scale_by_belief",
    "scale_by_came",
    "scale_by_cocob",
    "scale_by_dadapt_adamw",
    "scale_by_diffgrad",
    "scale_by_dion",
    "scale_by_dog",
    "scale_by_dowg",
    "scale_by_factored_rms",
    "scale_by_fromage",
    "scale_by_galore",
    "scale_by_kl_shampoo",
    "scale_by_lbfgs",
    "scale_by_lion",
    "scale_by_madgrad",
    "scale_by_matrix_shape",
    "scale_by_novograd",
    "scale_by_optimistic_gradient",
    "scale_by_polyak",
    "scale_by_prodigy",
    "scale_by_psgd_kron",
    "scale_by_qhadam",
    "scale_by_radam",
    "scale_by_rms",
    "scale_by_rprop",
    "scale_by_rss",
    "scale_by_shampoo",
    "scale_by_simplified_ademamix",
    "scale_by_sm3",
    "scale_by_soap",
    "scale_by_sophia",
    "scale_by_stable_adam",
    "scale_by_stddev",
    "scale_by_yogi",
    "schedule_free_adamw",
    "schedule_free_sgd",
    "sgd",
    "sgdr",
    "shampoo",
    "sign_sgd",
    "signum",
    "simplified_ademamix",
    "sm3",
    "soap",
    "sophia",
    "stable_adamw",
    "stochastic_reconfiguration",
    "subtract_direction",
    "width_scaled",
    "yogi",
]
