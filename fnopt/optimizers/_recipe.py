"""Recipes: optimizers as functions of a learning rate, with advice for a wrong argument."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from fnopt.core import is_negative, place

_Recipe = TypeVar("_Recipe", bound=Callable[..., Any])

# Arguments of other libraries' optimizers, in the order in which a recipe is asked for ours.
_OURS = {
    "lr": ("learning_rate",),
    "rate": ("learning_rate",),
    "step_size": ("learning_rate",),
    "betas": ("b1", "b2"),
    "beta1": ("b1",),
    "beta_1": ("b1",),
    "beta2": ("b2",),
    "beta_2": ("b2",),
    "epsilon": ("eps",),
    "rho": ("decay", "b2"),
    "alpha": ("decay", "learning_rate"),
    "use_nesterov": ("nesterov",),
}
# Options of other libraries' optimizers that are a transform of their own here.
_APART = {
    "weight_decay": "fnopt.chain(fnopt.add_decayed_weights(weight_decay), {}) for an L2 penalty, "
    "or the optimizer's w form (adamw) for decoupled decay",
    "amsgrad": "fnopt.amsgrad",
    "clipnorm": "fnopt.chain(fnopt.clip_by_global_norm(norm), {})",
    "global_clipnorm": "fnopt.chain(fnopt.clip_by_global_norm(norm), {})",
    "clipvalue": "fnopt.chain(fnopt.clip(value), {})",
    "maximize": "the gradient of minus the function",
    "use_ema": "fnopt.chain({}, fnopt.params_ema(decay))",
    "gradient_accumulation_steps": "fnopt.accumulate({}, k)",
    "params": "tx.init(params): an optimizer here doesn't hold the params",
}
_APART["l2"] = _APART["weight_decay"]
_NOT_NEGATIVE = {"learning_rate", "weight_decay", "adam_learning_rate", "adam_weight_decay"}


def recipe(fn: _Recipe) -> _Recipe:
    """A recipe whose error for an unknown argument names the one to write.

    Args:
        fn: A function that makes an optimizer.

    Returns:
        The same function, signature and documentation.
    """
    # Not from `inspect.signature`, which is slow: this runs when fnopt is imported.
    code = fn.__code__
    parameters = code.co_varnames[: code.co_argcount]
    flags = {name for name, kind in fn.__annotations__.items() if kind == "bool"}

    @functools.wraps(fn)
    def made(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        _check_signs(fn.__name__, given)
        _check_flags(fn.__name__, {name: given[name] for name in flags & given.keys()})
        try:
            with place(fn.__name__):  # an error of a member says whose it is: `sgd > trace: decay`
                return fn(*args, **kwargs)
        except TypeError:
            message = _refusal(fn, args, kwargs)
            if message is None:
                raise
        raise TypeError(message)

    for method in ("init", "update"):
        setattr(made, method, functools.partial(_refuse, fn.__name__, method))
    return made  # pyright: ignore[reportReturnType]


def _refuse(recipe: str, method: str, *_: Any, **__: Any) -> None:
    """The error for `fnopt.adam.init(params)`: a recipe in place of the optimizer it makes."""
    raise TypeError(
        f"{recipe}.{method}: {recipe} is a function that makes an optimizer. "
        f"Call it first: tx = {recipe}(...), then tx.{method}(...)."
    )


def _check_signs(recipe: str, given: dict[str, Any]) -> None:
    """Refuses what a part of a chain may take, for the sake of other chains, and a recipe not."""
    for name in _NOT_NEGATIVE & given.keys():
        if is_negative(given[name]):
            raise ValueError(f"{recipe}: {name} = {given[name]}, expected {name} >= 0.")


def _check_flags(recipe: str, given: dict[str, Any]) -> None:
    """Refuses flags that aren't, also those that another argument makes idle."""
    for name, value in given.items():
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{recipe}: {name} = {value!r}, expected True or False.")


def as_betas(recipe: str, betas: Any) -> tuple[Any, Any]:
    """The two decays of a recipe that takes them together."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{recipe}: betas = {betas!r}, expected a pair such as (0.9, 0.999).")
    return betas[0], betas[1]


def _refusal(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The error message for the arguments, or None if they fit the signature."""
    signature = inspect.signature(fn)
    try:
        signature.bind(*args, **kwargs)
        return None
    except TypeError as error:
        known = list(signature.parameters)
        unknown = [name for name in kwargs if name not in known]
        hint = _hint(fn.__name__, unknown[0], known) if unknown else ""
        what = f"unknown argument {unknown[0]!r}" if unknown else str(error)
    return f"{fn.__name__}: {what}; it takes ({', '.join(known)}).{hint}"


def _hint(name: str, given: str, known: list[str]) -> str:
    ours = [n for n in _OURS.get(given, ()) if n in known]
    ours = ours or difflib.get_close_matches(given, known, n=1)
    if ours:
        return f" Write {', '.join(f'{n}=...' for n in ours)}."
    if given in _APART:
        return f" Write {_APART[given].format(f'fnopt.{name}(...)')}."
    return ""
