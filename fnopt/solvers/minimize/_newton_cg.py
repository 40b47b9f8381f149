"""Trust-region Newton method by Hessian-vector products."""

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
    first_step_size,
    rounding_bound,
)
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


class TrustRegion(NamedTuple):
    """The trust-region radius, and properties of the last proposed step."""

    radius: jax.Array
    length: jax.Array  # norm of the step
    predicted: jax.Array  # decrease of the model by the step
    on_boundary: jax.Array  # whether the step ends on the boundary


class newton_cg(MinimizeMethod):
    r"""Trust-region Newton method with steps by conjugate gradients (Steihaug).

    .. math:: \min_p\; g^T p + \tfrac12 p^T H p \quad\text{subject to}\quad \|p\| \le \Delta

    The Hessian is never formed. A step takes several Hessian-vector products, each at the cost of
    about two gradients. Directions of negative curvature are followed to the trust-region boundary.
    A line search shortens a step that doesn't decrease the value. The norm of the shortened step
    becomes the radius. `nfev` doesn't include Hessian-vector products.

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
        """Return a trust region whose radius is the length of a first steepest-descent step."""
        radius = first_step_size(point) * norm(point.gradient)
        zero, inside = jnp.zeros_like(radius), jnp.zeros_like(radius, bool)
        return TrustRegion(radius, radius, zero, inside)

    def learn(
        self, memory: TrustRegion, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> TrustRegion:
        """Update the trust-region radius: Nocedal and Wright, algorithm 4.1."""
        length, noise = norm(after.x - before.x), rounding_bound(before.value)
        # Near a minimum both decreases are below rounding error; `noise` then makes the gain 1.
        predicted = memory.predicted + noise
        gain = (before.value - after.value + noise) / jnp.where(predicted > 0, predicted, 1)
        # A line search shortens a step to at most 0.9 times its length (the margin of an
        # interpolated step). Rounding changes the length of a full step by less than 1 %.
        is_full = length >= 0.99 * memory.length
        grows = is_full & memory.on_boundary & (gain > GOOD)
        radius = jnp.where(grows, 2 * memory.radius, memory.radius)
        radius = jnp.where(gain < POOR, memory.length / 4, radius)
        return memory._replace(radius=jnp.where(is_full, radius, length))

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: TrustRegion, fresh: jax.Array
    ) -> tuple[Direction, TrustRegion]:
        """Return the step that minimizes the model in the trust region."""
        step, predicted, on_boundary = steihaug_step(problem, point, memory.radius)
        memory = TrustRegion(memory.radius, norm(step), predicted, on_boundary)
        # The stopping tests use an upper bound on the decrease. The bound of a step to the boundary
        # is infinite, because the model may decrease further beyond the boundary.
        bound, one = jnp.where(on_boundary, jnp.inf, predicted), jnp.ones_like(predicted)
        return Direction(step, one, one, bound), memory


class _CGState(NamedTuple):
    p: jax.Array  # [n], the step
    r: jax.Array  # [n], the gradient H p + g of the model at p
    d: jax.Array  # [n], the conjugate direction
    rr: jax.Array  # r^T r
    count: jax.Array  # int32, number of iterations
    on_boundary: jax.Array  # bool


def steihaug_step(
    problem: SmoothObjective, point: Evaluation, radius: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Minimize the quadratic model in a trust region by conjugate gradients.

    Args:
        problem: The problem.
        point: The evaluation at the current iterate.
        radius: The trust-region radius.

    Returns:
        The step, of shape `[n]`; the model's decrease; and whether the step ends on the boundary.
    """
    times, gradient_norm = hessian_product(problem.f, point.x), norm(point.gradient)
    scale = nonzero(gradient_norm)
    # All vectors are divided by the gradient's norm, because products of tiny gradients would
    # underflow.
    g, radius = point.gradient / scale, radius / scale

    def advance(state: _CGState) -> _CGState:
        p, r, d, rr, count, _ = state
        Hd = times(d)
        curvature = dot(d, Hd)
        convex = curvature > 0
        alpha = rr / jnp.where(convex, curvature, jnp.ones_like(curvature))
        new_p = p + alpha * d
        on_boundary = ~convex | (norm(new_p) >= radius) | ~jnp.all(jnp.isfinite(new_p))
        # The square of the radius may underflow, so the ball is scaled to radius 1.
        distance = radius * to_boundary(p / radius, d, jnp.ones_like(radius))
        p = jnp.where(on_boundary, p + distance * d, new_p)
        r = r + alpha * Hd
        new_rr = dot(r, r)
        d = -r + new_rr / nonzero(rr) * d
        return _CGState(p, r, d, new_rr, count + 1, on_boundary)

    def unfinished(state: _CGState) -> jax.Array:
        # Iterate until the residual is a tenth of the gradient: Conn, Gould and Toint (2000),
        # section 17.4.1.
        inexact = jnp.sqrt(state.rr) > 0.1
        # n iterations suffice in exact arithmetic; rounding errors need some more.
        return ~state.on_boundary & inexact & (state.count < 2 * g.size)

    zero, inside = jnp.zeros((), jnp.int32), jnp.zeros_like(gradient_norm, bool)
    start = _CGState(jnp.zeros_like(g), g, -g, dot(g, g), zero, inside)
    p, *_, on_boundary = while_loop(unfinished, advance, start)
    # The prediction takes an explicit Hessian-vector product, because the recursive residual drifts
    # from the true residual.
    predicted = -(dot(g, p) + 0.5 * dot(p, times(p)))
    finite = jnp.isfinite(predicted) & jnp.all(jnp.isfinite(p))
    # Without a finite Hessian-vector product, take the steepest-descent step to the boundary.
    p, predicted = jnp.where(finite, p, -radius * g), jnp.where(finite, predicted, radius)
    # scale**2 may overflow or underflow.
    return scale * p, scale * (scale * predicted), on_boundary | ~finite
