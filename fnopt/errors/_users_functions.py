"""Errors of users' functions and of device placement, with advice."""

from __future__ import annotations

import contextlib
import linecache
import re
import traceback
from collections.abc import Iterator
from typing import Any, TypeGuard

import jax
from jax.core import Tracer

from fnopt.errors._paths import leaf_text, leaves_with_names
from fnopt.errors._text import names_text, type_text, where

_NUMPY = re.compile(r"\b(np|numpy|scipy|special|math)\.((?:\w+\.)*\w+)\s*\(")
_WRITES = re.compile(r"[\w.]+\[[^=]*\]\s*[-+*/]?=(?!=)")
_OF_JAX = (
    jax.errors.TracerArrayConversionError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
)
_ARGUMENT = re.compile(r"(?:arose for the|The) `?(\w+)`? argument of ([\w.]*\w)")
_OURS = {"scipy": "jax.scipy.", "special": "jax.scipy.special."}  # all other functions are in jnp


class NotForJaxError(TypeError):
    """Error of a user's function that isn't written for JAX; its cause is the error of JAX.

    Args:
        message: The text of the error.
        is_of_another: Whether an enclosing `explain_jax_errors` re-raises this error unchanged,
            because it concerns another function.
    """

    def __init__(self, message: str, is_of_another: bool = False) -> None:
        super().__init__(message)
        self.is_of_another = is_of_another


def _is_of_jax(error: Any) -> TypeGuard[BaseException]:
    # A call of `math` ends in a TypeError of JAX that has no class of its own.
    return isinstance(error, _OF_JAX) or "can be converted to Python scalars" in str(error)


@contextlib.contextmanager
def explain_jax_errors(name: str, fn: str = "f", is_another: bool = False) -> Iterator[None]:
    """Convert a JAX error to an error that quotes the user's line and a correction.

    Args:
        name: The name of the function that was called.
        fn: The name of the argument that is the user's function.
        is_another: Whether `fn` differs from the user's function whose call encloses this one.
    """
    try:
        yield
    except (*_OF_JAX, NotForJaxError, TypeError, ValueError) as found:
        # Among nested calls, the user knows the outermost function. NumPy hides JAX's error behind
        # its own if an entry of an array is assigned.
        error = found if _is_of_jax(found) else found.__cause__
        if not _is_of_jax(error) or getattr(found, "is_of_another", False):
            raise
        line, called = _cause(found if isinstance(found, ValueError) else error)
        argument = _ARGUMENT.search(str(error))
        if argument is not None:
            name_of, function = argument.groups()
            what = f"calls {function} without a number for its argument {name_of}; pass one"
        elif isinstance(error, jax.errors.TracerBoolConversionError):
            what = "decides in Python by a value; write jnp.where(condition, a, b)"
        elif isinstance(error, jax.errors.NonConcreteBooleanIndexError):
            what = "selects by a condition, so no shape is known; write jnp.where(condition, a, b)"
        elif called is None and _WRITES.match(line):
            what = "writes into an array; write x.at[i].set(value), or jnp.stack([...])"
        elif called is None:
            what = "needs the numbers of an array; write it with jax.numpy or jax.scipy"
        else:
            what = f"calls {called[0]}; write {called[1]}"
        where = f": `{line}`" if line else ""
        message = f"{name}: {fn} {what}: {fn} gets JAX arrays{where}."
        raise NotForJaxError(message, is_another) from error


def _cause(error: BaseException) -> tuple[str, tuple[str, str] | None]:
    """The innermost user line with a NumPy call, the called function, and its JAX equivalent."""
    last = ""
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        path = frame.f_code.co_filename
        line = linecache.getline(path, number).strip()
        if not line or "/jax/" in path or "/numpy/" in path:
            continue
        last = last or line
        found = _NUMPY.search(line)
        if found:
            module, name = found.groups()
            return line, (f"{module}.{name}", _OURS.get(module, "jnp.") + name)
    return last, None


@contextlib.contextmanager
def explain_missing_keys(params: Any) -> Iterator[None]:
    """Add the keys of the params to a KeyError of a user's function.

    Args:
        params: The params of the function; ignored unless they are a dict.
    """
    try:
        yield
    except KeyError as error:
        if isinstance(params, dict):
            keys = [path for path, _ in leaves_with_names(params)[0]]
            error.add_note(f"params have the keys {names_text(keys)}.")
        raise
    except AttributeError as error:
        if isinstance(error.obj, dict) and error.name in error.obj:
            error.add_note(f"For a dict, write [{error.name!r}] instead of .{error.name}.")
        raise


@contextlib.contextmanager
def explain_example_errors(name: str, example: Any, params: Any = None) -> Iterator[None]:
    """Add the shapes of a single example to an error of a user's function.

    Args:
        name: The function that the user called.
        example: An example of the batch, without its leading axis.
        params: The params of the function.
    """
    try:
        with explain_jax_errors(name, "the function"), explain_missing_keys(params):
            yield
    except NameError as error:
        if "unbound axis name" not in str(error):
            raise
        raise ValueError(
            f"{name}: the model takes statistics over a batch ({error}), as batch normalization "
            "does in training. Expected a function of ONE example: one that normalizes with "
            "running averages (use_running_average=True, eqx.nn.inference_mode, "
            "is_training=False), or by LayerNorm or GroupNorm."
        ) from error
    except NotForJaxError:
        raise  # the error is complete
    except Exception as error:
        leaves = leaves_with_names(example)[0]
        seen = names_text([f"{leaf_text(path)}: {type_text(leaf)}" for path, leaf in leaves])
        error.add_note(
            f"{name} calls the function with ONE example, without the axis of the batch: "
            f"{seen}. Pass the keys of random layers with the batch (one key per example, "
            "jax.random.split(key, n)). A function whose examples depend on each other "
            "has no such form: normalize with running averages, by LayerNorm or "
            "GroupNorm."
        )
        raise


def explain_device_errors(error: ValueError, updates: Any, **others: Any) -> None:
    """Raise an error that names an array on other devices than the gradients, if there is one.

    Args:
        error: The error of JAX.
        updates: The gradients.
        others: Other arrays of the step, keyed by name: trees of arrays.
    """
    gradients = _committed(updates)
    if not gradients:
        return
    name, home = gradients[0]
    for what, tree in {"gradients": updates, **others}.items():
        for other, x in _committed(tree):
            if x.sharding.device_set != home.sharding.device_set:
                leaf = f"{leaf_text(other)} of {what}" if other else what
                raise ValueError(
                    f"{where()}{leaf} has the sharding {x.sharding}, {leaf_text(name)} of the "
                    f"gradients has {home.sharding}: on other devices. Bring the state to where "
                    "the params are with jax.device_put(state, "
                    "fnopt.distributed.state_sharding(tx, params)), or to one device with "
                    "jax.device_put(state, device)."
                ) from error


def _committed(tree: Any) -> list[tuple[str, jax.Array]]:
    """Arrays that are committed to devices, keyed by name."""
    named = leaves_with_names(tree)[0]
    return [
        (name, x)
        for name, x in named
        if isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.committed
    ]
