"""Recipes: optimizers as functions of a learning rate, and their shared arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from fnopt.core import Transformation, as_number
from fnopt.errors import error_scope, wrong_arguments
from fnopt.sharding import sharded_full_like
from fnopt.transforms import Chain, add_decayed_weights, chain, scale_by_learning_rate

_Recipe = TypeVar("_Recipe", bound=Callable[..., Any])

_NOT_NEGATIVE = {"learning_rate", "weight_decay", "adam_learning_rate", "adam_weight_decay"}


def recipe(fn: _Recipe) -> _Recipe:
    """Decorate a recipe so that its error for an unknown argument names a similar argument.

    Args:
        fn: A function that returns an optimizer.

    Returns:
        The same function, signature and documentation.
    """
    # `inspect.signature` is slow, and this runs when fnopt is imported.
    code = fn.__code__
    parameters = code.co_varnames[: code.co_argcount]
    flags = {name for name, kind in fn.__annotations__.items() if kind == "bool"}

    @functools.wraps(fn)
    def make(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        _check_arguments(fn.__name__, given, flags)
        try:
            # The error of a member names its recipe: `sgd > trace: decay`.
            with error_scope(fn.__name__):
                return fn(*args, **kwargs)
        except TypeError:
            message = wrong_arguments(fn, args, kwargs)
            if message is None:
                raise
        raise TypeError(message)

    for method in ("init", "update"):
        setattr(make, method, functools.partial(_refuse, fn.__name__, method))
    return make  # pyright: ignore[reportReturnType]


def _refuse(recipe: str, method: str, *_: Any, **__: Any) -> None:
    """Raise the error for `fnopt.adam.init(params)`, which uses a recipe as an optimizer."""
    raise TypeError(
        f"{recipe}.{method}: {recipe} is a function that makes an optimizer. "
        f"Call it first: tx = {recipe}(...), then tx.{method}(...)."
    )


def _check_arguments(recipe: str, given: dict[str, Any], flags: set[str]) -> None:
    """Check the signs of numbers and the types of flags, including flags without effect."""
    for name in _NOT_NEGATIVE & given.keys():
        value = as_number(given[name])
        # A traced number has no value yet.
        is_known = isinstance(value, (float, jax.Array)) and not isinstance(value, Tracer)
        if is_known and np.any(np.asarray(value) < 0):
            raise ValueError(f"{recipe}: {name} = {given[name]}, expected {name} >= 0.")
    for name in flags & given.keys():
        if not isinstance(given[name], (bool, np.bool_)):
            raise TypeError(f"{recipe}: {name} = {given[name]!r}, expected True or False.")


def descend(
    direction: Transformation, learning_rate: Any, weight_decay: Any = None, mask: Any = None
) -> Chain:
    """Chain a direction, decoupled weight decay unless it is None, and the learning rate."""
    # The decay comes after the direction and before the learning rate: it is decoupled (Loshchilov
    # and Hutter, 2019).
    decay = () if weight_decay is None else (add_decayed_weights(weight_decay, mask),)
    return chain(direction, *decay, scale_by_learning_rate(learning_rate))


def as_betas(recipe: str, betas: Any) -> tuple[Any, Any]:
    """Convert the two decays of a recipe that takes them as a pair."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{recipe}: betas = {betas!r}, expected a pair such as (0.9, 0.999).")
    return betas[0], betas[1]


def clip_modulus(x: jax.Array, most: jax.Array) -> jax.Array:
    """Clip the modulus of elements to `most`; complex elements keep their phase."""
    if not jnp.iscomplexobj(x):
        return jnp.clip(x, -most, most)
    modulus = jnp.abs(x)
    # Where the modulus is 0 the quotient is not used, but its derivative would be NaN.
    is_long = modulus > most
    return jnp.where(
        is_long, x * (most / jnp.where(is_long, modulus, sharded_full_like(modulus, 1))), x
    )


def write_after(new: jax.Array, reader: jax.Array) -> jax.Array:
    """Return the new value of a slot, written after `reader`, an array made from the old value.

    XLA writes a donated slot in place only if all loops that read the old value run earlier. A
    `select` enforces this order and reads `reader` once; otherwise XLA copies the slot.

    Args:
        new: The new value.
        reader: An array of the same shape.

    Returns:
        `new`, but NaN where `reader` is NaN.
    """
    unknown = reader if reader.dtype == new.dtype else sharded_full_like(new, jnp.nan)
    return lax.select(lax.ne(reader, reader), unknown, new)
