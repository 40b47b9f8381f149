"""Bounds on every number by itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import is_none
from fnopt.projections._trees import check_floating, check_scale


def _apply_bound(tree: Any, bound: Any, side: str) -> Any:
    """A tree with one bound applied: a number, or a tree whose leaves stand for whole branches."""

    def branch(b: Any, part: Any) -> Any:
        if b is None:
            return part
        return jax.tree.map(lambda x: _clip_leaf(jnp.asarray(x), b, side), part)

    return jax.tree.map(branch, bound, tree, is_leaf=is_none)


def _clip_leaf(x: jax.Array, bound: Any, side: str) -> jax.Array:
    b = jnp.asarray(bound).astype(x.dtype)
    if jnp.broadcast_shapes(b.shape, x.shape) != x.shape:
        raise ValueError(
            f"projection_box: a bound of shape {b.shape} for a leaf of shape {x.shape}, expected "
            "one that broadcasts to it."
        )
    return jnp.clip(x, min=b) if side == "lower" else jnp.clip(x, max=b)


def projection_box(tree: Any, lower: Any, upper: Any) -> Any:
    r"""The nearest point between bounds: :math:`\min(\max(x, l), u)`.

    Args:
        tree: :math:`x`, a tree of real floating arrays.
        lower: :math:`l`: a number, a tree like `tree`, or one whose leaves stand for whole
            branches of it; None for no bound.
        upper: :math:`u`, likewise.

    Returns:
        A tree like `tree`.

    Raises:
        TypeError: If a leaf isn't a real floating array.
        ValueError: If a bound doesn't fit its leaf.

    Example:
        >>> from fnopt.projections import projection_box
        >>> projection_box({"w": jnp.asarray([-2.0, 0.5, 2.0])}, lower=-1, upper={"w": 1.0})
        {'w': Array([-1. ,  0.5,  1. ], dtype=float32)}
    """
    check_floating("projection_box", tree)
    above = _apply_bound(tree, lower, "lower")
    return _apply_bound(above, upper, "upper")


def projection_hypercube(tree: Any, scale: Any = 1) -> Any:
    r"""The nearest point of a cube: :math:`\min(\max(x, 0), s)`.

    Args:
        tree: :math:`x`, a tree of real floating arrays.
        scale: :math:`s`, a number or a tree as in `projection_box`.

    Returns:
        A tree like `tree`.

    Example:
        >>> from fnopt.projections import projection_hypercube
        >>> projection_hypercube(jnp.asarray([-2.0, 0.5, 2.0]))
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    return projection_box(tree, 0, scale)


def projection_non_negative(tree: Any) -> Any:
    r"""The nearest point without negative entries: :math:`\max(x, 0)`.

    Args:
        tree: :math:`x`, a tree of real floating arrays.

    Returns:
        A tree like `tree`.

    Example:
        >>> from fnopt.projections import projection_non_negative
        >>> projection_non_negative(jnp.asarray([-2.0, 0.5]))
        Array([0. , 0.5], dtype=float32)
    """
    check_floating("projection_non_negative", tree)
    return jax.tree.map(lambda x: jax.nn.relu(jnp.asarray(x)), tree)


def projection_linf_ball(tree: Any, scale: Any = 1) -> Any:
    r"""The nearest point without an entry larger than `scale`: :math:`\min(\max(x, -s), s)`.

    Args:
        tree: :math:`x`, a tree of real floating arrays.
        scale: :math:`s`, at least 0.

    Returns:
        A tree like `tree`.

    Raises:
        TypeError: If a leaf isn't a real floating array.
        ValueError: If the scale is negative.

    Example:
        >>> from fnopt.projections import projection_linf_ball
        >>> projection_linf_ball(jnp.asarray([-2.0, 0.5]))
        Array([-1. ,  0.5], dtype=float32)
    """
    check_scale("projection_linf_ball", scale)
    return projection_box(tree, -scale, scale)
