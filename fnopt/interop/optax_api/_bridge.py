"""optax's conventions for arguments, such as functions as rates and masks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax

from fnopt.core import Transformation, Value, static
from fnopt.schedules import schedule

# Arguments that may be a function of the step in place of a number.
_SCHEDULED = {"learning_rate", "weight_decay", "k", "decay", "step_size", "scaling"}
# Suffixes of arguments that may be a function of the params in place of a tree.
_OF_PARAMS = ("mask", "weight_dimension_numbers")
# Arguments with other names in optax: for each function, optax's names keyed by fnopt's names.
_NAMES: dict[str, dict[str, str]] = {
    "mechanize": {"inner": "base_optimizer"},
    "schedule_free": {"inner": "base_optimizer"},
    "stateless": {"fn": "f"},
}
_RENAMED = {optax: fnopt for names in _NAMES.values() for fnopt, optax in names.items()}
# Arguments that only print messages, which fnopt ignores.
PRINTING = {"verbose", "print_win_rate_every_n_steps"}


class _with_labels(Transformation):
    """Transform whose labels or masks are functions of the params, evaluated in every call."""

    floating_alone = True

    make: Callable[[Any], Any] = static()
    labels: Callable[[Any], Any] = static()

    def init(self, params: Any) -> Any:
        """Initial state of the transform for these params."""
        return self.make(self.labels(params)).init(params)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Apply the transform for these params."""
        tx = self.make(self.labels(updates if params is None else params))
        return tx.update(updates, state, params, **extra_args)


def is_function(value: Any) -> bool:
    """Whether a value is a function and not a callable tree."""
    # A callable module, or an fnopt Schedule, is itself a tree.
    if isinstance(value, Value) or not callable(value):
        return False
    return jax.tree.leaves(value) == [value]


def as_schedule(value: Any) -> Any:
    """Convert a function of the step to a Schedule; return other values unchanged."""
    return schedule(value) if is_function(value) else value


def with_labels(make: Callable[[Any], Any], labels: Any) -> Any:
    """Make a transform whose labels (or mask) are a tree or a function of the params."""
    return _with_labels(make, labels) if is_function(labels) else lenient(make(labels))


def lenient(tx: Any) -> Any:
    """Make `init` skip leaves that aren't floating arrays, as optax does."""
    if isinstance(tx, Transformation) and not tx.floating_alone:
        tx._set("floating_alone", True)
    return tx


def make_lenient(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make the results of a function `lenient` if they are transforms."""

    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        return lenient(make(*args, **kwargs))

    return call


def own_name(argument: str, signature: inspect.Signature) -> str:
    """Translate optax's name of an argument to fnopt's name."""
    return argument if argument in signature.parameters else _RENAMED.get(argument, argument)


# optax's defaults that differ from fnopt's, because optax assumes that losses are nonnegative.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "momo": {"lower_bound": 0.0},
    "momo_adam": {"lower_bound": 0.0},
    "polyak_sgd": {"f_min": 0.0},
    "scale_by_polyak": {"f_min": 0.0},
}


@functools.cache
def bridge(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an fnopt optimizer or transform so that it accepts optax's arguments.

    Args:
        fn: A function or class of fnopt.

    Returns:
        A function with the same signature that accepts functions as schedules and masks.
    """
    signature, defaults = inspect.signature(fn), _DEFAULTS.get(fn.__name__, {})

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs = {own_name(k, signature): v for k, v in kwargs.items() if k not in PRINTING}
        values = {**defaults, **signature.bind(*args, **kwargs).arguments}
        for name in _SCHEDULED & values.keys():
            values[name] = as_schedule(values[name])
        mask_fns = {n: f for n, f in values.items() if n.endswith(_OF_PARAMS) and is_function(f)}
        if not mask_fns:
            return _call(fn, signature, values)

        return _with_labels(
            lambda trees: _call(fn, signature, {**values, **trees}),
            lambda params: {n: f(params) for n, f in mask_fns.items()},
        )

    names = _NAMES.get(fn.__name__, {})
    parameters = [
        p.replace(name=names.get(name, name), default=defaults.get(name, p.default))
        for name, p in signature.parameters.items()
    ]
    call.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return call


def _call(fn: Callable[..., Any], signature: inspect.Signature, values: dict[str, Any]) -> Any:
    """Call a function with values keyed by the names of its parameters."""
    bound = inspect.BoundArguments(signature, {})  # pyright: ignore[reportArgumentType]
    bound.arguments.update({n: values[n] for n in signature.parameters if n in values})
    return lenient(fn(*bound.args, **bound.kwargs))
