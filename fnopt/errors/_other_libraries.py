"""Replacements of other libraries' arguments and attributes, and of deprecated names."""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

_RATE = ("learning_rate", "peak_value", "init_value", "value")  # also the arguments of schedules
# Arguments of other libraries' optimizers, with fnopt's names in order of preference.
_RENAMED = {
    **dict.fromkeys(("lr", "rate", "step_size"), _RATE),
    "learning_rate": _RATE,
    "betas": ("b1", "b2"),
    "beta1": ("b1",),
    "beta_1": ("b1",),
    "beta2": ("b2",),
    "beta_2": ("b2",),
    "epsilon": ("eps",),
    "rho": ("decay", "b2"),
    "alpha": ("decay", "learning_rate"),
    "use_nesterov": ("nesterov",),
    "every_k_schedule": ("k",),
}
# Options of other libraries' optimizers that are separate transforms in fnopt.
_SEPARATE_TRANSFORMS = {
    "weight_decay": "fnopt.chain(fnopt.add_decayed_weights(weight_decay), {}) for an L2 penalty, "
    "or the optimizer's w form (adamw) for decoupled decay",
    "amsgrad": "fnopt.amsgrad",
    "clipnorm": "fnopt.chain(fnopt.clip_by_global_norm(norm), {})",
    "global_clipnorm": "fnopt.chain(fnopt.clip_by_global_norm(norm), {})",
    "clipvalue": "fnopt.chain(fnopt.clip(value), {})",
    "maximize": "the gradient of minus the function",
    "use_ema": "fnopt.chain({}, fnopt.params_ema(decay))",
    "gradient_accumulation_steps": "fnopt.accumulate({}, k)",
    "params": "tx.init(params), because an fnopt optimizer doesn't store the params",
}
_SEPARATE_TRANSFORMS["l2"] = _SEPARATE_TRANSFORMS["weight_decay"]
# Removed arguments of matrix optimizers (Muon, SOAP), with the transforms or options that replace
# them.
_MATRIX_ARGUMENTS = {
    "muon_weight_dimension_numbers": "weight_dimension_numbers",
    "weight_decay_mask": "weight_decay=fnopt.add_decayed_weights(decay, mask)",
    "mu_dtype": "fnopt.precision_policy({}, {{'mu': dtype}}), or 'ema' for Muon's mean",
    **dict.fromkeys(
        ("ns_coeffs", "ns_steps", "eps", "preconditioning", "adaptive", "ns_dtype"),
        "orthogonalizer=fnopt.orthogonalize(...)",
    ),
    "nesterov": "a chain of fnopt.ema and other parts in fnopt.partition_matrices",
    **{
        f"adam_{name}": "others=fnopt.adamw(...)"
        for name in ("b1", "b2", "eps", "eps_root", "learning_rate", "weight_decay")
    },
    **dict.fromkeys(
        (
            *("max_precond_dim", "shampoo_beta", "one_sided", "normalize_grads", "block_size"),
            *("exponent", "grafting", "graft_b2", "graft_eps", "initial_value"),
            *("max_inverse_root", "random_seed"),
        ),
        "a chain of the scale_by_ transform with this argument, inside fnopt.partition_matrices",
    ),
}


def wrong_arguments(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Error message for arguments that don't match a signature; None for matching arguments."""
    signature = inspect.signature(fn)
    try:
        signature.bind(*args, **kwargs)
        return None
    except TypeError as error:
        argument_names = list(signature.parameters)
        unknown = [name for name in kwargs if name not in argument_names]
        hint = _argument_advice(fn.__name__, unknown[0], argument_names) if unknown else ""
        what = f"unknown argument {unknown[0]!r}" if unknown else str(error)
    if fn.__name__ == "fixed":  # lmfit's Parameter(value=0.5, vary=False)
        hint = " Pass the value in p0: p0={'a': 0.5}."
    empty = inspect.Parameter.empty  # defaults and annotations would hide the names
    bare_parameters = [
        p.replace(default=empty, annotation=empty) for p in signature.parameters.values()
    ]
    bare_signature = signature.replace(parameters=bare_parameters, return_annotation=empty)
    return f"{fn.__name__}: {what}; expected {bare_signature}.{hint}"


def _argument_advice(name: str, argument: str, argument_names: list[str]) -> str:
    """Advice for an unknown argument of the optimizer `name`; `''` if there is none."""
    if "others" in argument_names and argument in _MATRIX_ARGUMENTS:
        return f" Write {_MATRIX_ARGUMENTS[argument].format(f'fnopt.{name}(...)')}."
    replacements = [n for n in _RENAMED.get(argument, ()) if n in argument_names]
    replacements = replacements if argument == "betas" else replacements[:1]
    if argument not in _RENAMED:
        replacements = difflib.get_close_matches(argument, argument_names, n=1)
    if replacements:
        return f" Write {', '.join(f'{n}=...' for n in replacements)}."
    if argument in _SEPARATE_TRANSFORMS:
        return f" Write {_SEPARATE_TRANSFORMS[argument].format(f'fnopt.{name}(...)')}."
    return ""


# Methods and attributes of other libraries' optimizers, with fnopt's replacements.
_STEP = "updates, state = tx.update(grads, state, params); params = fnopt.apply_updates(...)"
_READ = "fnopt.hyperparams(tx, state) returns hyper-parameters, fnopt.slots(state) returns slots"
_ATTRIBUTES = {
    **dict.fromkeys(("step", "apply", "apply_gradients", "apply_gradient", "get_updates"), _STEP),
    "minimize": f"compute the gradient with jax.grad, then {_STEP}; or call fnopt.minimize",
    "apply_updates": "fnopt.apply_updates(params, updates)",
    "zero_grad": "omit this call, because jax.grad returns a new gradient each time",
    **dict.fromkeys(
        ("state", "slots", "variables", "state_dict", "load_state_dict", "iterations"),
        f"state = tx.init(params), a value that your program stores; {_READ}",
    ),
    **dict.fromkeys(("learning_rate", "lr", "param_groups", "hyperparams"), _READ),
}


def advice_for_attribute(name: str) -> str:
    """Advice for a method or an attribute of another library's optimizers.

    Args:
        name: The requested attribute.

    Returns:
        A sentence after a space, or an empty string.
    """
    return f" Instead: {_ATTRIBUTES[name]}." if name in _ATTRIBUTES else ""


def deprecated_names(package: str, new_names: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package with renamed names.

    Args:
        package: The name of the package, such as `'fnopt.core'`.
        new_names: A mapping from old names to new names in the same package, or to dotted paths.

    Returns:
        A function that warns and returns the renamed object.
    """

    def resolve(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, new = new_names[name].rpartition(".")
        module = module or package
        text = f"{package}.{name} is deprecated: write {module}.{new}."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(module), new)

    return resolve


def missing_attribute(kind: str, names: dict[str, str]) -> Callable[[Any, str], NoReturn]:
    """Make a `__getattr__` whose error names fnopt's replacement of the attribute.

    Args:
        kind: The kind of object that lacks the attribute, with its article.
        names: A mapping from other libraries' names to fnopt's replacements.

    Returns:
        A method that raises an AttributeError.

    Example:
        >>> from fnopt.errors import missing_attribute
        >>> class Result:
        ...     __getattr__ = missing_attribute("a Result", {"x": "params"})
        >>> Result().x
        Traceback (most recent call last):
        AttributeError: a Result has no attribute 'x'; write params.
    """

    def raise_missing(self: Any, name: str) -> NoReturn:
        del self
        hint = f"; write {names[name]}" if name in names else ""
        raise AttributeError(f"{kind} has no attribute {name!r}{hint}.")

    return raise_missing
