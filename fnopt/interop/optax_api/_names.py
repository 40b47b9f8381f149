"""The table from optax's public names to fnopt's."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from fnopt.core import Transformation
from fnopt.interop.optax_api._bridge import bridged
from fnopt.interop.optax_api._states import find_state

# Where names that are the same thing here may live.
_ROOMS = ("core", "optimizers", "transforms", "schedules", "losses", "projections", "gradients")
_RENAMED = {
    "Schedule": "core.Schedule",
    "convex_kl_divergence": "losses.generalized_kl_divergence",
    "hungarian_algorithm": "discrete.hungarian_algorithm",
    "base_hungarian_algorithm": "discrete.hungarian_algorithm",
    "make_perturbed_fun": "discrete.make_perturbed_fun",
    "Gumbel": "discrete.Gumbel",
    "Normal": "discrete.Normal",
    "bias_correction": "tree.bias_correction",
    "matrix_inverse_pth_root": "linear.matrix_inverse_pth_root",
    "named_chain": "transforms.chain",
    "snapshot": "monitor.snapshot",
    "normalize": "transforms.normalize_by_update_norm",
    "ema": "transforms.ema",
    "power_iteration": "linear.power_iteration",
    "safe_increment": "core.increment",
    "safe_int32_increment": "core.increment",
    "safe_softmax_cross_entropy": "losses.softmax_cross_entropy",
    "tree_map_params": "tree.map_params",
    "update_infinity_moment": "tree.update_infinity_moment",
    "update_moment": "tree.update_moment",
    "update_moment_per_elem_norm": "tree.update_moment_per_elem_norm",
    "ZoomLinesearchInfo": "transforms.states.ZoomLinesearchInfo",
    "MuonDimensionNumbers": "optimizers.MatrixDimensionNumbers",
    "GaLoreDimensionNumbers": "optimizers.MatrixDimensionNumbers",
}
# Names of `tree_utils` before 0.2.5.
_OLD_TREE_NAMES = {
    "tree_add_scalar_mul": "add_scale",
    "tree_l2_norm": "norm",
    "tree_scalar_mul": "scale",
}
# optax's annotations, which say no more than this.
_TYPES = {
    *("MaskOrFn", "OptState", "Params", "ScalarOrSchedule", "ShouldSkipUpdateFunction", "Updates"),
    *("TransformInitFn", "TransformUpdateExtraArgsFn", "TransformUpdateFn"),
}
NOT_HERE = {
    "MonitorState": "fnopt.tree.get(state, name)",
    "PartitionState": "the state itself, a dict by label",
    "MultiTransformState": "the state itself, a dict by label",
    **dict.fromkeys(("second_order", "hvp", "hessian_diag", "fisher_diag"), "fnopt.curvature"),
    "micro_grad": "microbatch, or the chunk_size of fnopt.clipped_grad and the like",
    "micro_vmap": "microbatch, or jax.lax.map with a batch_size",
    "Accumulator": "microbatch with 'sum', 'mean' or 'concat'",
    "reshape_batch_axis": "microbatch, which does it",
    "multi_normal": "a library of distributions",
    "nnls": "fnopt.least_squares with bounds",
    "InjectStatefulHyperparamsState": "InjectHyperparamsState",
    "inject_stateful_hyperparams": "inject_hyperparams, or the optimizer itself, which is a pytree",
}


class _Namespace:
    """A module of optax's: its names, found in one of fnopt's packages or in several."""

    def __init__(self, name: str, prefix: str, *rooms: str) -> None:
        self.__name__ = name
        self._prefix, self._rooms = prefix, rooms

    def __getattr__(self, name: str) -> Any:
        for room in self._rooms:
            try:
                own = _OLD_TREE_NAMES.get(name) or name.removeprefix(self._prefix)
                return getattr(importlib.import_module(room), own)
            except AttributeError:
                continue
        raise AttributeError(f"{self.__name__} has no {name!r}.{_hint(name)}")


def _namespaces(home: str) -> dict[str, tuple[str, ...]]:
    return {
        **dict.fromkeys(("contrib", "schedules", "transforms"), ("", home)),
        "losses": ("", "fnopt.losses", home),
        "projections": ("", "fnopt.projections"),
        **dict.fromkeys(("assignment", "microbatching", "perturbations"), ("", home)),
        "tree": ("", "fnopt.tree"),
        "tree_utils": ("tree_", "fnopt.tree"),
    }


def find(name: str, home: str) -> Any:
    """The object that stands for a name of optax's.

    Args:
        name: The name.
        home: The name of the module that asks.

    Raises:
        AttributeError: If nothing does; the message says what to use.
    """
    if name in _TYPES:
        return Any
    if name in (spaces := _namespaces(home)):
        return _Namespace(f"{home}.{name}", *spaces[name])
    if name in _RENAMED:
        room, _, ours = _RENAMED[name].rpartition(".")
        return getattr(importlib.import_module(f"fnopt.{room}"), ours)
    if (state := find_state(name)) is not None:
        return state
    for room in () if name.startswith("_") or name in NOT_HERE else _ROOMS:
        package = importlib.import_module(f"fnopt.{room}")
        if name in package.__all__:
            return _as_there(getattr(package, name))
    raise AttributeError(f"module {home!r} has no attribute {name!r}.{_hint(name)}")


def _as_there(value: Any) -> Any:
    makes = inspect.isfunction(value) and "learning_rate" in inspect.signature(value).parameters
    is_transform = inspect.isclass(value) and issubclass(value, Transformation)
    return bridged(value) if makes or is_transform else value


def _hint(name: str) -> str:
    return f" Use {NOT_HERE[name]}." if name in NOT_HERE else ""


def known() -> list[str]:
    """The names that are found, for `dir`."""
    packages = [importlib.import_module(f"fnopt.{room}") for room in _ROOMS]
    return sorted({*(n for p in packages for n in p.__all__), *_RENAMED, *_TYPES} - set(NOT_HERE))
