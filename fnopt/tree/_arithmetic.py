"""Arithmetic on whole trees: sums, products, selection, and dtype promotion."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from fnopt.core import check_same_tree, is_none
from fnopt.errors import leaf_text, leaves_with_names, type_text
from fnopt.numerics import default_float, is_array_like, wide_dtype

P = ParamSpec("P")
Result = TypeVar("Result")


def check_arrays(name: str, *trees: Any) -> None:
    """Raise a TypeError that names the first leaf which is neither array nor number."""
    for path, leaf in (pair for tree in trees for pair in leaves_with_names(tree)[0]):
        if not is_array_like(leaf):
            raise TypeError(
                f"{name}: {leaf_text(path)} is {type_text(leaf)}, expected an array or a number. "
                "Filter such leaves out of the tree first (Equinox: eqx.filter(model, "
                "eqx.is_array))."
            )


def names_bad_leaf(fn: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate a function of trees, so that a TypeError names the leaf that isn't an array."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return fn(*args, **kwargs)
        except TypeError:  # checked only after an error: the check is slower than `fn`
            check_arrays(f"tree.{fn.__name__}", *args, *kwargs.values())
            raise

    return call


def promoted_dtype(*leaves: Any) -> Any:
    """Common dtype of leaves by JAX's standard promotion rules, in every promotion mode."""
    with jax.numpy_dtype_promotion("standard"):  # strict mode would raise for different dtypes
        return jnp.dtype(jnp.result_type(*leaves))


def compute_wide(fn: Callable[..., Any], dtype: Any, *leaves: Any) -> jax.Array:
    """Apply a function to leaves cast to at least float32, and cast the result to `dtype`."""
    return fn(*(jnp.asarray(x).astype(wide_dtype(dtype)) for x in leaves)).astype(dtype)


def scaled_dtype(scalar: Any, *leaves: Any) -> Any:
    """Dtype of the product of leaves and a number.

    A real number doesn't widen floating leaves: `bfloat16` times float32 is `bfloat16`. A complex
    number makes the product complex.
    """
    dtype = promoted_dtype(*leaves)
    if jnp.issubdtype(dtype, jnp.inexact) and not jnp.iscomplexobj(scalar):
        return dtype
    return promoted_dtype(*leaves, scalar)


def common_dtype(leaves: list[Any]) -> Any:
    """Dtype of a reduction of a whole tree: the leaves' common dtype, at least float32."""
    return wide_dtype(promoted_dtype(*leaves)) if leaves else default_float()


def _strong(x: Any) -> jax.Array:
    """Convert a leaf to a strongly typed array."""
    # A weakly typed result would compile the next step again, whose leaf is strongly typed.
    return jnp.asarray(x, jnp.result_type(x))


def _map_promoted(fn: Callable[..., Any], *trees: Any) -> Any:
    """Map a function over leaves, with the result in the common dtype of the leaves."""
    try:
        return jax.tree.map(lambda *xs: compute_wide(fn, promoted_dtype(*xs), *xs), *trees)
    except ValueError:
        for i, tree in enumerate(trees[1:], 2):
            if jax.tree.structure(tree) != jax.tree.structure(trees[0]):
                check_same_tree(trees[0], tree, "leaves of argument 1", f"leaves of argument {i}")
        raise


@names_bad_leaf
def add(tree_x: Any, tree_y: Any, *other_trees: Any) -> Any:
    r"""The sum of trees: :math:`x + y + \ldots`, leaf by leaf.

    Args:
        tree_x: A tree of numbers.
        tree_y: A tree of the same structure.
        *other_trees: More trees of the same structure.

    Returns:
        A tree in the leaves' common dtypes; sums of 16-bit leaves are accumulated in float32.

    Example:
        >>> from fnopt import tree
        >>> tree.add({"w": jnp.ones(2)}, {"w": jnp.asarray([1.0, 2.0])})
        {'w': Array([2., 3.], dtype=float32)}
    """
    return _map_promoted(
        lambda *xs: functools.reduce(operator.add, xs), tree_x, tree_y, *other_trees
    )


@names_bad_leaf
def sub(tree_x: Any, tree_y: Any) -> Any:
    r"""The difference of trees: :math:`x - y`, leaf by leaf.

    Args:
        tree_x: A tree of numbers.
        tree_y: A tree of the same structure.

    Returns:
        A tree in the leaves' common dtypes.

    Example:
        >>> from fnopt import tree
        >>> tree.sub({"w": jnp.ones(2)}, {"w": jnp.asarray([1.0, 2.0])})
        {'w': Array([ 0., -1.], dtype=float32)}
    """
    return _map_promoted(operator.sub, tree_x, tree_y)


@names_bad_leaf
def mul(tree_x: Any, tree_y: Any) -> Any:
    r"""The product of trees: :math:`x \cdot y`, leaf by leaf.

    Args:
        tree_x: A tree of numbers.
        tree_y: A tree of the same structure.

    Returns:
        A tree in the leaves' common dtypes.

    Example:
        >>> from fnopt import tree
        >>> tree.mul({"w": jnp.full(2, 3.0)}, {"w": jnp.asarray([1.0, 2.0])})
        {'w': Array([3., 6.], dtype=float32)}
    """
    return _map_promoted(operator.mul, tree_x, tree_y)


@names_bad_leaf
def div(tree_x: Any, tree_y: Any) -> Any:
    r"""The quotient of trees: :math:`x / y`, leaf by leaf.

    Args:
        tree_x: A tree of numbers.
        tree_y: A tree of the same structure.

    Returns:
        A tree in the leaves' common dtypes; floating for integers.

    Example:
        >>> from fnopt import tree
        >>> tree.div({"w": jnp.full(2, 3.0)}, {"w": jnp.asarray([1.0, 2.0])})
        {'w': Array([3. , 1.5], dtype=float32)}
    """

    def divide_leaf(x: Any, y: Any) -> jax.Array:
        dtype = promoted_dtype(x, y)
        # The quotient of integers is a float, as with the operator `/`.
        is_integer = not jnp.issubdtype(dtype, jnp.inexact)
        return compute_wide(operator.truediv, default_float() if is_integer else dtype, x, y)

    return jax.tree.map(divide_leaf, tree_x, tree_y)


@names_bad_leaf
def scale(scalar: Any, tree: Any) -> Any:
    r"""A number times a tree: :math:`a\, x`.

    Args:
        scalar: :math:`a`, a number. A real number doesn't widen a floating leaf.
        tree: :math:`x`.

    Returns:
        A tree in which floating leaves keep the dtypes of `tree`.

    Example:
        >>> from fnopt import tree
        >>> tree.scale(jnp.float32(0.5), {"w": jnp.ones(2, jnp.bfloat16)})
        {'w': Array([0.5, 0.5], dtype=bfloat16)}
    """
    if not is_array_like(scalar):
        raise TypeError(
            f"tree.scale: scalar is {type_text(scalar)}, expected a number: tree.scale(a, tree)."
        )
    return jax.tree.map(
        lambda x: compute_wide(operator.mul, scaled_dtype(scalar, x), scalar, x), tree
    )


@names_bad_leaf
def add_scale(tree_x: Any, scalar: Any, tree_y: Any) -> Any:
    r"""The sum of a tree and a scaled tree: :math:`x + a\, y`.

    Args:
        tree_x: :math:`x`; a leaf `None` stays `None`.
        scalar: :math:`a`, a number. A real number doesn't widen a floating leaf.
        tree_y: :math:`y`, of the same structure.

    Returns:
        A tree in the common dtypes of both trees; the product isn't rounded before the addition.

    Example:
        >>> from fnopt import tree
        >>> tree.add_scale({"w": jnp.ones(2)}, -0.5, {"w": jnp.asarray([1.0, 2.0])})
        {'w': Array([0.5, 0. ], dtype=float32)}
    """

    def add_leaf(x: Any, y: Any) -> Any:
        if x is None:
            return None
        dtype = scaled_dtype(scalar, x, y)
        return compute_wide(lambda x, a, y: x + a * y, dtype, x, scalar, y)

    # With None as a leaf of `tree_x`, `tree_y` may have an array in its place.
    return jax.tree.map(add_leaf, tree_x, tree_y, is_leaf=is_none)


@names_bad_leaf
def where(condition: Any, tree_x: Any, tree_y: Any) -> Any:
    r"""Choose elementwise between two trees, like `jnp.where`.

    Args:
        condition: A bool, or an array of bools that broadcasts against every leaf.
        tree_x: The tree of values where `condition` is true.
        tree_y: The tree of values where `condition` is false.

    Returns:
        A tree in the leaves' common dtypes.

    Example:
        >>> from fnopt import tree
        >>> tree.where(jnp.asarray(True), {"w": jnp.ones(2)}, {"w": jnp.zeros(2)})
        {'w': Array([1., 1.], dtype=float32)}
    """
    return _map_promoted(lambda x, y: jnp.where(condition, x, y), tree_x, tree_y)


@names_bad_leaf
def clip(tree: Any, min_value: Any = None, max_value: Any = None) -> Any:
    r"""Clip every number of a tree to an interval.

    Args:
        tree: A tree of real numbers.
        min_value: The lower bound, a number; None disables it.
        max_value: The upper bound; None disables it.

    Returns:
        A tree with the dtypes of `tree`.

    Example:
        >>> from fnopt import tree
        >>> tree.clip({"w": jnp.asarray([-3.0, 0.5])}, -1.0, 1.0)
        {'w': Array([-1. ,  0.5], dtype=float32)}
    """

    def clip_leaf(x: Any) -> jax.Array:
        x = _strong(x)
        # The bounds are cast to the dtype of the leaf, so that they don't promote the result.
        low, high = (
            None if b is None else jnp.asarray(b).astype(x.dtype) for b in (min_value, max_value)
        )
        return jnp.clip(x, low, high)

    return jax.tree.map(clip_leaf, tree)


@names_bad_leaf
def conj(tree: Any) -> Any:
    r"""The complex conjugate :math:`\bar x` of every leaf; real leaves are unchanged.

    Args:
        tree: A tree of numbers.

    Returns:
        A tree with the dtypes of `tree`.

    Example:
        >>> from fnopt import tree
        >>> tree.conj({"w": jnp.complex64(1 + 2j)})
        {'w': Array(1.-2.j, dtype=complex64)}
    """
    return jax.tree.map(lambda x: jnp.conj(_strong(x)), tree)


@names_bad_leaf
def real(tree: Any) -> Any:
    r"""The real part of every leaf.

    Args:
        tree: A tree of numbers.

    Returns:
        A tree of real numbers.

    Example:
        >>> from fnopt import tree
        >>> tree.real({"w": jnp.complex64(1 + 2j)})
        {'w': Array(1., dtype=float32)}
    """
    return jax.tree.map(lambda x: jnp.real(_strong(x)), tree)
