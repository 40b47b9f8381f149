"""Reductions of whole trees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import global_norm
from fnopt.errors import leaf_text, leaves_with_names
from fnopt.numerics import default_float
from fnopt.tree._arithmetic import check_arrays, common_dtype, names_bad_leaf

# `sum`, `max` and `min` of this module hide Python's builtin functions.
_add = functools.partial(functools.reduce, jnp.add)


def _total(tree: Any, reduce_leaf: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Reduce every leaf in the common dtype, and add the results."""
    leaves = jax.tree.leaves(tree)
    dtype = common_dtype(leaves)
    return _add([reduce_leaf(jnp.asarray(x).astype(dtype)) for x in leaves], jnp.zeros((), dtype))


@names_bad_leaf
def sum(tree: Any) -> jax.Array:
    r"""The sum of all numbers of a tree: :math:`\sum_\ell \sum_i x_{\ell i}`.

    Args:
        tree: A tree of numbers.

    Returns:
        A scalar in the leaves' common dtype, at least float32 for floating leaves; 0 for an empty
        tree.

    Example:
        >>> from fnopt import tree
        >>> tree.sum({"a": jnp.ones(3), "b": jnp.asarray(2.0)})
        Array(5., dtype=float32)
    """
    return _total(tree, jnp.sum)


@names_bad_leaf
def vdot(tree_x: Any, tree_y: Any) -> jax.Array:
    r"""The inner product of two trees: :math:`\sum_\ell \sum_i \bar x_{\ell i}\, y_{\ell i}`.

    Args:
        tree_x: A tree of numbers; complex numbers are conjugated.
        tree_y: A tree of the same structure and shapes.

    Returns:
        A scalar in the leaves' common dtype, at least float32 for floating leaves.

    Raises:
        ValueError: If shapes differ (shapes aren't broadcast).

    Example:
        >>> from fnopt import tree
        >>> tree.vdot({"w": jnp.ones(2)}, {"w": jnp.asarray([1.0, 2.0])})
        Array(3., dtype=float32)
    """
    named_xs, treedef = leaves_with_names(tree_x)
    xs, ys = [x for _, x in named_xs], treedef.flatten_up_to(tree_y)
    dtype = common_dtype([*xs, *ys])
    total = jnp.zeros((), dtype)
    for (name, x), y in zip(named_xs, ys, strict=True):
        x, y = jnp.asarray(x).astype(dtype), jnp.asarray(y).astype(dtype)
        if x.shape != y.shape:
            raise ValueError(
                f"tree.vdot: {leaf_text(name)} has shapes {x.shape} and {y.shape}, expected equal "
                "shapes. Broadcast the leaf first."
            )
        # `jnp.vdot` would be a matrix product, which accelerators compute from rounded factors.
        total = total + jnp.sum(jnp.conj(x) * y)
    return total


@names_bad_leaf
def norm(tree: Any, ord: Any = None, squared: bool = False) -> jax.Array:
    r"""The norm of a tree as one vector, Euclidean by default.

    .. math:: \|x\|_2 = \sqrt{\textstyle\sum |x_i|^2}, \qquad \|x\|_1 = \textstyle\sum |x_i|,
              \qquad \|x\|_\infty = \max |x_i|

    Args:
        tree: A tree of numbers.
        ord: 1, 2 (also None) or infinity (`jnp.inf`, `'inf'` or `'infinity'`).
        squared: Whether to return the square of the norm.

    Returns:
        A real scalar, at least float32. The Euclidean norm is `fnopt.global_norm`, whose derivative
        at zero is zero.

    Raises:
        ValueError: If `ord` has another value.

    Example:
        >>> from fnopt import tree
        >>> x = {"a": jnp.asarray([3.0]), "b": jnp.asarray(-4.0)}
        >>> tree.norm(x), tree.norm(x, ord=1), tree.norm(x, ord="inf")
        (Array(5., dtype=float32), Array(7., dtype=float32), Array(4., dtype=float32))
    """
    # The moduli are real and floating, also for complex and integer leaves.
    moduli = jax.tree.map(_modulus, tree)
    if ord is None or ord == 2:
        return _total(moduli, lambda x: jnp.sum(x * x)) if squared else global_norm(moduli)
    if ord == 1:
        result = _total(moduli, jnp.sum)
    elif ord in (float("inf"), "inf", "infinity"):
        result = jnp.maximum(max(moduli), 0)  # 0 for an empty tree
    else:
        raise ValueError(f"tree.norm: ord is {ord!r}, expected 1, 2 or infinity (jnp.inf).")
    return result * result if squared else result


def _modulus(x: Any) -> jax.Array:
    """Modulus of an array, in a floating dtype."""
    x = jnp.asarray(x)
    # Integers are converted first, because their squares may overflow.
    floating = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(default_float())
    return jnp.abs(floating)


def _extreme(
    tree: Any, fn: Callable[..., Any], combine: Callable[..., Any], empty: float
) -> jax.Array:
    # An empty leaf is skipped, because `jnp.max` of an empty array raises an error.
    leaves = [x for x in jax.tree.leaves(tree) if getattr(x, "size", 1)]
    dtype = common_dtype(leaves)
    if not leaves:
        return jnp.full((), empty, dtype)
    return functools.reduce(combine, [fn(jnp.asarray(x)).astype(dtype) for x in leaves])


@names_bad_leaf
def max(tree: Any) -> jax.Array:
    r"""The largest number of a tree.

    Args:
        tree: A tree of real numbers; empty leaves are ignored.

    Returns:
        A scalar in the leaves' common dtype, at least float32 for floating leaves; minus infinity
        for a tree without a number.

    Example:
        >>> from fnopt import tree
        >>> tree.max({"a": jnp.ones(3), "b": jnp.asarray(2.0)})
        Array(2., dtype=float32)
    """
    return _extreme(tree, jnp.max, jnp.maximum, -float("inf"))


@names_bad_leaf
def min(tree: Any) -> jax.Array:
    r"""The smallest number of a tree.

    Args:
        tree: A tree of real numbers; empty leaves are ignored.

    Returns:
        A scalar in the leaves' common dtype, at least float32 for floating leaves; infinity for a
        tree without a number.

    Example:
        >>> from fnopt import tree
        >>> tree.min({"a": jnp.ones(3), "b": jnp.asarray(2.0)})
        Array(1., dtype=float32)
    """
    return _extreme(tree, jnp.min, jnp.minimum, float("inf"))


def size(tree: Any) -> int:
    """The number of elements of a tree.

    Args:
        tree: A tree of arrays (or abstract arrays) or numbers.

    Returns:
        A Python int.

    Raises:
        TypeError: If a leaf is neither array nor number; the message names it.

    Example:
        >>> from fnopt import tree
        >>> tree.size({"a": jnp.ones((3, 4)), "b": 2.0})
        13
    """
    check_arrays("tree.size", tree)
    return functools.reduce(lambda n, x: n + int(jnp.size(x)), jax.tree.leaves(tree), 0)


@names_bad_leaf
def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    r"""Whether two trees agree: :math:`|a - b| \le \epsilon_a + \epsilon_r |b|` everywhere.

    Args:
        a: A tree of numbers.
        b: A tree of the same structure.
        rtol: :math:`\epsilon_r`.
        atol: :math:`\epsilon_a`.
        equal_nan: Whether NaN equals NaN.

    Returns:
        A boolean scalar; true for empty trees.

    Example:
        >>> from fnopt import tree
        >>> tree.allclose({"w": jnp.ones(2)}, {"w": jnp.ones(2)})
        Array(True, dtype=bool)
    """

    def compare_leaf(x: Any, y: Any) -> jax.Array:
        # At least float32, because 16 bits can't represent differences of relative size `rtol`.
        dtype = common_dtype([x, y])
        x, y = jnp.asarray(x).astype(dtype), jnp.asarray(y).astype(dtype)
        return jnp.allclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)

    results = jax.tree.leaves(jax.tree.map(compare_leaf, a, b))
    return functools.reduce(jnp.logical_and, results, jnp.asarray(True))
