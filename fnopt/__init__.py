"""Functional optimizers for JAX: every optimizer is an (init, update) pair of pure functions.

The names of `fnopt` itself are what a training loop or a fit calls: the contract, every
optimizer, transform and schedule, gradients, taps, Jacobians, fits. What these return, what checks
or inspects a result, and the tools for people who write methods of their own are in their packages.

Fits, gradients per example and all that a training loop seldom needs are imported when their name
is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fnopt import core, optimizers, schedules, transforms
from fnopt.core import (
    Schedule,
    Status,
    Transformation,
    apply_updates,
    from_config,
    global_norm,
    hyper,
    hyperparams,
    incremental_update,
    leaf_paths,
    map_leaves,
    named,
    periodic_update,
    slot_names,
    slot_zeros,
    slots,
    static,
    step_count,
    to_config,
)
from fnopt.optimizers import *
from fnopt.schedules import *
from fnopt.transforms import *

__version__ = "0.1.0"

# What type checkers and editors see of the packages that are imported later.
if TYPE_CHECKING:
    from fnopt import (
        costs,
        curvature,
        curves,
        discrete,
        distributed,
        gradients,
        interop,
        jacobians,
        linear,
        losses,
        monitor,
        programs,
        projections,
        residuals,
        solvers,
        taps,
        tree,
    )
    from fnopt.curves import (
        confidence_intervals,
        covariance,
        curve_fit,
        curve_fit_batch,
        predict_band,
        standard_errors,
    )
    from fnopt.gradients import (
        add_noise,
        clipped_grad,
        gradient_similarity,
        gradient_statistics,
        hardest_examples,
        median_of_means,
        micro_vmap,
        microbatch,
        noise_scale,
        per_example_grads,
        per_example_norms,
        poisson_batch,
        sparse_value_and_grad,
        trimmed_mean,
        value_and_per_example_grads,
        value_and_weighted_grad,
        weighted_grad,
    )
    from fnopt.jacobians import (
        jacobian,
        per_example_jacobian,
        sparse_hessian,
        sparse_jacobian,
        sparsity_pattern,
    )
    from fnopt.residuals import fixed, interval, positive, tied
    from fnopt.solvers import (
        bfgs,
        dogleg,
        gauss_newton,
        lbfgsb,
        least_squares,
        levenberg_marquardt,
        minimize,
        newton_cg,
        nonlinear_cg,
        projected_gradient,
    )
    from fnopt.taps import capture, grad_between, jacobian_between, nodes, patch, tap

# The same for Python: package -> the names that `fnopt` has from it.
_LATER: dict[str, tuple[str, ...]] = {
    "costs": (),
    "curvature": (),
    "curves": (
        "confidence_intervals",
        "covariance",
        "curve_fit",
        "curve_fit_batch",
        "predict_band",
        "standard_errors",
    ),
    "discrete": (),
    "distributed": (),
    "gradients": (
        "add_noise",
        "clipped_grad",
        "gradient_similarity",
        "gradient_statistics",
        "hardest_examples",
        "median_of_means",
        "micro_vmap",
        "microbatch",
        "noise_scale",
        "per_example_grads",
        "per_example_norms",
        "poisson_batch",
        "sparse_value_and_grad",
        "trimmed_mean",
        "value_and_per_example_grads",
        "value_and_weighted_grad",
        "weighted_grad",
    ),
    "interop": (),
    "jacobians": (
        "jacobian",
        "per_example_jacobian",
        "sparse_hessian",
        "sparse_jacobian",
        "sparsity_pattern",
    ),
    "linear": (),
    "losses": (),
    "monitor": (),
    "programs": (),
    "projections": (),
    "residuals": (
        "fixed",
        "interval",
        "positive",
        "tied",
    ),
    "solvers": (
        "bfgs",
        "dogleg",
        "gauss_newton",
        "lbfgsb",
        "least_squares",
        "levenberg_marquardt",
        "minimize",
        "newton_cg",
        "nonlinear_cg",
        "projected_gradient",
    ),
    "taps": (
        "capture",
        "grad_between",
        "jacobian_between",
        "nodes",
        "patch",
        "tap",
    ),
    "tree": (),
}
_HOMES = {name: package for package, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f"fnopt.{name}")
    if name not in _HOMES:
        raise _unknown(name)
    value = getattr(importlib.import_module(f"fnopt.{_HOMES[name]}"), name)
    globals()[name] = value  # found without this function the next time
    return value


def _unknown(name: str) -> AttributeError:
    message = f"module 'fnopt' has no attribute {name!r}."
    if not name.startswith("_"):  # tools ask for names like __wrapped__
        rooms = ("core", "optimizers.states", "transforms.states", *_LATER)
        homes = {room: importlib.import_module(f"fnopt.{room}").__all__ for room in rooms}
        message += core.advice(name, {"": __all__, **homes})
    return AttributeError(message)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Schedule",
    "Status",
    "Transformation",
    "add_noise",
    "apply_updates",
    "bfgs",
    "capture",
    "clipped_grad",
    "confidence_intervals",
    "core",
    "costs",
    "covariance",
    "curvature",
    "curve_fit",
    "curve_fit_batch",
    "curves",
    "discrete",
    "distributed",
    "dogleg",
    "fixed",
    "from_config",
    "gauss_newton",
    "global_norm",
    "grad_between",
    "gradient_similarity",
    "gradient_statistics",
    "gradients",
    "hardest_examples",
    "hyper",
    "hyperparams",
    "incremental_update",
    "interop",
    "interval",
    "jacobian",
    "jacobian_between",
    "jacobians",
    "lbfgsb",
    "leaf_paths",
    "least_squares",
    "levenberg_marquardt",
    "linear",
    "losses",
    "map_leaves",
    "median_of_means",
    "micro_vmap",
    "microbatch",
    "minimize",
    "monitor",
    "named",
    "newton_cg",
    "nodes",
    "noise_scale",
    "nonlinear_cg",
    "optimizers",
    "patch",
    "per_example_grads",
    "per_example_jacobian",
    "per_example_norms",
    "periodic_update",
    "poisson_batch",
    "positive",
    "predict_band",
    "programs",
    "projected_gradient",
    "projections",
    "residuals",
    "schedules",
    "slot_names",
    "slot_zeros",
    "slots",
    "solvers",
    "sparse_hessian",
    "sparse_jacobian",
    "sparse_value_and_grad",
    "sparsity_pattern",
    "standard_errors",
    "static",
    "step_count",
    "tap",
    "taps",
    "tied",
    "to_config",
    "transforms",
    "tree",
    "trimmed_mean",
    "value_and_per_example_grads",
    "value_and_weighted_grad",
    "weighted_grad",
]
__all__ += optimizers.__all__
__all__ += schedules.__all__
__all__ += transforms.__all__
