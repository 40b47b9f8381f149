"""Lookup of fnopt's objects by optax's public names."""

from __future__ import annotations

import functools
import importlib
import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

from fnopt import tree
from fnopt.core import Transformation
from fnopt.interop.optax_api._bridge import bridge, make_lenient
from fnopt.interop.optax_api._losses import broadcasting
from fnopt.interop.optax_api._restated import restate_maker
from fnopt.interop.optax_api._types import find_state

# Packages with names that may also be names of optax.
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
    "normalize": "transforms.normalize_by_update_norm",
    "ema": "transforms.ema",
    "power_iteration": "linear.power_iteration",
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
    "tree_add_scalar_mul": tree.add_scale,
    "tree_l1_norm": functools.partial(tree.norm, ord=1),
    "tree_l2_norm": functools.partial(tree.norm, ord=2),
    "tree_linf_norm": functools.partial(tree.norm, ord="inf"),
    "tree_scalar_mul": tree.scale,
}
# Names that optax has deprecated, and optax's replacement.
_DEPRECATED = {
    "convex_kl_divergence": "use generalized_kl_divergence",
    "optimistic_adam": "use `optimistic_adam_v2` instead",
}
# Packages of functions that may return transforms.
_MAKERS = ("optimizers", "transforms")
# optax's type annotations, which are replaced by `Any`.
_TYPES = {
    *("MaskOrFn", "OptState", "Params", "ScalarOrSchedule", "ShouldSkipUpdateFunction", "Updates"),
    *("ConditionFn", "TransformInitFn", "TransformUpdateExtraArgsFn", "TransformUpdateFn"),
}
NOT_HERE = {
    **dict.fromkeys(("unitwise_norm", "unitwise_clip"), "fnopt.adaptive_grad_clip"),
}


class _Namespace(types.ModuleType):
    """Substitute for a module of optax, with names from one or several packages of fnopt."""

    def __init__(self, name: str, prefix: str, *rooms: str) -> None:
        super().__init__(name, f"The names of optax's {name.rpartition('.')[2]}.")
        self._prefix, self._rooms = prefix, rooms

    def __getattr__(self, name: str) -> Any:
        # The import system looks up names such as `__path__`.
        if name.startswith("__"):
            raise AttributeError(name)
        if self._prefix and name in _OLD_TREE_NAMES:
            return _OLD_TREE_NAMES[name]
        for room in self._rooms:
            try:
                return getattr(importlib.import_module(room), name.removeprefix(self._prefix))
            except AttributeError:
                continue
        raise AttributeError(f"{self.__name__} has no {name!r}.{_hint(name)}")


def namespaces(home: str) -> dict[str, types.ModuleType]:
    """Substitutes for optax's modules in the package `home`, keyed by name."""
    rooms = {
        **dict.fromkeys(("contrib", "schedules", "transforms"), ("", home)),
        "losses": ("", home, "fnopt.losses"),
        "projections": ("", "fnopt.projections"),
        **dict.fromkeys(("assignment", "microbatching", "perturbations"), ("", home)),
        "experimental": ("", home),
        "aggregating": ("", f"{home}._aggregating", f"{home}._moments"),
        "second_order": ("", f"{home}._functions"),
        "tree": ("", f"{home}._tree", "fnopt.tree"),
        "tree_utils": ("tree_", f"{home}._tree", "fnopt.tree"),
    }
    return {name: _Namespace(f"{home}.{name}", *args) for name, args in rooms.items()}


def find(name: str, home: str) -> Any:
    """Find fnopt's object for a name of optax.

    Args:
        name: The name.
        home: The module whose attribute is requested, for the error message.

    Raises:
        AttributeError: If there is no such object; the message suggests an alternative.
    """
    value = _find(name, home)
    return _deprecated(name, value) if name in _DEPRECATED else value


def _deprecated(name: str, value: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(value)
    def call(*args: Any, **kwargs: Any) -> Any:
        text = f"{name} is deprecated in optax: {_DEPRECATED[name]}."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return value(*args, **kwargs)

    return call


def _find(name: str, home: str) -> Any:
    if name in _TYPES:
        return Any
    if name in _RENAMED:
        room, _, ours = _RENAMED[name].rpartition(".")
        return _adapt(room, getattr(importlib.import_module(f"fnopt.{room}"), ours))
    if (state := find_state(name)) is not None:
        return state
    # The first package suffices, because a name has one meaning in fnopt.
    for room in () if name.startswith("_") or name in NOT_HERE else _ROOMS:
        package = importlib.import_module(f"fnopt.{room}")
        if name in package.__all__:
            return restate_maker(name, _adapt(room, getattr(package, name)))
    raise AttributeError(f"module {home!r} has no attribute {name!r}.{_hint(name)}")


def _adapt(room: str, value: Any) -> Any:
    """Wrap an object of a package such that it accepts optax's arguments."""
    if room == "losses":
        return broadcasting(value)
    rates = {"learning_rate", "max_learning_rate"}
    makes = inspect.isfunction(value) and not rates.isdisjoint(inspect.signature(value).parameters)
    is_transform = inspect.isclass(value) and issubclass(value, Transformation)
    if makes or is_transform:
        return bridge(value)
    return make_lenient(value) if inspect.isfunction(value) and room in _MAKERS else value


def _hint(name: str) -> str:
    return f" Use {NOT_HERE[name]}." if name in NOT_HERE else ""


def names() -> list[str]:
    """List the available names, for `dir`."""
    packages = [importlib.import_module(f"fnopt.{room}") for room in _ROOMS]
    return sorted({*(n for p in packages for n in p.__all__), *_RENAMED, *_TYPES} - set(NOT_HERE))
