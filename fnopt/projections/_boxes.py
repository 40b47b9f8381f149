"""Projections onto boxes, and onto the intersection of a box and a hyperplane."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import is_none
from fnopt.numerics import broadcasts_to
from fnopt.projections._trees import check_floating, check_scale, common_dtype, safe_ratio


def projection_box_section(x: Any, lower: Any, upper: Any, w: Any, c: Any) -> jax.Array:
    r"""Project onto the intersection of a box and a hyperplane.

    .. math:: \operatorname*{argmin}_y \|x - y\|_2 \quad \text{with} \quad
              l \le y \le u, \; w^\top y = c

    The solution is :math:`y = \min(\max(x - \tau w, l), u)`, with the multiplier :math:`\tau` from
    a search of the breakpoints. Derivatives treat the set of free entries, strictly between the
    bounds, as fixed.

    Args:
        x: A vector `[n]`.
        lower: :math:`l`, a number or `[n]`; it may be infinite.
        upper: :math:`u`, a number or `[n]`; it may be infinite.
        w: :math:`w`, a number or `[n]`.
        c: :math:`c`. If no point of the box satisfies :math:`w^\top y = c`, the point with the
            closest :math:`w^\top y` is returned.

    Returns:
        A vector like `x`.

    Raises:
        TypeError: If `x` isn't a real floating array.

    Example:
        >>> from fnopt.projections import projection_box_section
        >>> projection_box_section(jnp.asarray([0.9, 0.8, -1.0]), 0.0, 1.0, 1.0, 1.0)
        Array([0.5499..., 0.45..., 0.        ], dtype=float32)
    """
    check_floating("projection_box_section", {"x": x})
    dtype = common_dtype(x, lower, upper, w, c)
    v = jnp.asarray(x).astype(dtype)
    low, high, w = (
        jnp.broadcast_to(jnp.asarray(b).astype(dtype), v.shape) for b in (lower, upper, w)
    )
    c = jnp.asarray(c).astype(dtype)
    tau = jax.lax.stop_gradient(_multiplier(*map(jax.lax.stop_gradient, (v, low, high, w, c))))
    y = v - tau * w
    free = (y > low) & (y < high) & (w != 0)
    at_bound = jnp.clip(y, low, high)
    # If the set of free entries is fixed, the constraint is linear, and its solution has the right
    # derivative.
    square = jnp.sum(jnp.where(free, w * w, 0).astype(dtype))
    remainder = c - jnp.sum(jnp.where(free, 0, w * at_bound).astype(dtype))
    multiplier = safe_ratio(jnp.sum(jnp.where(free, w * v, 0).astype(dtype)) - remainder, square)
    return jnp.where(free, jnp.clip(v - multiplier * w, low, high), at_bound).astype(
        jnp.asarray(x).dtype
    )


def _multiplier(x: Any, low: Any, high: Any, w: Any, c: Any) -> jax.Array:
    """Compute the multiplier of the hyperplane by a binary search of the sorted breakpoints.

    The constraint violation is a decreasing, piecewise linear function of the multiplier. With
    infinite bounds, it also decreases beyond the outer breakpoints. There it is linear.

    Reference:
        Brucker (1984), An O(n) algorithm for quadratic knapsack problems, Operations Research
        Letters 3.
    """
    has_weight = w != 0
    # Entries with weight 0 don't depend on the multiplier, so they have no breakpoint.
    safe = jnp.where(has_weight, w, 1).astype(x.dtype)
    breakpoints = jnp.stack([(x - low) / safe, (x - high) / safe])
    breakpoints = jnp.where(has_weight & jnp.isfinite(breakpoints), breakpoints, 0).astype(x.dtype)

    def excess(tau: jax.Array) -> jax.Array:
        return jnp.sum(w * jnp.clip(x - tau * w, low, high)) - c

    def zero_outside(edge: jax.Array, down: jax.Array, up: jax.Array) -> jax.Array:
        is_unbounded = jnp.where(w > 0, jnp.isinf(down), jnp.isinf(up))
        return edge + safe_ratio(
            excess(edge), jnp.sum(jnp.where(is_unbounded, w * w, 0).astype(x.dtype))
        )

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, j = ends
        middle = (i + j) // 2
        is_positive = excess(points[middle]) > 0
        return jnp.where(is_positive, middle, i), jnp.where(is_positive, j, middle)

    smallest, largest = jnp.min(breakpoints, initial=0), jnp.max(breakpoints, initial=0)
    first = jnp.minimum(smallest, zero_outside(smallest, high, low))
    last = jnp.maximum(largest, zero_outside(largest, low, high))
    points = jnp.sort(jnp.concatenate([first[None], breakpoints.ravel(), last[None]]))
    ends = jnp.int32(0), jnp.int32(points.size - 1)
    i, j = jax.lax.fori_loop(0, (points.size - 1).bit_length(), halve, ends)
    # Between neighbors, the violation is linear.
    above, below = excess(points[i]), excess(points[j])
    return points[i] + safe_ratio(above, above - below) * (points[j] - points[i])


def _apply_bound(tree: Any, bound: Any, side: str) -> Any:
    """Clip a tree to a lower or an upper bound, a number or a tree prefix of bounds."""

    def branch(b: Any, part: Any) -> Any:
        if b is None:
            return part
        return jax.tree.map(lambda x: _clip_leaf(jnp.asarray(x), b, side), part)

    return jax.tree.map(branch, bound, tree, is_leaf=is_none)


def _clip_leaf(x: jax.Array, bound: Any, side: str) -> jax.Array:
    b = jnp.asarray(bound).astype(x.dtype)
    if not broadcasts_to(b.shape, x.shape):
        raise ValueError(
            f"projection_box: the {side} bound of a leaf of shape {x.shape} has shape {b.shape}, "
            "expected a shape that broadcasts to the leaf's shape."
        )
    return jnp.clip(x, min=b) if side == "lower" else jnp.clip(x, max=b)


def projection_box(tree: Any, lower: Any, upper: Any) -> Any:
    r"""Project onto a box (clip to bounds): :math:`\min(\max(x, l), u)`.

    Args:
        tree: :math:`x`, a tree of real floating arrays.
        lower: :math:`l`: a number, a tree like `tree`, or a tree prefix, whose leaves apply to
            whole subtrees; None means no bound.
        upper: :math:`u`, in the same form as `lower`.

    Returns:
        A tree like `tree`.

    Raises:
        TypeError: If a leaf isn't a real floating array.
        ValueError: If a bound doesn't broadcast to its leaf.

    Example:
        >>> from fnopt.projections import projection_box
        >>> projection_box({"w": jnp.asarray([-2.0, 0.5, 2.0])}, lower=-1, upper={"w": 1.0})
        {'w': Array([-1. ,  0.5,  1. ], dtype=float32)}
    """
    check_floating("projection_box", tree)
    # The bounds are applied one at a time, because they may be different tree prefixes.
    raised = _apply_bound(tree, lower, "lower")
    return _apply_bound(raised, upper, "upper")


def projection_hypercube(tree: Any, scale: Any = 1) -> Any:
    r"""Project onto a hypercube: :math:`\min(\max(x, 0), s)`.

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
    r"""Project onto the nonnegative orthant: :math:`\max(x, 0)`.

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
    r"""Project onto the ball of the maximum norm: :math:`\min(\max(x, -s), s)`.

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
