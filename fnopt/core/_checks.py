"""Checks of losses, batches, keys and numbers while a program is traced."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core._dtypes import is_array_like, is_inexact
from fnopt.core._errors import listing
from fnopt.core._paths import leaves_with_names, shown

NamedLeaves = list[tuple[str, Any]]
CLOSED_OVER = "Let the function close over what all examples share."
BY_KEYWORD = (
    "Pass what all examples share by keyword, or say which arguments are batched with "
    "batch_argnums."
)


def described(x: Any) -> str:
    """A leaf's type for a message: `'float32[8,3]'`, or the name of its Python type."""
    if not hasattr(x, "dtype"):
        return type(x).__name__
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def check_params(leaves: NamedLeaves, name: str) -> None:
    """Check that every leaf of the parameters can be differentiated."""
    for where, leaf in leaves:
        if not is_inexact(leaf):
            raise TypeError(
                f"{name}: {where} is {described(leaf)}, which has no gradient. Differentiate "
                "floating arrays only: split the rest off (equinox.partition, flax.nnx.split) and "
                "close over it, or choose the argument with argnums."
            )


def check_some(params: Any, name: str) -> None:
    """Check that the parameters contain an array."""
    if not jax.tree.leaves(params):
        raise ValueError(f"{name}: the params have no array in them, so no gradient.")


def check_batch(leaves: NamedLeaves, name: str, shared: str = CLOSED_OVER) -> int:
    """Number of examples, at least 1, that all batched leaves share.

    `name` is the function that the user called, and `shared` says where that one takes what all
    examples share.
    """
    if not leaves:
        raise ValueError(f"{name}: the batch has no array in it, so no examples.")
    for where, leaf in leaves:
        if not getattr(leaf, "shape", ()):
            is_key = jnp.issubdtype(getattr(leaf, "dtype", jnp.float32), jax.dtypes.prng_key)
            if is_key:
                raise ValueError(
                    f"{name}: {where} of the batch is one random key, which all examples would "
                    "share. Give each its own: jax.random.split(key, n)."
                )
            raise ValueError(
                f"{name}: {where} of the batch is {described(leaf)} without an example axis. "
                f"{shared}"
            )
    sizes = {where: leaf.shape[0] for where, leaf in leaves}
    if len({*sizes.values()}) > 1:
        raise ValueError(
            f"{name}: the leading axes of the batch disagree: "
            f"{listing([f'{where}: {size}' for where, size in sizes.items()])}. "
            "Every leaf needs one entry per example."
        )
    size = leaves[0][1].shape[0]
    if size == 0:
        raise ValueError(
            f"{name}: the batch is empty: {leaves[0][0]} is {described(leaves[0][1])}."
        )
    return size


def check_key(key: Any, name: str) -> Any:
    """Check that a value is one PRNG key, typed or raw."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if (typed and shape == ()) or (dtype == jnp.uint32 and shape is not None and len(shape) == 1):
        return key
    raise TypeError(
        f"{name}: key is {described(key)}, expected one PRNG key (jax.random.key(seed)); every "
        "example gets its own from it. Keys that you have split yourself are a batched argument."
    )


def folded(key: Any, step: Any, name: str) -> Any:
    """Fold the step into a key; a step of `None` leaves the key unchanged."""
    if step is None:
        return key
    step = jnp.asarray(step)
    if step.shape != () or not jnp.issubdtype(step.dtype, jnp.integer):
        # Rounding would give two steps the same random numbers.
        raise TypeError(f"{name}: step is {described(step)}, expected one integer.")
    return jax.random.fold_in(key, step.astype(jnp.uint32))


def checked_loss(output: Any, has_aux: bool, name: str) -> tuple[jax.Array, Any]:
    """Check the result of a loss, and return it as `(value, aux)`."""
    if has_aux and not (isinstance(output, tuple) and len(output) == 2):
        raise TypeError(
            f"{name}: has_aux=True expects the loss to return (value, aux), "
            f"it returned {described(output)}."
        )
    value, aux = output if has_aux else (output, None)
    if not isinstance(value, (int, float)) and not hasattr(value, "dtype"):
        hint = " Say has_aux=True if it returns (value, aux)." if isinstance(value, tuple) else ""
        raise TypeError(
            f"{name}: the loss returned {described(value)}, expected one floating scalar.{hint}"
        )
    value = jnp.asarray(value)
    if value.shape:
        raise TypeError(
            f"{name}: the loss of ONE example returned {described(value)}, expected a scalar. "
            "Write the loss for a single example, without the batch axis, and sum over whatever "
            "axes it has (time, pixels): it is mapped over the batch for you."
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"{name}: the loss returned {described(value)}, expected a real float.")
    check_returned(aux, f"{name}: the aux of the loss")
    return value, aux


def check_returned(tree: Any, what: str) -> None:
    """Refuses what no compiled program returns, such as a string."""
    for path, leaf in leaves_with_names(tree)[0]:
        if not _is_of_a_program(leaf):
            raise TypeError(
                f"{what} has {leaf!r:.60} as {shown(path)}, expected arrays and numbers: the "
                "function is compiled. Add other values to the result outside of the function."
            )


def _is_of_a_program(leaf: Any) -> bool:
    known = is_array_like(leaf) or hasattr(leaf, "__jax_array__")
    return known and getattr(getattr(leaf, "dtype", None), "kind", "f") not in "OSUM"


def check_weights(weights: Any, size: int, name: str) -> jax.Array:
    """Check that weights are real and have the shape `[size]`."""
    if getattr(weights, "shape", None) != (size,):
        raise ValueError(
            f"{name}: weights are {described(weights)}, expected shape ({size},): one weight per "
            "example. They are the last positional argument, after the batch."
        )
    if jnp.issubdtype(weights.dtype, jnp.complexfloating) or not (
        jnp.issubdtype(weights.dtype, jnp.number) or weights.dtype == jnp.bool_
    ):
        raise TypeError(f"{name}: weights are {described(weights)}, expected real numbers.")
    return jnp.asarray(weights)


def check_clip_norm(clip_norm: Any, name: str) -> None:
    """Check that a clipping norm is one positive number; traced values pass."""
    check_number(clip_norm, "clip_norm", name)
    if not isinstance(clip_norm, Tracer) and not clip_norm > 0:
        raise ValueError(f"{name}: clip_norm is {clip_norm}, expected a positive number.")


def check_number(value: Any, what: str, name: str) -> None:
    """Check that a value is one real number or an array without axes."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    real = dtype is not None and (
        jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    )
    if not real or shape != ():
        raise TypeError(f"{name}: {what} is {described(value)}, expected one number.")


def check_tolerance(value: Any, what: str, name: str) -> None:
    """Check a stopping tolerance; None (the default) and traced values pass."""
    if value is None:
        return
    check_number(value, what, name)
    if not isinstance(value, Tracer) and not value >= 0:
        raise ValueError(
            f"{name}: {what} is {value}, expected a number >= 0; 0 switches its test off."
        )


def is_whole(value: Any, least: int | None = None) -> bool:
    """Whether a value is a whole number, NumPy's too, and not below the least."""
    try:
        operator.index(value)
    except TypeError:  # JAX's arrays of other numbers have an `__index__` too
        return False
    return not isinstance(value, bool) and (least is None or value >= least)


def check_count(value: Any, what: str, name: str, least: int = 1, otherwise: str = "") -> int:
    """Convert an integer of Python or NumPy to an int; raise for anything else.

    `otherwise` ends the message with what else is taken.
    """
    if not is_whole(value):
        raise TypeError(f"{name}: {what} is {value!r}, expected an int{otherwise}.")
    if value < least:
        raise ValueError(f"{name}: {what} is {value}, expected at least {least}{otherwise}.")
    return operator.index(value)


def check_choice(value: Any, choices: tuple[str, ...], what: str, name: str) -> None:
    """Check that a string option is one of the choices."""
    if value not in choices:
        expected = ", ".join(map(repr, choices))
        raise ValueError(f"{name}: {what} is {value!r}, expected one of {expected}.")


def takes(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether a function can be called with these arguments, as far as its signature says."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # of some built-in functions nothing is known
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
