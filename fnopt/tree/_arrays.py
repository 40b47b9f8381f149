"""Arrays in trees: the error of what is none, and the dtype in which several meet."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from fnopt.core import (
    compute_dtype,
    default_float,
    is_array_like,
    leaf_text,
    leaves_with_names,
    type_text,
)

Given = ParamSpec("Given")
Result = TypeVar("Result")


def check_arrays(name: str, *trees: Any) -> None:
    """Raises a TypeError that names the first leaf which is neither array nor number."""
    for path, leaf in (pair for tree in trees for pair in leaves_with_names(tree)[0]):
        if not is_array_like(leaf):
            raise TypeError(
                f"{name}: {leaf_text(path)} is {type_text(leaf)}, expected an array or a number. "
                "Filter such leaves out of the tree first (Equinox: eqx.filter(model, "
                "eqx.is_array))."
            )


def names_bad_leaf(fn: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a function of trees: a leaf that is no array is named in the error."""

    @functools.wraps(fn)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return fn(*args, **kwargs)
        except TypeError:  # the check takes longer than what it checks: only now
            check_arrays(f"tree.{fn.__name__}", *args, *kwargs.values())
            raise

    return call


def promoted_dtype(*leaves: Any) -> Any:
    """The common dtype of leaves by JAX's standard promotion rules, whatever the mode."""
    with jax.numpy_dtype_promotion("standard"):  # mixing on purpose, also under strict promotion
        return jnp.dtype(jnp.result_type(*leaves))


def wide(dtype: Any) -> Any:
    """The dtype to add up in: at least float32 for floating ones, itself for the rest."""
    return compute_dtype(dtype) if jnp.issubdtype(dtype, jnp.inexact) else dtype


def compute_wide(fn: Callable[..., Any], dtype: Any, *leaves: Any) -> jax.Array:
    """A function of leaves, computed at least in float32 and returned in the given dtype."""
    return fn(*(jnp.asarray(x).astype(wide(dtype)) for x in leaves)).astype(dtype)


def scaled_dtype(scalar: Any, *leaves: Any) -> Any:
    """The dtype of leaves times a number, which never widens floating ones.

    A `bfloat16` leaf stays so under a float32 rate; only a complex number makes it complex.
    """
    dtype = promoted_dtype(*leaves)
    if jnp.issubdtype(dtype, jnp.inexact) and not jnp.iscomplexobj(scalar):
        return dtype
    return promoted_dtype(*leaves, scalar)


def common(leaves: list[Any]) -> Any:
    """The dtype of a scalar about a whole tree: the leaves' common one, at least float32."""
    return wide(promoted_dtype(*leaves)) if leaves else default_float()
