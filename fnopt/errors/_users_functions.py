"""Advice for errors that JAX raises in users' functions or for arrays on different devices."""

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

_NUMPY_CALL = re.compile(r"\b(np|numpy|scipy|special|math)\.((?:\w+\.)*\w+)\s*\(")
_ITEM_ASSIGNMENT = re.compile(r"[\w.]+\[[^=]*\]\s*[-+*/]?=(?!=)")
_JAX_ERRORS = (
    jax.errors.TracerArrayConversionError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
)
_ARGUMENT = re.compile(r"(?:arose for the|The) `?(\w+)`? argument of ([\w.]*\w)")
# JAX's modules for NumPy's and SciPy's; all other functions are in jnp.
_JAX_MODULES = {"scipy": "jax.scipy.", "special": "jax.scipy.special."}


class NotForJaxError(TypeError):
    """Error in a user's function that isn't written for JAX; `__cause__` is JAX's error.

    Args:
        message: The text of the error.
        is_of_another: Whether an enclosing `explain_jax_errors` re-raises this error unchanged,
            because it concerns another function.
    """

    def __init__(self, message: str, is_of_another: bool = False) -> None:
        super().__init__(message)
        self.is_of_another = is_of_another


def _is_of_jax(error: Any) -> TypeGuard[BaseException]:
    # For `math.sin(x)` of an array that isn't a scalar, JAX raises a plain TypeError.
    return isinstance(error, _JAX_ERRORS) or "can be converted to Python scalars" in str(error)


@contextlib.contextmanager
def explain_jax_errors(name: str, fn: str = "f", is_another: bool = False) -> Iterator[None]:
    """Convert a JAX error to an error that quotes the user's line and a correction.

    Args:
        name: The name of the function that was called.
        fn: The name of the argument that is the user's function.
        is_another: Whether `fn` is called inside another function of the user.
    """
    try:
        yield
    except (*_JAX_ERRORS, NotForJaxError, TypeError, ValueError) as exception:
        # Among nested calls, the message names the outermost function, which the user called. NumPy
        # raises a ValueError from JAX's error if a tracer is assigned to an entry of an array.
        error = exception if _is_of_jax(exception) else exception.__cause__
        if not _is_of_jax(error) or getattr(exception, "is_of_another", False):
            raise
        line, called = _user_line(exception if isinstance(exception, ValueError) else error)
        argument = _ARGUMENT.search(str(error))
        if argument is not None:
            argument_name, function = argument.groups()
            what = f"passes {function} an array as `{argument_name}`; pass a Python number"
        elif isinstance(error, jax.errors.TracerBoolConversionError):
            what = "branches in Python on the value of an array; write jnp.where(condition, a, b)"
        elif isinstance(error, jax.errors.NonConcreteBooleanIndexError):
            what = "indexes with a boolean array, so the shape of the result is unknown; "
            what += "write jnp.where(condition, a, b)"
        elif called is None and _ITEM_ASSIGNMENT.match(line):
            what = "writes into an array; write x.at[i].set(value), or jnp.stack([...])"
        elif called is None:
            what = "needs the value of a traced array; write it with jax.numpy or jax.scipy"
        else:
            what = f"calls {called[0]}; write {called[1]}"
        quoted_line = f": `{line}`" if line else ""
        message = f"{name}: {fn} {what}, because {fn} gets JAX arrays{quoted_line}."
        raise NotForJaxError(message, is_another) from error


def _user_line(error: BaseException) -> tuple[str, tuple[str, str] | None]:
    """Find the innermost user line with a NumPy call, the function and its JAX equivalent.

    Without a NumPy call, the result is the innermost user line and None.
    """
    innermost = ""
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        path = frame.f_code.co_filename
        line = linecache.getline(path, number).strip()
        if not line or "/jax/" in path or "/numpy/" in path:
            continue
        innermost = innermost or line
        call = _NUMPY_CALL.search(line)
        if call:
            module, name = call.groups()
            return line, (f"{module}.{name}", _JAX_MODULES.get(module, "jnp.") + name)
    return innermost, None


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
            f"{name}: the model computes statistics over a batch ({error}), as batch normalization "
            "does in training; expected a function of ONE example. Normalize with running averages "
            "(use_running_average=True, eqx.nn.inference_mode, is_training=False), or by LayerNorm "
            "or GroupNorm."
        ) from error
    except NotForJaxError:
        raise  # its message already quotes the line and the correction
    except Exception as error:
        leaves = leaves_with_names(example)[0]
        shapes = names_text([f"{leaf_text(path)}: {type_text(leaf)}" for path, leaf in leaves])
        error.add_note(
            f"{name} calls the function with ONE example, without the axis of the batch: "
            f"{shapes}. Pass the keys of random layers with the batch (one key per example, "
            "jax.random.split(key, n)). If the examples depend on each other through batch "
            "normalization, normalize with running averages, LayerNorm or GroupNorm."
        )
        raise


def explain_device_errors(error: ValueError, updates: Any, **others: Any) -> None:
    """Raise an error that names an array of a step on other devices than the gradients.

    If all arrays are on the same devices, the function returns without an error.

    Args:
        error: The error of JAX.
        updates: The gradients.
        others: Other arrays of the step, keyed by name: trees of arrays.
    """
    gradients = _committed(updates)
    if not gradients:
        return
    name, reference = gradients[0]
    for what, tree in {"gradients": updates, **others}.items():
        for path, x in _committed(tree):
            if x.sharding.device_set != reference.sharding.device_set:
                leaf = f"{leaf_text(path)} of {what}" if path else what
                raise ValueError(
                    f"{where()}{leaf} has the sharding {x.sharding}, {leaf_text(name)} of the "
                    f"gradients has {reference.sharding} on other devices, expected the devices "
                    "of the gradients. Move the state to the devices of the params with "
                    "jax.device_put(state, fnopt.distributed.state_sharding(tx, params)), or to "
                    "one device with jax.device_put(state, device)."
                ) from error


def _committed(tree: Any) -> list[tuple[str, jax.Array]]:
    """Arrays that are committed to devices, keyed by name."""
    leaves = leaves_with_names(tree)[0]
    return [
        (name, x)
        for name, x in leaves
        if isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.committed
    ]
