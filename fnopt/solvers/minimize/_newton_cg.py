"""Newton's method with Hessian-vector products, in a trust region."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import norm, to_boundary
from fnopt.numerics import nonzero
from fnopt.residuals import hessian_product
from fnopt.sharding import while_loop
from fnopt.solvers._trust_region import GOOD, POOR
from fnopt.solvers.minimize._method import (
    Direction,
    MinimizeMethod,
    WolfeConditions,
    dot,
    first_step,
    rounding_of,
)
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


class TrustRegion(NamedTuple):
    """The trust-region radius, and the last proposed step."""

    radius: jax.Array
    length: jax.Array  # length of the step
    predicted: jax.Array  # decrease of the model by the step
    outside: jax.Array  # whether the step ends on the boundary


class newton_cg(MinimizeMethod):
    r"""Newton's method by conjugate gradients in a trust region (Steihaug).

    .. math:: \min_p\; g^T p + \tfrac12 p^T H p \quad\text{subject to}\quad \|p\| \le \Delta

    The Hessian is never formed. A step takes several Hessian-vector products, each at the cost of
    about two gradients. Directions of negative curvature are followed to the trust-region boundary.
    The line search shortens a step that doesn't decrease the value, and the length of the shortened
    step becomes the radius. `nfev` counts evaluations, not Hessian-vector products.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> end = fnopt.minimize(lambda x: jnp.sum((x - 1) ** 4), jnp.zeros(2), method="newton_cg")
        >>> bool(end.converged)
        True

    Reference:
        Steihaug (1983), The conjugate gradient method and trust regions in large scale
        optimization; Nocedal and Yuan (1998), Combining trust region and line search techniques;
        Nocedal and Wright (2006), Numerical Optimization, algorithms 4.1 and 7.2.
    """

    wolfe = WolfeConditions(curvature=float("inf"))  # a sufficient decrease is enough

    def begin(self, problem: SmoothObjective, point: Evaluation) -> TrustRegion:
        """Return the initial trust region: its radius is the first step length of other methods."""
        radius = first_step(point) * norm(point.gradient)
        zero, inside = jnp.zeros_like(radius), jnp.zeros_like(radius, bool)
        return TrustRegion(radius, radius, zero, inside)

    def learn(
        self, memory: TrustRegion, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> TrustRegion:
        """Update the trust-region radius: Nocedal and Wright, algorithm 4.1."""
        length, noise = norm(after.x - before.x), rounding_of(before.value)
        predicted = memory.predicted + noise
        ratio = (before.value - after.value + noise) / jnp.where(predicted > 0, predicted, 1)
        # The step taken is compared with the proposed step, up to the rounding of the params.
        whole = length >= 0.99 * memory.length
        grows = whole & memory.outside & (ratio > GOOD)
        radius = jnp.where(grows, 2 * memory.radius, memory.radius)
        radius = jnp.where(ratio < POOR, memory.length / 4, radius)
        return memory._replace(radius=jnp.where(whole, radius, length))

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: TrustRegion, fresh: jax.Array
    ) -> tuple[Direction, TrustRegion]:
        """Return the step that minimizes the model in the trust region."""
        step, predicted, outside = steihaug(problem, point, memory.radius)
        memory = TrustRegion(memory.radius, norm(step), predicted, outside)
        # The predicted decrease of a step at the boundary doesn't bound the possible decrease.
        promised, one = jnp.where(outside, jnp.inf, predicted), jnp.ones_like(predicted)
        return Direction(step, one, one, promised), memory


class _Inner(NamedTuple):
    p: jax.Array
    r: jax.Array
    d: jax.Array
    rr: jax.Array
    count: jax.Array
    outside: jax.Array


def steihaug(
    problem: SmoothObjective, point: Evaluation, radius: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return a step by conjugate gradients, the model's decrease, and whether it is cut off.

    Args:
        problem: The problem.
        point: The evaluation at the current iterate.
        radius: The trust-region radius.
    """
    times, size = hessian_product(problem.f, point.x), norm(point.gradient)
    scale = nonzero(size)
    # All vectors are divided by the gradient's norm, because products of tiny gradients would
    # underflow.
    g, radius = point.gradient / scale, radius / scale

    def advance(at: _Inner) -> _Inner:
        p, r, d, rr, count, _ = at
        Hd = times(d)
        curvature = dot(d, Hd)
        convex = curvature > 0
        alpha = rr / jnp.where(convex, curvature, jnp.ones_like(curvature))
        ahead = p + alpha * d
        outside = ~convex | (norm(ahead) >= radius) | ~jnp.all(jnp.isfinite(ahead))
        # Lengths are in units of the radius, because the square of the radius may underflow.
        edge = radius * to_boundary(p / radius, d, jnp.ones_like(radius))
        p = jnp.where(outside, p + edge * d, ahead)
        r = r + alpha * Hd
        new = dot(r, r)
        d = -r + new / nonzero(rr) * d
        return _Inner(p, r, d, new, count + 1, outside)

    def unfinished(at: _Inner) -> jax.Array:
        # The residual falls to a tenth of the gradient: Conn, Gould and Toint (2000), section
        # 17.4.1.
        steep = jnp.sqrt(at.rr) > 0.1
        # In exact arithmetic n iterations are enough.
        return ~at.outside & steep & (at.count < 2 * g.size)

    zero, inside = jnp.zeros((), jnp.int32), jnp.zeros_like(size, bool)
    start = _Inner(jnp.zeros_like(g), g, -g, dot(g, g), zero, inside)
    p, *_, outside = while_loop(unfinished, advance, start)
    # The prediction takes an explicit Hessian-vector product, because the recursive residual drifts
    # from the true residual.
    predicted = -(dot(g, p) + 0.5 * dot(p, times(p)))
    usable = jnp.isfinite(predicted) & jnp.all(jnp.isfinite(p))
    p, predicted = jnp.where(usable, p, -radius * g), jnp.where(usable, predicted, radius)
    return scale * p, scale * (scale * predicted), outside | ~usable
