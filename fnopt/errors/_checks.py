"""Checks of arguments: params, batches, PRNG keys, numbers and options."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.errors._paths import leaf_text, leaves_with_names
from fnopt.errors._text import names_text, type_text, where
from fnopt.numerics import is_array_like, is_inexact

NamedLeaves = list[tuple[str, Any]]
CLOSED_OVER = "Let the function close over arrays that all examples share."


def check_params(leaves: NamedLeaves, name: str) -> None:
    """Check that every leaf of the parameters can be differentiated."""
    for path, leaf in leaves:
        if not is_inexact(leaf):
            raise TypeError(
                f"{name}: {path} is {type_text(leaf)}, which has no gradient; expected a floating "
                "array. Split off the leaves that aren't floating (equinox.partition, "
                "flax.nnx.split) and close over them, or choose the differentiated argument with "
                "argnums."
            )


def check_batch(leaves: NamedLeaves, name: str, shared: str = CLOSED_OVER) -> int:
    """Check that all batched leaves have the same number of examples, and return this number.

    `name` is the function that the user called. `shared` is the part of the message that explains
    how to pass arguments that all examples share.
    """
    if not leaves:
        raise ValueError(
            f"{name}: the batch contains no array, expected at least one array with a leading axis "
            "of examples."
        )
    for path, leaf in leaves:
        if not getattr(leaf, "shape", ()):
            is_key = jnp.issubdtype(getattr(leaf, "dtype", jnp.float32), jax.dtypes.prng_key)
            if is_key:
                raise ValueError(
                    f"{name}: {path} of the batch is one random key, expected one key per example. "
                    "Split the key with jax.random.split(key, n)."
                )
            raise ValueError(
                f"{name}: {path} of the batch is {type_text(leaf)} without an example axis, "
                f"expected a leading axis of examples. {shared}"
            )
    sizes = {path: leaf.shape[0] for path, leaf in leaves}
    if len({*sizes.values()}) > 1:
        raise ValueError(
            f"{name}: the leading axes of the batch have different lengths: "
            f"{names_text([f'{path}: {size}' for path, size in sizes.items()])}. "
            "Expected one entry per example in every leaf."
        )
    size = leaves[0][1].shape[0]
    if size == 0:
        raise ValueError(
            f"{name}: the batch is empty: {leaves[0][0]} is {type_text(leaves[0][1])}, "
            "expected at least one example."
        )
    return size


def check_key(key: Any, name: str) -> Any:
    """Check that a value is one PRNG key, typed or raw."""
    # A raw key is uint32[2] for Threefry and uint32[4] for RBG, so its length isn't checked.
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if (typed and shape == ()) or (dtype == jnp.uint32 and shape is not None and len(shape) == 1):
        return key
    raise TypeError(
        f"{name}: key is {type_text(key)}, expected one PRNG key (jax.random.key(seed)), from "
        "which the keys of the examples are derived. Pass keys that you have split yourself as a "
        "batched argument."
    )


def check_returned(tree: Any, what: str) -> None:
    """Check that a result consists of arrays and numbers, which a compiled program can return."""
    for path, leaf in leaves_with_names(tree)[0]:
        is_array = is_array_like(leaf) or hasattr(leaf, "__jax_array__")
        # NumPy arrays of objects, strings, dates (kinds O, S, U, M) have a dtype that JAX lacks.
        if not is_array or getattr(getattr(leaf, "dtype", None), "kind", "f") in "OSUM":
            raise TypeError(
                f"{what}: {leaf_text(path)} is {leaf!r:.60}, expected an array or a number, "
                "because the function is compiled. Add other values outside of the function."
            )


def check_number(value: Any, what: str, name: str) -> None:
    """Check that a value is a real scalar: a number or an array of shape `()`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):  # True is an int in Python
        return
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    real = dtype is not None and (
        jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    )
    if not real or shape != ():
        raise TypeError(f"{name}: {what} is {type_text(value)}, expected one number.")


def check_tolerance(value: Any, what: str, name: str) -> None:
    """Check a stopping tolerance; None (the default) and traced values pass."""
    if value is None:
        return
    check_number(value, what, name)
    if not isinstance(value, Tracer) and not value >= 0:  # NaN fails too
        raise ValueError(
            f"{name}: {what} is {value}, expected a number >= 0; 0 disables this stopping test."
        )


def is_integer(value: Any, least: int | None = None) -> bool:
    """Whether a value is a Python or NumPy integer of at least `least`."""
    try:
        operator.index(value)
    except TypeError:  # also for JAX arrays of floats, although they have an `__index__` method
        return False
    return not isinstance(value, bool) and (least is None or value >= least)


def check_count(value: Any, what: str, name: str, least: int = 1, otherwise: str = "") -> int:
    """Convert an integer of Python or NumPy to an int; raise an error for other values.

    `otherwise` is appended to the message and names other accepted values.
    """
    if not is_integer(value):
        raise TypeError(f"{name}: {what} is {value!r}, expected an int{otherwise}.")
    if value < least:
        raise ValueError(f"{name}: {what} is {value}, expected at least {least}{otherwise}.")
    return operator.index(value)


def check_choice(value: Any, choices: tuple[Any, ...], what: str, name: str) -> None:
    """Check that an option is one of the choices."""
    if value not in choices:
        expected = ", ".join(map(repr, choices))
        raise ValueError(f"{name}: {what} is {value!r}, expected one of {expected}.")


def check_function(fn: Any, what: str, name: str, advice: str = "") -> None:
    """Check that the argument `what` of `name` is a function; `advice` ends the message."""
    if not callable(fn):
        text = f"{name}: {what} is {type_text(fn)}, expected a function of the params. {advice}"
        raise TypeError(text.rstrip())


def accepts_args(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether the signature of a function accepts these arguments."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def check_chunk_size(chunk_size: int | None, name: str) -> int | None:
    """Check that a chunk size is `None` or a positive int, and return it."""
    if chunk_size is None:
        return None
    return check_count(chunk_size, "chunk_size", name, otherwise=", or None for the default")


EQUINOX_FILTER = "eqx.filter(model, eqx.is_inexact_array)"


def check_inexact(tree: Any, what: str, fitted: bool = False) -> None:
    """Raise a TypeError that names the first leaf that isn't a floating or complex array.

    The advice in the message is for a solver if `fitted` is True, otherwise for an optimizer.
    """
    # The names of the leaves take ten times as long as this check, so only a failure computes them.
    if all(map(is_inexact, jax.tree.leaves(tree))):
        return
    for path, leaf in leaves_with_names(tree)[0]:
        if is_inexact(leaf):
            continue
        raise TypeError(
            f"{where()}{what}: {leaf_text(path)} is {type_text(leaf)}, expected a floating array. "
            f"{_leaf_advice(leaf, fitted)}"
        )


def _leaf_advice(leaf: Any, fitted: bool) -> str:
    """Advice for a leaf that an optimizer can't update or a solver can't fit."""
    if dataclasses.is_dataclass(leaf):
        return (
            "JAX treats a dataclass as one leaf unless its class is registered: decorate "
            "it with jax.tree_util.register_dataclass."
        )
    if fitted and is_array_like(leaf):
        return "Convert the leaf to float, or remove it from the tree and close over it."
    if fitted:
        return (
            "Remove such leaves from the tree (Equinox: params, rest = eqx.partition(model, "
            "eqx.is_inexact_array), and eqx.combine(params, rest) inside the function)."
        )
    number = "Write a number as a float, 1.0. " if isinstance(leaf, int) else ""
    return (
        f"{number}Freeze such leaves with fnopt.freeze or fnopt.partition (around the whole "
        f"optimizer), or filter them out of the tree first (Equinox: {EQUINOX_FILTER})."
    )
