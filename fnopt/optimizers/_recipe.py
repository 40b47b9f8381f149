"""Recipes (functions that build optimizers), and arithmetic shared by optimizers."""

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
    """Decorate a recipe with checks of its arguments and with clear errors.

    An error for an unknown argument suggests a similar argument, and an error of a member contains
    the recipe's name.

    Args:
        fn: A function that returns an optimizer.

    Returns:
        A function with the same signature and documentation.
    """
    # Not `inspect.signature`, which is slow, because this code runs when fnopt is imported.
    code = fn.__code__
    parameters = code.co_varnames[: code.co_argcount]
    flags = {name for name, kind in fn.__annotations__.items() if kind == "bool"}

    @functools.wraps(fn)
    def make(*args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(parameters, args, strict=False)), **kwargs}
        _check_arguments(fn.__name__, arguments, flags)
        try:
            # The error of a member contains the recipe's name: `sgd > trace: decay`.
            with error_scope(fn.__name__):
                return fn(*args, **kwargs)
        except TypeError:
            message = wrong_arguments(fn, args, kwargs)
            if message is None:
                raise
        raise TypeError(message)

    for method in ("init", "update"):
        setattr(make, method, functools.partial(_raise_not_called, fn.__name__, method))
    return make  # pyright: ignore[reportReturnType]


def _raise_not_called(recipe: str, method: str, *_: Any, **__: Any) -> None:
    """Raise the error for `fnopt.adam.init(params)`, which uses a recipe as an optimizer."""
    raise TypeError(
        f"{recipe}.{method}: {recipe} is a function, expected the optimizer that it returns. "
        f"Call it first: tx = {recipe}(...), then tx.{method}(...)."
    )


def _check_arguments(recipe: str, arguments: dict[str, Any], flags: set[str]) -> None:
    """Check the signs of numbers and the types of flags, including flags without effect."""
    for name in _NOT_NEGATIVE & arguments.keys():
        value = as_number(arguments[name])
        # A traced number has no value yet.
        is_concrete = isinstance(value, (float, jax.Array)) and not isinstance(value, Tracer)
        if is_concrete and np.any(np.asarray(value) < 0):
            raise ValueError(f"{recipe}: {name} = {arguments[name]}, expected {name} >= 0.")
    for name in flags & arguments.keys():
        if not isinstance(arguments[name], (bool, np.bool_)):
            raise TypeError(f"{recipe}: {name} = {arguments[name]!r}, expected True or False.")


def descend(
    direction: Transformation, learning_rate: Any, weight_decay: Any = None, mask: Any = None
) -> Chain:
    """Chain a direction, decoupled weight decay unless it is None, and the learning rate."""
    # Decoupled weight decay comes after the direction and before the learning rate (Loshchilov and
    # Hutter, 2019).
    decay = () if weight_decay is None else (add_decayed_weights(weight_decay, mask),)
    return chain(direction, *decay, scale_by_learning_rate(learning_rate))


def as_betas(recipe: str, betas: Any) -> tuple[Any, Any]:
    """Check a pair of decay rates."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{recipe}: betas = {betas!r}, expected a pair such as (0.9, 0.999).")
    return betas[0], betas[1]


def clip_modulus(x: jax.Array, limit: jax.Array) -> jax.Array:
    """Clip the modulus of elements to `limit`; complex elements keep their phase."""
    if not jnp.iscomplexobj(x):
        return jnp.clip(x, -limit, limit)
    modulus = jnp.abs(x)
    is_clipped = modulus > limit
    # The derivative of the quotient would be NaN at a modulus of 0, even if unselected.
    divisor = jnp.where(is_clipped, modulus, sharded_full_like(modulus, 1))
    return jnp.where(is_clipped, x * (limit / divisor), x)


def write_after(new: jax.Array, reader: jax.Array) -> jax.Array:
    """Return the new value of a slot, which XLA writes after it has computed `reader`.

    XLA overwrites a donated slot in place only if all loops that read the old value run earlier.
    Otherwise XLA copies the slot. The `select` enforces this order with one read of `reader`.

    Args:
        new: The new value of the slot.
        reader: An array of the same shape, computed from the old value.

    Returns:
        `new`, but NaN where `reader` is NaN.
    """
    nan = reader if reader.dtype == new.dtype else sharded_full_like(new, jnp.nan)
    return lax.select(lax.ne(reader, reader), nan, new)
