"""Inner products and steps of trees, for methods that use all params jointly."""

from __future__ import annotations

import functools
import operator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import apply_updates, cast_like, map_leaves
from fnopt.errors import check_inexact
from fnopt.numerics import compute_dtype, real_dtype
from fnopt.sharding import sum_over_shards


def real_dtype_of(tree: Any, what: str = "params") -> Any:
    """The real dtype of scalars computed from a tree, at least float32."""
    check_inexact(tree, what)
    # One dtype for a whole tree: the widest leaf decides.
    return real_dtype(compute_dtype(*map(jnp.result_type, jax.tree.leaves(tree))))


def inner(a: Any, b: Any) -> jax.Array:
    r"""The real inner product :math:`\mathrm{Re} \sum_i \bar a_i b_i` of two trees of arrays."""
    dtype = real_dtype_of((a, b), "gradients")

    def product_of_leaf(x: Any, y: Any) -> jax.Array:
        wide = compute_dtype(jnp.result_type(x), jnp.result_type(y))
        x, y = jnp.asarray(x, wide), jnp.asarray(y, wide)
        # No `dot`: accelerators compute it from rounded factors.
        return jnp.sum(jnp.real(jnp.conj(x) * y)).astype(dtype)

    with sum_over_shards() as total:
        parts = map(product_of_leaf, jax.tree.leaves(a), jax.tree.leaves(b))
        return total(functools.reduce(operator.add, parts, jnp.zeros((), dtype)))


def conjugate_tree(tree: Any) -> Any:
    """Conjugate a tree, for example a gradient of `jax.grad`."""
    return jax.tree.map(jnp.conj, tree)


def scale_tree(rate: jax.Array, updates: Any) -> Any:
    """Multiply updates by a number."""
    return map_leaves(lambda h, u: h.astype(u.dtype) * u, updates, hyper=rate)


def params_after_step(params: Any, rate: jax.Array, updates: Any) -> Any:
    """Return the params after a step, rounded to their dtypes."""
    return apply_updates(params, cast_like(scale_tree(rate, updates), params))


def numbers(tx: Any, dtype: Any, count: Any = None, skip: tuple[str, ...] = ()) -> Any:
    """Hyper-parameters as scalars of one dtype, keyed by name; schedules at `count`."""
    now = tx.at(count)
    values = {name: getattr(now, name) for name in tx._leaf_names if name not in skip}
    return SimpleNamespace(
        **{k: None if v is None else jnp.asarray(v, dtype) for k, v in values.items()}
    )


def larger_estimate(before: jax.Array, numerator: jax.Array, length: jax.Array) -> jax.Array:
    """The maximum of an estimated distance and its next estimate, numerator / length."""
    known = length > 0  # without gradients there is nothing to estimate from
    found = numerator / jnp.where(known, length, jnp.ones_like(length))
    return jnp.maximum(before, jnp.where(known, found, before))


def real_sum(tree: Any, dtype: Any) -> jax.Array:
    """The sum of the real parts of all elements of a tree."""
    with sum_over_shards() as total:
        parts = [jnp.sum(jnp.real(x)).astype(dtype) for x in jax.tree.leaves(tree)]
        return total(functools.reduce(operator.add, parts, jnp.zeros((), dtype)))
