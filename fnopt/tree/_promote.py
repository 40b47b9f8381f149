"""The dtype in which leaves of several trees meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype, default_float


def promoted(*leaves: Any) -> Any:
    """The common dtype of leaves by JAX's standard promotion rules, whatever the mode."""
    with jax.numpy_dtype_promotion("standard"):  # mixing on purpose, also under strict promotion
        return jnp.dtype(jnp.result_type(*leaves))


def wide(dtype: Any) -> Any:
    """The dtype to add up in: at least float32 for floating ones, itself for the rest."""
    return compute_dtype(dtype) if jnp.issubdtype(dtype, jnp.inexact) else dtype


def computed(fn: Callable[..., Any], dtype: Any, *leaves: Any) -> jax.Array:
    """A function of leaves, computed at least in float32 and returned in the given dtype."""
    return fn(*(jnp.asarray(x).astype(wide(dtype)) for x in leaves)).astype(dtype)


def scaled_dtype(scalar: Any, *leaves: Any) -> Any:
    """The dtype of leaves times a number, which never widens floating ones.

    A `bfloat16` leaf stays so under a float32 rate; only a complex number makes it complex.
    """
    dtype = promoted(*leaves)
    if jnp.issubdtype(dtype, jnp.inexact) and not jnp.iscomplexobj(scalar):
        return dtype
    return promoted(*leaves, scalar)


def common(leaves: list[Any]) -> Any:
    """The dtype of a scalar about a whole tree: the leaves' common one, at least float32."""
    return wide(promoted(*leaves)) if leaves else default_float()
