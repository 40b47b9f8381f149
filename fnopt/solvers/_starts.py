"""Multi-start: several searches in parallel, which return the solution of lowest cost."""

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
    """Check the number of starting points and return it."""
    if isinstance(starts, bool) or not isinstance(starts, int) or starts < 1:
        raise ValueError(
            f"least_squares: starts = {starts!r}, expected the number of initial points, "
            "a whole number >= 1."
        )
    return starts


def starting_points(x: jax.Array, box: Box | None, count: int) -> jax.Array:
    r"""Return the initial guess and low-discrepancy points around it.

    With points :math:`u` of a low-discrepancy sequence in :math:`[0, 1)^n` a param starts at
    :math:`x_j\, 10^{2 u_j - 1}`, with the same sign and a magnitude that differs by a factor of up
    to ten. A param that is zero starts at :math:`2 u_j - 1`, and a param with two bounds starts
    between the bounds.

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
    centred = 2 * u - 1
    points = jnp.where(x == 0, centred, x * 10**centred)
    if box is not None:
        width = box.upper - box.lower
        between = box.lower + u * jnp.where(jnp.isfinite(width), width, jnp.zeros_like(width))
        points = box.nearest(jnp.where(jnp.isfinite(width), between, points))
    return points.at[0].set(x)


def _additive_recurrence(count: int, n: int) -> np.ndarray:
    root = 2.0
    for _ in range(64):  # a contraction by at least 1 / (n + 1)
        root = (1 + root) ** (1 / (n + 1))
    powers = root ** -np.arange(1.0, n + 1)
    return (0.5 + np.arange(count)[:, None] * powers) % 1


def lowest(search: Callable[[jax.Array], Solution], starts: jax.Array) -> Solution:
    """Return the solution of lowest cost, with the numbers of evaluations of all searches.

    Among solutions whose costs differ by a negligible share, a converged solution is preferred.
    """
    ends = jax.vmap(search)(starts)
    cost = jnp.where(jnp.isfinite(ends.cost), ends.cost, jnp.asarray(jnp.inf, ends.cost.dtype))
    share = jnp.asarray(1 + SHARE, cost.dtype)
    best = is_converged(ends.status) & (cost <= share * jnp.min(cost))
    best |= ~jnp.any(best)
    i = jnp.argmin(jnp.where(best, cost, jnp.asarray(jnp.inf, cost.dtype)))
    end = jax.tree.map(lambda a: a[i], ends)
    counted = ("nfev", "njev", "nhev")
    return end._replace(**{name: jnp.sum(getattr(ends, name), dtype=jnp.int32) for name in counted})
