"""The second-order test of a certificate: smallest curvature of the cost, and a step along it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.curvature import hvp, top_eigenvalues
from fnopt.linear import divide
from fnopt.sharding import row_axes
from fnopt.solvers._trust_region import SHARE
from fnopt.solvers.linear_model._linearization import Linearization
from fnopt.solvers.linear_model._scaling import initial_scale
from fnopt.solvers.problem._problem import Problem

# Lanczos' method is exact for this many params; for more it finds a clearly negative end of the
# spectrum (Kuczyński and Woźniakowski 1992: an error of (ln n / 32)^2 of the spectrum's width).
_PRODUCTS = 32


class Curvature(NamedTuple):
    """The smallest curvature at a point."""

    least: jax.Array  # smallest eigenvalue of D^-1 H D^-1
    x: jax.Array  # [n], the lowest-cost point among trial points along the eigenvector
    falls: jax.Array  # whether the decrease of the cost at x is more than negligible
    negative: jax.Array  # whether the smallest eigenvalue is negative by more than rounding error


def least_curvature(problem: Problem, point: Linearization, bound: jax.Array) -> Curvature:
    r"""Find a direction of negative curvature, and take a step along this direction.

    Along the eigenvector `v` of the smallest eigenvalue :math:`\lambda` of the scaled Hessian, the
    cost decreases by :math:`|\lambda| t^2 / 2` to second order. The largest trial `t` makes this
    decrease equal to the cost. Each further `t`, with both signs, is a quarter of the previous `t`,
    while the predicted decrease is more than a negligible share of the cost.

    Args:
        problem: The problem.
        point: The candidate.
        bound: The largest negligible decrease :math:`\delta`.

    Reference:
        Moré and Sorensen (1979), On the use of directions of negative curvature in a modified
        Newton method.
    """
    if row_axes():
        raise ValueError(
            "least_squares: certify = 'full' over a named axis, expected 'first-order': second "
            "derivatives of residuals that are divided over devices aren't taken."
        )
    x = point.x
    scale = initial_scale(point.columns)
    moving = jnp.ones_like(x)
    if problem.box is not None:
        # A param on a bound with a zero gradient may leave it (the critical cone).
        held = problem.box.held(x, point.gradient) & (point.gradient != 0)
        moving = (~(held | problem.box.fixed)).astype(x.dtype)
    product_with_hessian = hvp(problem.cost_at)

    def product(v: jax.Array) -> jax.Array:
        return moving * product_with_hessian(x, moving * v / scale) / scale

    pair = top_eigenvalues(product, x, jax.random.key(0), which="smallest", iterations=_PRODUCTS)
    least = pair.values[0]
    v = moving * pair.vectors[0] / scale
    longest = jnp.sqrt(divide(2 * point.cost, jnp.abs(least)))
    trials = 1 + int(np.log(1 / SHARE) / np.log(16))  # the decrease is proportional to t^2
    lengths = longest * jnp.asarray(0.25 ** np.arange(trials), x.dtype)
    ends = x + jnp.concatenate([jnp.zeros_like(lengths[:1]), lengths, -lengths])[:, None] * v
    if problem.box is not None:
        ends = problem.box.nearest(ends)
    costs = jax.vmap(problem.cost_at)(ends)
    costs = jnp.where(jnp.isfinite(costs), costs, jnp.asarray(jnp.inf, costs.dtype))
    falls = (least < 0) & (jnp.min(costs) < costs[0] - bound / 2)
    # A product has a rounding error of eps times the norm, at most the trace n of the scaled J^T J.
    rounding = jnp.asarray(_PRODUCTS * x.size * float(jnp.finfo(x.dtype).eps), x.dtype)
    return Curvature(least, ends[jnp.argmin(costs)], falls, least < -rounding)
