# Made by `python -m tests.top_level_stub` of the list in __init__.py; a test holds that
# it is current.

from fnopt import core as core
from fnopt import costs as costs
from fnopt import curvature as curvature
from fnopt import curves as curves
from fnopt import discrete as discrete
from fnopt import distributed as distributed
from fnopt import errors as errors
from fnopt import gradients as gradients
from fnopt import interop as interop
from fnopt import jacobians as jacobians
from fnopt import linear as linear
from fnopt import losses as losses
from fnopt import manifolds as manifolds
from fnopt import models as models
from fnopt import monitor as monitor
from fnopt import numerics as numerics
from fnopt import optimizers as optimizers
from fnopt import programs as programs
from fnopt import projections as projections
from fnopt import residuals as residuals
from fnopt import schedules as schedules
from fnopt import sharding as sharding
from fnopt import solvers as solvers
from fnopt import taps as taps
from fnopt import transforms as transforms
from fnopt import tree as tree
from fnopt.core import Schedule as Schedule
from fnopt.core import Status as Status
from fnopt.core import Transformation as Transformation
from fnopt.core import apply_updates as apply_updates
from fnopt.core import from_config as from_config
from fnopt.core import global_norm as global_norm
from fnopt.core import hyper as hyper
from fnopt.core import hyperparams as hyperparams
from fnopt.core import incremental_update as incremental_update
from fnopt.core import map_leaves as map_leaves
from fnopt.core import named as named
from fnopt.core import periodic_update as periodic_update
from fnopt.core import slot_names as slot_names
from fnopt.core import slot_zeros as slot_zeros
from fnopt.core import slots as slots
from fnopt.core import static as static
from fnopt.core import step_count as step_count
from fnopt.core import to_config as to_config
from fnopt.curves import confidence_intervals as confidence_intervals
from fnopt.curves import covariance as covariance
from fnopt.curves import curve_fit as curve_fit
from fnopt.curves import curve_fit_batch as curve_fit_batch
from fnopt.curves import predict_band as predict_band
from fnopt.curves import standard_errors as standard_errors
from fnopt.errors import leaf_paths as leaf_paths
from fnopt.gradients import add_noise as add_noise
from fnopt.gradients import clipped_grad as clipped_grad
from fnopt.gradients import gradient_similarity as gradient_similarity
from fnopt.gradients import gradient_statistics as gradient_statistics
from fnopt.gradients import hardest_examples as hardest_examples
from fnopt.gradients import median_of_means as median_of_means
from fnopt.gradients import micro_vmap as micro_vmap
from fnopt.gradients import microbatch as microbatch
from fnopt.gradients import noise_scale as noise_scale
from fnopt.gradients import per_example_grads as per_example_grads
from fnopt.gradients import per_example_norms as per_example_norms
from fnopt.gradients import poisson_batch as poisson_batch
from fnopt.gradients import sparse_value_and_grad as sparse_value_and_grad
from fnopt.gradients import trimmed_mean as trimmed_mean
from fnopt.gradients import value_and_per_example_grads as value_and_per_example_grads
from fnopt.gradients import value_and_weighted_grad as value_and_weighted_grad
from fnopt.gradients import weighted_grad as weighted_grad
from fnopt.jacobians import jacobian as jacobian
from fnopt.jacobians import per_example_jacobian as per_example_jacobian
from fnopt.jacobians import sparse_hessian as sparse_hessian
from fnopt.jacobians import sparse_jacobian as sparse_jacobian
from fnopt.jacobians import sparsity_pattern as sparsity_pattern
from fnopt.optimizers import *
from fnopt.residuals import fixed as fixed
from fnopt.residuals import interval as interval
from fnopt.residuals import positive as positive
from fnopt.residuals import prior as prior
from fnopt.residuals import tied as tied
from fnopt.schedules import *
from fnopt.solvers import bfgs as bfgs
from fnopt.solvers import dogleg as dogleg
from fnopt.solvers import fixed_point as fixed_point
from fnopt.solvers import gauss_newton as gauss_newton
from fnopt.solvers import lbfgsb as lbfgsb
from fnopt.solvers import least_squares as least_squares
from fnopt.solvers import levenberg_marquardt as levenberg_marquardt
from fnopt.solvers import minimize as minimize
from fnopt.solvers import newton_cg as newton_cg
from fnopt.solvers import nonlinear_cg as nonlinear_cg
from fnopt.solvers import projected_gradient as projected_gradient
from fnopt.solvers import root as root
from fnopt.taps import capture as capture
from fnopt.taps import grad_between as grad_between
from fnopt.taps import jacobian_between as jacobian_between
from fnopt.taps import nodes as nodes
from fnopt.taps import patch as patch
from fnopt.taps import tap as tap
from fnopt.transforms import *

__all__ = [
    "Chain",
    "Labels",
    "MatrixDimensionNumbers",
    "MatrixReport",
    "MatrixRow",
    "Schedule",
    "Selector",
    "Status",
    "Transformation",
    "accumulate",
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
    "adaptive_grad_clip",
    "add_decayed_weights",
    "add_gradient_noise",
    "add_noise",
    "ademamix",
    "adopt",
    "amsbound",
    "amsgrad",
    "apply_every",
    "apply_if_finite",
    "apply_updates",
    "averaged_params",
    "bfgs",
    "by_path",
    "by_pattern",
    "came",
    "cap_spectral_norm",
    "capture",
    "cautious",
    "cautious_weight_decay",
    "centralize",
    "chain",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "clipped_grad",
    "cocob",
    "conditionally_mask",
    "conditionally_transform",
    "confidence_intervals",
    "constant_schedule",
    "cosine_decay_schedule",
    "cosine_onecycle_schedule",
    "cosine_restarts_schedule",
    "covariance",
    "curve_fit",
    "curve_fit_batch",
    "dadapt_adamw",
    "decay_to_anchor",
    "diffgrad",
    "dog",
    "dogleg",
    "dowg",
    "dynamic_loss_scale",
    "exponential_decay",
    "fixed_point",
    "floor_update_ratio",
    "from_config",
    "fromage",
    "galore",
    "gauss_newton",
    "gauss_newton_bartlett_estimator_diag_hessian",
    "gauss_newton_descent",
    "global_norm",
    "grad_between",
    "gradient_similarity",
    "gradient_statistics",
    "grokfast",
    "hardest_examples",
    "has_updated",
    "hutchinson_estimator_diag_hessian",
    "hyperball",
    "hypergradient",
    "hyperparams",
    "incremental_update",
    "independent_weight_decay",
    "inverse_sqrt_schedule",
    "jacobian_between",
    "join_schedules",
    "kahan",
    "keep_params_nonnegative",
    "kfac",
    "kl_shampoo",
    "lamb",
    "lars",
    "layer_decay",
    "layered_step",
    "lbfgs",
    "lbfgsb",
    "leaf_paths",
    "least_squares",
    "levenberg_marquardt",
    "linear_onecycle_schedule",
    "linear_schedule",
    "lion",
    "lookahead",
    "loss_scale",
    "madgrad",
    "map_leaves",
    "mars",
    "master_copy",
    "master_params",
    "matrix_axes",
    "matrix_labels",
    "matrix_report",
    "mechanize",
    "median_of_means",
    "micro_vmap",
    "microbatch",
    "minimize",
    "momo",
    "momo_adam",
    "muon",
    "nadam",
    "nadamw",
    "natural_gradient",
    "newton_cg",
    "noise_scale",
    "noisy_sgd",
    "nonlinear_cg",
    "normalize_by_update_norm",
    "normalize_neurons",
    "normuon",
    "novograd",
    "offloaded",
    "optimistic_adam",
    "optimistic_adam_v2",
    "optimistic_gradient_descent",
    "orthogonalize",
    "param_groups",
    "params_ema",
    "params_mean",
    "partition_matrices",
    "per_example_grads",
    "per_example_jacobian",
    "per_example_norms",
    "periodic_update",
    "piecewise_constant_schedule",
    "piecewise_interpolate_schedule",
    "poisson_batch",
    "polyak_sgd",
    "polynomial_schedule",
    "precision_policy",
    "precondition_by_inputs",
    "predict_band",
    "prodigy",
    "projected_gradient",
    "psgd_kron",
    "qhadam",
    "qk_clip",
    "quantized_state",
    "radam",
    "reduce_on_plateau",
    "reduce_variance",
    "rmsprop",
    "rprop",
    "sam",
    "schedule_free",
    "schedule_free_adamw",
    "schedule_free_eval_params",
    "schedule_free_sgd",
    "set_to_zero",
    "sgd",
    "sgdr",
    "sgdr_schedule",
    "shampoo",
    "sign_sgd",
    "signum",
    "simplified_ademamix",
    "skip_large_updates",
    "slot_names",
    "slot_zeros",
    "slots",
    "sm3",
    "soap",
    "sophia",
    "sparse_hessian",
    "sparse_jacobian",
    "sparse_rows",
    "sparse_value_and_grad",
    "sparsity_pattern",
    "split_real_and_imaginary",
    "stable_adamw",
    "standard_errors",
    "stateless",
    "step_count",
    "stochastic_reconfiguration",
    "stochastic_rounding",
    "subtract_direction",
    "tap",
    "to_config",
    "trimmed_mean",
    "value_and_grad_from_state",
    "value_and_per_example_grads",
    "value_and_weighted_grad",
    "warmup_constant_schedule",
    "warmup_cosine_decay_schedule",
    "warmup_exponential_decay_schedule",
    "warmup_stable_decay_schedule",
    "weighted_grad",
    "width_scaled",
    "yogi",
    "zero_nans",
]

__version__: str
