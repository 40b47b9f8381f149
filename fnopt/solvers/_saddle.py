"""Second-order optimality test: smallest curvature of the cost, and escape from saddle points."""

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

# Number of Hessian-vector products. Lanczos' method is exact for at most 32 params. For more
# params, the error of the smallest eigenvalue is (ln n / 32)^2 times the width of the spectrum
# (Kuczyński and Woźniakowski 1992).
_PRODUCTS = 32


class Curvature(NamedTuple):
    """The smallest curvature of the cost at a point, and the best trial point along it."""

    least: jax.Array  # smallest eigenvalue of D^-1 H D^-1
    x: jax.Array  # [n], the trial point of lowest cost along the eigenvector
    falls: jax.Array  # whether the cost at x is lower by more than a negligible decrease
    negative: jax.Array  # whether the smallest eigenvalue is negative beyond rounding error


def least_curvature(problem: Problem, point: Linearization, bound: jax.Array) -> Curvature:
    r"""Compute the smallest curvature of the cost, and evaluate trial points along its direction.

    Along the eigenvector `v` of the smallest eigenvalue :math:`\lambda` of the scaled Hessian, the
    cost decreases by :math:`|\lambda| t^2 / 2` to second order. For the largest trial `t`, this
    decrease equals the cost. Each smaller `t` is a quarter of the previous `t`, as long as the
    predicted decrease isn't a negligible share of the cost. Both signs of `t` are tried.

    Args:
        problem: The problem.
        point: The linearization at the candidate solution.
        bound: The largest negligible decrease of the cost.

    Reference:
        Moré and Sorensen (1979), On the use of directions of negative curvature in a modified
        Newton method.
    """
    if row_axes():
        raise ValueError(
            "least_squares: got certify = 'full' with axis_name, expected 'first-order'. Second "
            "derivatives of sharded residuals aren't supported, so leave certify out."
        )
    # `product` multiplies by S D^-1 H D^-1 S, with the scaling D and the mask S of the params that
    # may change. For an eigenvector v, S D^-1 v is therefore a feasible direction.
    x = point.x
    scale = initial_scale(point.columns)
    free = jnp.ones_like(x)
    if problem.box is not None:
        # A param on a bound with a zero gradient may leave the bound (the critical cone).
        active = problem.box.held(x, point.gradient) & (point.gradient != 0)
        free = (~(active | problem.box.fixed)).astype(x.dtype)
    hessian_times = hvp(problem.cost_at)

    def product(v: jax.Array) -> jax.Array:
        return free * hessian_times(x, free * v / scale) / scale

    pair = top_eigenvalues(product, x, jax.random.key(0), which="smallest", iterations=_PRODUCTS)
    smallest = pair.values[0]
    v = free * pair.vectors[0] / scale
    max_t = jnp.sqrt(divide(2 * point.cost, jnp.abs(smallest)))
    # The decrease is proportional to t^2, so a quarter of t yields a 16th of the decrease.
    count = 1 + int(np.log(1 / SHARE) / np.log(16))
    t = max_t * jnp.asarray(0.25 ** np.arange(count), x.dtype)
    # The first trial point is x, so that all compared costs are computed by one formula.
    trials = x + jnp.concatenate([jnp.zeros_like(t[:1]), t, -t])[:, None] * v
    if problem.box is not None:
        trials = problem.box.nearest(trials)
    costs = jax.vmap(problem.cost_at)(trials)
    costs = jnp.where(jnp.isfinite(costs), costs, jnp.asarray(jnp.inf, costs.dtype))
    falls = (smallest < 0) & (jnp.min(costs) < costs[0] - bound / 2)
    # A product has a rounding error of eps times the norm, at most the trace n of the scaled J^T J.
    rounding = jnp.asarray(_PRODUCTS * x.size * float(jnp.finfo(x.dtype).eps), x.dtype)
    return Curvature(smallest, trials[jnp.argmin(costs)], falls, smallest < -rounding)
