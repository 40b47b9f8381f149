"""Inner products, scaling and sums of trees, for methods with scalars computed from all params."""

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
    """Real dtype for scalars computed from a tree: the widest dtype of a leaf, at least float32."""
    check_inexact(tree, what)
    return real_dtype(compute_dtype(*map(jnp.result_type, jax.tree.leaves(tree))))


def inner(a: Any, b: Any) -> jax.Array:
    r"""Real inner product :math:`\mathrm{Re} \sum_i \bar a_i b_i` of two trees of arrays."""
    dtype = real_dtype_of((a, b), "gradients")

    def product_of_leaf(x: Any, y: Any) -> jax.Array:
        leaf_dtype = compute_dtype(jnp.result_type(x), jnp.result_type(y))
        x, y = jnp.asarray(x, leaf_dtype), jnp.asarray(y, leaf_dtype)
        # No `dot`, because accelerators round its factors to a lower precision by default.
        return jnp.sum(jnp.real(jnp.conj(x) * y)).astype(dtype)

    with sum_over_shards() as total:
        parts = map(product_of_leaf, jax.tree.leaves(a), jax.tree.leaves(b))
        return total(functools.reduce(operator.add, parts, jnp.zeros((), dtype)))


def conjugate_tree(tree: Any) -> Any:
    """Conjugate the leaves of a tree, for example of a gradient of `jax.grad`."""
    return jax.tree.map(jnp.conj, tree)


def scale_tree(rate: jax.Array, updates: Any) -> Any:
    """Multiply updates by a number."""
    return map_leaves(lambda h, u: h.astype(u.dtype) * u, updates, hyper=rate)


def params_after_step(params: Any, rate: jax.Array, updates: Any) -> Any:
    """Compute the params after the step `rate * updates`, rounded to the dtypes of the params."""
    return apply_updates(params, cast_like(scale_tree(rate, updates), params))


def numbers(tx: Any, dtype: Any, count: Any = None, skip: tuple[str, ...] = ()) -> Any:
    """Evaluate hyper-parameters at `count`, as a namespace of scalars of one dtype."""
    tx = tx.at(count)
    values = {name: getattr(tx, name) for name in tx._leaf_names if name not in skip}
    return SimpleNamespace(
        **{k: None if v is None else jnp.asarray(v, dtype) for k, v in values.items()}
    )


def larger_estimate(before: jax.Array, numerator: jax.Array, length: jax.Array) -> jax.Array:
    """Maximum of an estimate and the next estimate, `numerator / length`."""
    has_gradient = length > 0  # without gradients there is no next estimate
    estimate = numerator / jnp.where(has_gradient, length, jnp.ones_like(length))
    return jnp.maximum(before, jnp.where(has_gradient, estimate, before))


def real_sum(tree: Any, dtype: Any) -> jax.Array:
    """Sum of the real parts of all elements of a tree."""
    with sum_over_shards() as total:
        parts = [jnp.sum(jnp.real(x)).astype(dtype) for x in jax.tree.leaves(tree)]
        return total(functools.reduce(operator.add, parts, jnp.zeros((), dtype)))
