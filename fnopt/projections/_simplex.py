"""The simplex, and the spheres and balls of the 1-norm and the 2-norm."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import select_tree
from fnopt.projections._trees import length, project_wide


def _threshold(x: jax.Array, scale: jax.Array) -> jax.Array:
    r"""The :math:`\tau` of rows with :math:`\sum_i \max(x_i - \tau, 0) = s`; `max(x)` is 0."""
    n = x.shape[-1]
    # Entries more than s below the maximum are never active; clipped, they don't affect the sums.
    x = jax.lax.stop_gradient(jnp.maximum(x, -scale[..., None]))
    scale = jax.lax.stop_gradient(scale)[..., None]
    down = jnp.sort(x, axis=-1)[..., ::-1]
    counts = jnp.arange(1, n + 1).astype(x.dtype)
    sums = jnp.cumsum(down, axis=-1)
    active = jnp.sum(scale + counts * down - sums > 0, axis=-1, keepdims=True)
    last = jnp.maximum(active - 1, 0)
    tau = (jnp.take_along_axis(sums, last, axis=-1) - scale) / (last + 1).astype(x.dtype)
    # One Newton step corrects the rounding error of the long sum.
    above = jnp.maximum(x - tau, 0)
    number = jnp.maximum(jnp.sum((above > 0).astype(x.dtype), axis=-1, keepdims=True), 1)
    return tau + (jnp.sum(above, axis=-1, keepdims=True) - scale) / number


def simplex_of_rows(x: jax.Array, scale: jax.Array) -> jax.Array:
    r"""Project the rows of an array (last axis) onto :math:`\{y \ge 0, \sum y = s\}`.

    The derivative is taken for a fixed active set. :math:`\tau` is recomputed as the mean over the
    entries that remain positive.
    """
    if x.shape[-1] == 0:
        return x
    scale = jnp.broadcast_to(scale, x.shape[:-1])
    # A common shift of all entries doesn't change the result, and the largest entry is exact at 0.
    x = x - jax.lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))
    tau = _threshold(x, scale)
    # With s = 0 only the largest entries are active, at 0.
    support = jnp.where(jnp.any(x > tau, axis=-1, keepdims=True), x > tau, x >= tau)
    number = jnp.maximum(jnp.sum(support.astype(x.dtype), axis=-1, keepdims=True), 1)
    inside = jnp.where(support, x, jnp.zeros_like(x))
    total = jnp.sum(inside, axis=-1, keepdims=True)
    exact = (total - scale[..., None]) / number
    # Comparisons with NaN are false, so a row that contains NaN would become zero.
    bad = jnp.any(jnp.isnan(x), axis=-1, keepdims=True)
    others = jnp.where(bad, jnp.full_like(x, jnp.nan), jnp.zeros_like(x))
    return jnp.where(support, jnp.maximum(x - exact, 0), others)


def _project_leaves_together(tree: Any, scale: jax.Array) -> Any:
    """Project all leaves together onto the simplex."""
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
    """Project onto the 1-norm sphere; also whether the tree is inside it."""
    moduli = jax.tree.map(jnp.abs, tree)
    # Zero counts as positive: this selects one of the nearest points.
    sizes = _project_leaves_together(moduli, scale)
    sphere = jax.tree.map(lambda x, size: jnp.where(x < 0, -size, size), tree, sizes)
    total = sum(map(jnp.sum, jax.tree.leaves(moduli)), jnp.zeros_like(scale))
    return sphere, total <= scale


def _project_to_ball(to_sphere: Any, tree: Any, scale: jax.Array) -> Any:
    """Return a tree inside the ball unchanged; project any other tree onto the sphere."""
    sphere, inside = to_sphere(tree, scale)
    return select_tree(inside, tree, sphere)


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
    return project_wide("projection_simplex", _project_leaves_together, tree, scale)


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
    """Project onto the 2-norm sphere; also whether the tree is inside it."""
    size, unit, top = length(tree, s.dtype)
    zero = size == 0
    count = sum(x.size for x in jax.tree.leaves(tree))
    factor = s / jnp.where(zero, jnp.ones_like(size), size)
    # All points are equally near to zero.
    some = s / jnp.sqrt(jnp.asarray(max(count, 1), s.dtype))
    on = jax.tree.map(lambda x: jnp.where(zero, some.astype(x.dtype), factor * x), unit)
    return on, size <= s / top


def projection_l2_sphere(tree: Any, scale: Any = 1) -> Any:
    r"""Project onto the Euclidean sphere of radius `scale`: :math:`s\, x / \|x\|_2`.

    Zero, which is at the same distance from all points, is projected onto the point with equal
    positive entries.

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
