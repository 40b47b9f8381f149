"""Newton's method with products of the Hessian, in a trust region."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import norm
from fnopt.residuals import hessian_product
from fnopt.sharding import while_loop
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
    """The radius, and the step that was proposed in it."""

    radius: jax.Array
    length: jax.Array  # of the step
    predicted: jax.Array  # decrease of the model by it


class newton_cg(MinimizeMethod):
    r"""Newton's method by conjugate gradients in a trust region (Steihaug).

    .. math:: \min_p\; g^T p + \tfrac12 p^T H p \quad\text{subject to}\quad \|p\| \le \Delta

    The Hessian is never formed: a step takes some products of it with vectors, each at the cost of
    about two gradients. Directions of negative curvature are followed to the edge of the region.
    A step that doesn't decrease the value is shortened by the line search, and the radius is then
    the length of the step taken. `nfev` counts evaluations, not the products.

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
        """A region as large as the first step of other methods is long."""
        radius = first_step(point) * norm(point.gradient)
        return TrustRegion(radius, radius, jnp.zeros_like(radius))

    def learn(
        self, memory: TrustRegion, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> TrustRegion:
        """The radius after a step: Nocedal and Wright, algorithm 4.1."""
        length, noise = norm(after.x - before.x), rounding_of(before.value)
        predicted = memory.predicted + noise
        ratio = (before.value - after.value + noise) / jnp.where(predicted > 0, predicted, 1)
        # The step is compared with the one proposed, up to the rounding of the params.
        whole = length >= 0.99 * memory.length
        edge = memory.length >= 0.99 * memory.radius
        radius = jnp.where(whole & edge & (ratio > 0.75), 2 * memory.radius, memory.radius)
        radius = jnp.where(ratio < 0.25, memory.length / 4, radius)
        return memory._replace(radius=jnp.where(whole, radius, length))

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: TrustRegion, fresh: jax.Array
    ) -> tuple[Direction, TrustRegion]:
        """The step that minimizes the model in the region."""
        step, predicted = steihaug(problem, point, memory.radius)
        length, one = norm(step), jnp.ones_like(predicted)
        memory = memory._replace(length=length, predicted=predicted)
        # The decrease by a step that the region cut short doesn't bound what there is to gain.
        inf = jnp.asarray(jnp.inf, one.dtype)
        promised = jnp.where(length >= 0.99 * memory.radius, inf, predicted)
        return Direction(step, one, one, promised), memory


class _Inner(NamedTuple):
    p: jax.Array
    r: jax.Array
    d: jax.Array
    rr: jax.Array
    count: jax.Array
    done: jax.Array


def steihaug(
    problem: SmoothObjective, point: Evaluation, radius: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The step in a region by conjugate gradients, and the decrease of the model.

    Args:
        problem: The problem.
        point: Where the step starts.
        radius: The radius of the region.
    """
    times, size = hessian_product(problem.f, point.x), norm(point.gradient)
    scale = jnp.where(size > 0, size, jnp.ones_like(size))
    # Everything over the gradient's norm: products of tiny gradients would underflow.
    g, radius = point.gradient / scale, radius / scale

    def advance(at: _Inner) -> _Inner:
        p, r, d, rr, count, _ = at
        Hd = times(d)
        curvature = dot(d, Hd)
        convex = curvature > 0
        alpha = rr / jnp.where(convex, curvature, jnp.ones_like(curvature))
        ahead = p + alpha * d
        leaves = ~convex | (norm(ahead) >= radius) | ~jnp.all(jnp.isfinite(ahead))
        # In units of the radius, whose square may underflow.
        edge = radius * _to_the_edge(p / radius, d)
        p = jnp.where(leaves, p + edge * d, ahead)
        r = r + alpha * Hd
        new = dot(r, r)
        d = -r + new / jnp.where(rr > 0, rr, jnp.ones_like(rr)) * d
        # A tenth of the gradient: Conn, Gould and Toint (2000), section 17.4.1.
        return _Inner(p, r, d, new, count + 1, leaves | (jnp.sqrt(new) <= 0.1))

    def unfinished(at: _Inner) -> jax.Array:
        return ~at.done & (at.count < 2 * g.size)  # in exact arithmetic n are enough

    start = _Inner(jnp.zeros_like(g), g, -g, dot(g, g), jnp.zeros((), jnp.int32), size <= 0)
    p = while_loop(unfinished, advance, start).p
    # By a product of its own: the residual of the recursion drifts away from the true one.
    predicted = -(dot(g, p) + 0.5 * dot(p, times(p)))
    usable = jnp.isfinite(predicted) & jnp.all(jnp.isfinite(p))
    p, predicted = jnp.where(usable, p, -radius * g), jnp.where(usable, predicted, radius)
    return scale * p, scale * (scale * predicted)


def _to_the_edge(p: jax.Array, d: jax.Array) -> jax.Array:
    """The step along `d` from inside of the unit sphere to its edge."""
    a, b, c = dot(d, d), dot(p, d), dot(p, p) - 1
    root = jnp.sqrt(jnp.maximum(jnp.square(b) - a * c, 0))
    # Whichever of the two forms of the root doesn't cancel.
    positive = b > 0
    over = jnp.where(positive, -c, root - b)
    under = jnp.where(positive, b + root, a)
    return over / jnp.where(under > 0, under, jnp.ones_like(under))
