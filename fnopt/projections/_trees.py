"""Compute dtypes of projections, and norms without overflow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.errors import check_number, leaf_text, leaves_with_names, type_text
from fnopt.numerics import cast, compute_dtype, is_inexact, range_divisor, real_dtype


def check_floating(name: str, tree: Any, *, allow_complex: bool = False) -> None:
    """Check that all leaves are floating."""
    for path, leaf in leaves_with_names(tree)[0]:
        if not is_inexact(leaf) or (jnp.iscomplexobj(leaf) and not allow_complex):
            kind = "floating" if allow_complex else "real floating"
            raise TypeError(
                f"{name}: {leaf_text(path)} is {type_text(leaf)}, expected a {kind} array."
            )


def check_scale(name: str, scale: Any) -> None:
    """Check that a scale is a nonnegative number."""
    check_number(scale, "scale", name)
    if not isinstance(scale, Tracer) and not scale >= 0:
        raise ValueError(f"{name}: scale = {scale}, expected a number >= 0.")


def common_dtype(*trees: Any) -> Any:
    """Compute dtype of all floating leaves of several trees."""
    leaves = [x for tree in trees for x in jax.tree.leaves(tree)]
    return compute_dtype(*(jnp.result_type(x) for x in leaves if is_inexact(x)))


def widen(tree: Any, dtype: Any) -> Any:
    """Cast the leaves to the compute dtype; real leaves stay real."""
    return jax.tree.map(lambda x: cast(x, dtype), tree)


def restore_dtypes(tree: Any, like: Any) -> Any:
    """Cast the leaves back to their original dtypes."""
    return jax.tree.map(lambda x, old: x.astype(jnp.result_type(old)), tree, like)


def project_wide(
    name: str,
    project: Callable[[Any, jax.Array], Any],
    tree: Any,
    scale: Any,
    *,
    allow_complex: bool = False,
) -> Any:
    """Check a tree and a scale, project in the compute dtype, and restore the tree's dtypes."""
    check_floating(name, tree, allow_complex=allow_complex)
    check_scale(name, scale)
    dtype = common_dtype(tree)
    size = jnp.asarray(scale).astype(real_dtype(dtype))
    return restore_dtypes(project(widen(tree, dtype), size), tree)


def largest_modulus(tree: Any, real: Any) -> jax.Array:
    """A divisor of about the largest modulus of a tree, never zero or infinite."""
    maxima = [jnp.max(jnp.abs(x), initial=0) for x in jax.tree.leaves(tree)]
    return range_divisor(functools.reduce(jnp.maximum, maxima, jnp.zeros((), real)))


def divide(tree: Any, by: jax.Array) -> Any:
    """Divide a tree by a number."""
    return jax.tree.map(lambda x: x / by, tree)


def inner(tree_x: Any, tree_y: Any, dtype: Any) -> jax.Array:
    r"""The real inner product :math:`\Re \sum \bar x y`.

    A sum of products isn't rounded to 16 bits on accelerators, unlike a matrix product.
    """
    zero = jnp.zeros((), real_dtype(dtype))
    parts = jax.tree.map(lambda x, y: jnp.sum(jnp.real(jnp.conj(x) * y)), tree_x, tree_y)
    return functools.reduce(jnp.add, jax.tree.leaves(parts), zero)


def length(tree: Any, dtype: Any) -> tuple[jax.Array, Any, jax.Array]:
    """Compute the Euclidean norm of a tree without overflow or underflow.

    Returns:
        The norm of the scaled tree (0 with derivative 0 for a tree of zeros), the scaled tree, and
        the scale.
    """
    top = largest_modulus(tree, real_dtype(dtype))
    unit = divide(tree, top)
    square = inner(unit, unit, dtype)
    is_zero = square == 0
    root = jnp.sqrt(jnp.where(is_zero, jnp.ones_like(square), square))
    return jnp.where(is_zero, jnp.zeros_like(root), root), unit, top


def safe_ratio(numerator: jax.Array, square: jax.Array) -> jax.Array:
    """Return the quotient, and 0 for a denominator of 0."""
    is_zero = square == 0
    return jnp.where(is_zero, 0, numerator / jnp.where(is_zero, 1, square)).astype(numerator.dtype)
