"""Multi-start search: initial points, and the solution of lowest cost."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import is_converged
from fnopt.residuals import Box
from fnopt.solvers._trust_region import SHARE
from fnopt.solvers.result._solution import Solution


def checked_starts(starts: int) -> int:
    """Check the number of initial points and return it."""
    if isinstance(starts, bool) or not isinstance(starts, int) or starts < 1:
        raise ValueError(
            f"least_squares: starts = {starts!r}, expected an integer >= 1, the number "
            "of initial points."
        )
    return starts


def starting_points(x: jax.Array, box: Box | None, count: int) -> jax.Array:
    r"""Return the initial guess and low-discrepancy points around it.

    For a point :math:`u` of a low-discrepancy sequence in :math:`[0, 1)^n`, the initial value of a
    param is :math:`x_j\, 10^{2 u_j - 1}`. It has the sign of :math:`x_j`, and its magnitude differs
    by a factor of up to ten. If :math:`x_j = 0`, the initial value is :math:`2 u_j - 1`. A param
    with two finite bounds starts between the bounds, at a fraction :math:`u_j` of their distance.

    Args:
        x: The initial guess, of shape `[n]`.
        box: The bounds.
        count: Number of points.

    Returns:
        The points, of shape `[count, n]`.

    Reference:
        Roberts (2018), The unreasonable effectiveness of quasirandom sequences (the additive
        recurrence by powers of the root of :math:`t^{n+1} = t + 1`).
    """
    u = jnp.asarray(_additive_recurrence(count, x.size), x.dtype)
    exponent = 2 * u - 1
    points = jnp.where(x == 0, exponent, x * 10**exponent)
    if box is not None:
        width = box.upper - box.lower
        between = box.lower + u * jnp.where(jnp.isfinite(width), width, jnp.zeros_like(width))
        points = box.nearest(jnp.where(jnp.isfinite(width), between, points))
    return points.at[0].set(x)


def _additive_recurrence(count: int, n: int) -> np.ndarray:
    root = 2.0
    # Fixed-point iteration for the root of t^(n + 1) = t + 1. Each of the 64 iterations halves the
    # error at least, so the root is exact in float64.
    for _ in range(64):
        root = (1 + root) ** (1 / (n + 1))
    powers = root ** -np.arange(1.0, n + 1)
    return (0.5 + np.arange(count)[:, None] * powers) % 1


def lowest(search: Callable[[jax.Array], Solution], starts: jax.Array) -> Solution:
    """Search from every initial point, and return the solution of lowest cost.

    Among solutions whose costs differ by a negligible share, a converged solution is preferred. The
    numbers of evaluations are totals of all searches.
    """
    ends = jax.vmap(search)(starts)
    cost = jnp.where(jnp.isfinite(ends.cost), ends.cost, jnp.asarray(jnp.inf, ends.cost.dtype))
    factor = jnp.asarray(1 + SHARE, cost.dtype)
    candidates = is_converged(ends.status) & (cost <= factor * jnp.min(cost))
    candidates |= ~jnp.any(candidates)
    i = jnp.argmin(jnp.where(candidates, cost, jnp.asarray(jnp.inf, cost.dtype)))
    end = jax.tree.map(lambda a: a[i], ends)
    names = ("nfev", "njev", "nhev")
    return end._replace(**{name: jnp.sum(getattr(ends, name), dtype=jnp.int32) for name in names})
