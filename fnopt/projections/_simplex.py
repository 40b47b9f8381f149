"""Projections onto the simplex, and onto spheres and balls of the 1-norm and the 2-norm."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import select_tree
from fnopt.projections._trees import length, project_wide


def _threshold(x: jax.Array, scale: jax.Array) -> jax.Array:
    r"""Solve :math:`\sum_i \max(x_i - \tau, 0) = s` for each row, whose maximum is 0."""
    n = x.shape[-1]
    # Entries more than s below the maximum are never active. They are clipped, so that huge entries
    # don't round the sums.
    x = jax.lax.stop_gradient(jnp.maximum(x, -scale[..., None]))
    scale = jax.lax.stop_gradient(scale)[..., None]
    descending = jnp.sort(x, axis=-1)[..., ::-1]
    counts = jnp.arange(1, n + 1).astype(x.dtype)
    sums = jnp.cumsum(descending, axis=-1)
    active = jnp.sum(scale + counts * descending - sums > 0, axis=-1, keepdims=True)
    last_index = jnp.maximum(active - 1, 0)
    tau = (jnp.take_along_axis(sums, last_index, axis=-1) - scale) / (last_index + 1).astype(
        x.dtype
    )
    # One Newton step corrects the rounding error of the long sum.
    excess = jnp.maximum(x - tau, 0)
    count = jnp.maximum(jnp.sum((excess > 0).astype(x.dtype), axis=-1, keepdims=True), 1)
    return tau + (jnp.sum(excess, axis=-1, keepdims=True) - scale) / count


def simplex_of_rows(x: jax.Array, scale: jax.Array) -> jax.Array:
    r"""Project the rows of an array (last axis) onto :math:`\{y \ge 0, \sum y = s\}`.

    The derivative treats the set of positive entries (the support) as fixed. For this set,
    :math:`\tau` is recomputed from a mean over the support.
    """
    if x.shape[-1] == 0:
        return x
    scale = jnp.broadcast_to(scale, x.shape[:-1])
    # A common shift of a row doesn't change the result, and makes the maximum exactly 0.
    x = x - jax.lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))
    tau = _threshold(x, scale)
    # With s = 0, no entry exceeds tau, and the support consists of the largest entries.
    support = jnp.where(jnp.any(x > tau, axis=-1, keepdims=True), x > tau, x >= tau)
    count = jnp.maximum(jnp.sum(support.astype(x.dtype), axis=-1, keepdims=True), 1)
    supported = jnp.where(support, x, jnp.zeros_like(x))
    total = jnp.sum(supported, axis=-1, keepdims=True)
    tau_exact = (total - scale[..., None]) / count
    # Comparisons with NaN are false, so a row with NaN would become zero without `fill`.
    has_nan = jnp.any(jnp.isnan(x), axis=-1, keepdims=True)
    fill = jnp.where(has_nan, jnp.full_like(x, jnp.nan), jnp.zeros_like(x))
    return jnp.where(support, jnp.maximum(x - tau_exact, 0), fill)


def _project_tree(tree: Any, scale: jax.Array) -> Any:
    """Project a tree, as one vector, onto the simplex."""
    leaves, treedef = jax.tree.flatten(tree)
    if not leaves:
        return tree
    y = simplex_of_rows(jnp.concatenate([x.reshape(-1) for x in leaves]), scale)
    ends = [0]
    for x in leaves:
        ends.append(ends[-1] + x.size)
    parts = [y[ends[i] : ends[i + 1]].reshape(x.shape) for i, x in enumerate(leaves)]
    return jax.tree.unflatten(treedef, parts)


def _project_to_l1_sphere(tree: Any, scale: jax.Array) -> tuple[Any, jax.Array]:
    """Project onto the 1-norm sphere; also return whether the tree is inside the sphere."""
    moduli = jax.tree.map(jnp.abs, tree)
    # An entry of zero gets a positive sign, which selects one of several nearest points.
    sizes = _project_tree(moduli, scale)
    sphere = jax.tree.map(lambda x, size: jnp.where(x < 0, -size, size), tree, sizes)
    total = sum(map(jnp.sum, jax.tree.leaves(moduli)), jnp.zeros_like(scale))
    return sphere, total <= scale


def _project_to_ball(to_sphere: Any, tree: Any, scale: jax.Array) -> Any:
    """Return a tree inside the ball unchanged; project any other tree onto the sphere."""
    sphere, is_inside = to_sphere(tree, scale)
    return select_tree(is_inside, tree, sphere)


def projection_simplex(tree: Any, scale: Any = 1) -> Any:
    r"""Project onto the simplex of nonnegative numbers that sum to `scale`.

    .. math:: \operatorname*{argmin}_y \|x - y\|_2 \quad \text{with} \quad
              y \ge 0, \; \mathbf 1^\top y = s

    The derivative is exact wherever it exists.

    Args:
        tree: :math:`x`, a tree of real floating arrays, treated as one vector.
        scale: :math:`s`, at least 0.

    Returns:
        A tree like `tree`.

    Raises:
        TypeError: If a leaf isn't a real floating array.
        ValueError: If the scale is negative.

    Example:
        >>> from fnopt.projections import projection_simplex
        >>> projection_simplex(jnp.asarray([0.6, 0.8, -1.0]))
        Array([0.40000..., 0.6       , 0.        ], dtype=float32)

    Reference:
        Held, Wolfe and Crowder, 1974, Mathematical Programming 6; Duchi et al., 2008, ICML.
    """
    return project_wide("projection_simplex", _project_tree, tree, scale)


def projection_l1_sphere(tree: Any, scale: Any = 1) -> Any:
    r"""Project onto the 1-norm sphere, on which absolute values sum to `scale`.

    .. math:: \operatorname*{argmin}_y \|x - y\|_2 \quad \text{with} \quad \|y\|_1 = s

    If several points are nearest (for an entry of zero), the result has positive entries.

    Args:
        tree: :math:`x`, a tree of real floating arrays, treated as one vector.
        scale: :math:`s`, at least 0.

    Returns:
        A tree like `tree`.

    Raises:
        TypeError: If a leaf isn't a real floating array.
        ValueError: If the scale is negative.

    Example:
        >>> from fnopt.projections import projection_l1_sphere
        >>> projection_l1_sphere(jnp.asarray([-0.25, 0.25]))
        Array([-0.5,  0.5], dtype=float32)
    """
    project = lambda x, s: _project_to_l1_sphere(x, s)[0]  # noqa: E731
    return project_wide("projection_l1_sphere", project, tree, scale)


def projection_l1_ball(tree: Any, scale: Any = 1) -> Any:
    r"""Project onto the 1-norm ball, in which absolute values sum to at most `scale`.

    .. math:: \operatorname*{argmin}_y \|x - y\|_2 \quad \text{with} \quad \|y\|_1 \le s

    A point inside the ball is returned unchanged, bit for bit.

    Args:
        tree: :math:`x`, a tree of real floating arrays, treated as one vector.
        scale: :math:`s`, at least 0.

    Returns:
        A tree like `tree`.

    Raises:
        TypeError: If a leaf isn't a real floating array.
        ValueError: If the scale is negative.

    Example:
        >>> from fnopt.projections import projection_l1_ball
        >>> projection_l1_ball(jnp.asarray([-2.0, 0.5]))
        Array([-1.,  0.], dtype=float32)

    Reference:
        Duchi et al., 2008, ICML, doi:10.1145/1390156.1390191.
    """
    project = functools.partial(_project_to_ball, _project_to_l1_sphere)
    return project_wide("projection_l1_ball", project, tree, scale)


def _scale_to_sphere(tree: Any, s: jax.Array) -> tuple[Any, jax.Array]:
    """Project onto the 2-norm sphere; also return whether the tree is inside the sphere."""
    size, unit, top = length(tree, s.dtype)
    is_zero = size == 0
    count = sum(x.size for x in jax.tree.leaves(tree))
    factor = s / jnp.where(is_zero, jnp.ones_like(size), size)
    # All points of the sphere have the same distance from zero.
    equal_entry = s / jnp.sqrt(jnp.asarray(max(count, 1), s.dtype))
    sphere = jax.tree.map(
        lambda x: jnp.where(is_zero, equal_entry.astype(x.dtype), factor * x), unit
    )
    return sphere, size <= s / top


def projection_l2_sphere(tree: Any, scale: Any = 1) -> Any:
    r"""Project onto the Euclidean sphere of radius `scale`: :math:`s\, x / \|x\|_2`.

    Zero, which has the same distance from all points of the sphere, is projected onto the point
    with equal positive entries.

    Args:
        tree: :math:`x`, a tree of floating or complex arrays, treated as one vector.
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
    project = lambda x, s: _scale_to_sphere(x, s)[0]  # noqa: E731
    return project_wide("projection_l2_sphere", project, tree, scale, allow_complex=True)


def projection_l2_ball(tree: Any, scale: Any = 1) -> Any:
    r"""Project onto the Euclidean ball of radius `scale`.

    .. math:: x\, \min\left( 1, \frac{s}{\|x\|_2} \right)

    A point inside the ball is returned unchanged, bit for bit.

    Args:
        tree: :math:`x`, a tree of floating or complex arrays, treated as one vector.
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
    project = functools.partial(_project_to_ball, _scale_to_sphere)
    return project_wide("projection_l2_ball", project, tree, scale, allow_complex=True)
