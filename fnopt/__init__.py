"""Functional optimizers for JAX: every optimizer is an (init, update) pair of pure functions.

`fnopt` itself contains the names that a training loop or a fit calls: optimizers, transforms,
schedules, gradients, taps, Jacobians and solvers. Classes of results, checks, and tools for authors
of methods are in the packages, such as `fnopt.core`.

`from fnopt import *` imports fewer names: no packages, no `scale_by_*`, and no everyday words such
as `clip`, `scale` and `trace`, which other modules define too.

Packages that a training loop seldom needs are imported when one of their names is first used.
"""

import importlib
from typing import Any

from fnopt import optimizers, schedules, transforms
from fnopt.optimizers import *
from fnopt.schedules import *
from fnopt.transforms import *

__version__ = "0.1.0"

# Names that `fnopt` imports lazily from each package, in addition to the `__all__` of the three
# packages above. Type checkers and editors read `__init__.pyi`, which `python -m
# tests.top_level_stub` generates from this list; a test compares both.
_LATER: dict[str, tuple[str, ...]] = {
    "core": (
        "Schedule",
        "Status",
        "Transformation",
        "apply_updates",
        "from_config",
        "global_norm",
        "hyper",
        "hyperparams",
        "incremental_update",
        "map_leaves",
        "named",
        "periodic_update",
        "slot_names",
        "slot_zeros",
        "slots",
        "static",
        "step_count",
        "to_config",
    ),
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
    "errors": ("leaf_paths",),
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
    "manifolds": (),
    "models": (),
    "monitor": (),
    "numerics": (),
    "programs": (),
    "projections": (),
    "residuals": (
        "fixed",
        "interval",
        "positive",
        "prior",
        "tied",
    ),
    "solvers": (
        "bfgs",
        "dogleg",
        "fixed_point",
        "gauss_newton",
        "lbfgsb",
        "least_squares",
        "levenberg_marquardt",
        "minimize",
        "newton_cg",
        "nonlinear_cg",
        "projected_gradient",
        "root",
    ),
    "sharding": (),
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
    globals()[name] = value  # the next access doesn't call this function
    return value


def _unknown(name: str) -> AttributeError:
    message = f"module 'fnopt' has no attribute {name!r}."
    if not name.startswith("_"):  # inspection tools probe names such as __wrapped__
        rooms = ("optimizers.states", "transforms.states", *_LATER)
        homes = {room: importlib.import_module(f"fnopt.{room}").__all__ for room in rooms}
        interop = importlib.import_module("fnopt.interop")
        message += interop.suggest_name(name, {"": _NAMES, **homes})
    return AttributeError(message)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


_PACKAGES = {*_LATER, "optimizers", "schedules", "transforms"}
_NAMES = sorted({*_PACKAGES, *_HOMES, *optimizers.__all__, *schedules.__all__, *transforms.__all__})
_EVERYDAY = {
    *("clip", "ema", "fixed", "flatten", "freeze", "hyper", "identity", "interval", "jacobian"),
    *("masked", "named", "nodes", "packed", "partition", "patch", "positive", "prior", "root"),
    *("scale", "schedule", "select", "static", "strict", "tied", "trace"),
}

__all__ = [n for n in _NAMES if n not in _PACKAGES | _EVERYDAY and not n.startswith("scale_by_")]  # pyright: ignore[reportUnsupportedDunderAll]
