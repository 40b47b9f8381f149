"""The sets of the 2-norm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import real_dtype
from fnopt.projections._trees import check_floating, check_scale, length, project_wide


def _project_to_sphere(tree: Any, scale: Any, dtype: Any) -> tuple[Any, jax.Array]:
    """The nearest point of the sphere, and whether the tree is inside it."""
    s = jnp.asarray(scale).astype(real_dtype(dtype))
    size, unit, top = length(tree, dtype)
    zero = size == 0
    count = sum(x.size for x in jax.tree.leaves(tree))
    factor = s / jnp.where(zero, jnp.ones_like(size), size)
    # All points are equally near to zero.
    some = s / jnp.sqrt(jnp.asarray(max(count, 1), s.dtype))
    on = jax.tree.map(lambda x: jnp.where(zero, some.astype(x.dtype), factor * x), unit)
    return on, size <= s / top


def projection_l2_sphere(tree: Any, scale: Any = 1) -> Any:
    r"""The nearest point of Euclidean length `scale`: :math:`s\, x / \|x\|_2`.

    Zero, which is equally near to all points, is projected on the point with equal positive
    entries.

    Args:
        tree: :math:`x`, a tree of floating or complex arrays, taken as one vector.
        scale: :math:`s`, at least 0.

    Returns:
        A tree like `tree`.

    Raises:
        TypeError: If a leaf isn't a floating or complex array.
        ValueError: If the scale is negative.

    Example:
        >>> from fnopt.projections import projection_l2_sphere
        >>> projection_l2_sphere(jnp.asarray([3e30, 4e30]))
        Array([0.6, 0.8], dtype=float32)
    """
    check_floating("projection_l2_sphere", tree, allow_complex=True)
    check_scale("projection_l2_sphere", scale)
    return project_wide(lambda x, dtype: _project_to_sphere(x, scale, dtype)[0], tree)


def projection_l2_ball(tree: Any, scale: Any = 1) -> Any:
    r"""The nearest point of Euclidean length at most `scale`.

    .. math:: x\, \min\left( 1, \frac{s}{\|x\|_2} \right)

    A point inside is unchanged, in every bit.

    Args:
        tree: :math:`x`, a tree of floating or complex arrays, taken as one vector.
        scale: :math:`s`, at least 0.

    Returns:
        A tree like `tree`.

    Raises:
        TypeError: If a leaf isn't a floating or complex array.
        ValueError: If the scale is negative.

    Example:
        >>> from fnopt.projections import projection_l2_ball
        >>> projection_l2_ball(jnp.asarray([3.0, 4.0]))
        Array([0.6, 0.8], dtype=float32)
    """
    check_floating("projection_l2_ball", tree, allow_complex=True)
    check_scale("projection_l2_ball", scale)

    def nearest(x: Any, dtype: Any) -> Any:
        on, inside = _project_to_sphere(x, scale, dtype)
        return jax.tree.map(lambda a, b: jnp.where(inside, a, b), x, on)

    return project_wide(nearest, tree)
