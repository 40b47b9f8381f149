"""Newton's method with products of the Hessian, in a trust region."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import while_loop
from fnopt.residuals import hessian_product
from fnopt.solvers.smooth._method import (
    AGAIN,
    FAILED,
    MOVED,
    Answer,
    Evaluation,
    MinimizeMethod,
    SmoothObjective,
    StepPlan,
    dot,
    length,
)


class TrustRegion(NamedTuple):
    """The radius, and what the model says of the step under way."""

    radius: jax.Array
    predicted: jax.Array
    step_length: jax.Array  # the length of the step
    first: jax.Array  # the value at the start of all
    refused: jax.Array  # whether a longer step from here was refused

    def at_the_edge(self) -> jax.Array:
        """Whether the region ends the step under way."""
        return self.step_length >= 0.9 * self.radius


class newton_cg(MinimizeMethod):
    r"""Newton's method by conjugate gradients in a trust region (Steihaug).

    .. math:: \min_p\; g^T p + \tfrac12 p^T H p \quad\text{subject to}\quad \|p\| \le \Delta

    The Hessian is never formed: a step takes some products of it with vectors, each at the cost of
    about two gradients. Directions of negative curvature are followed to the edge of the region.
    `nfev` counts evaluations, not these products.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> end = fnopt.minimize(lambda x: jnp.sum((x - 1) ** 4), jnp.zeros(2), method="newton_cg")
        >>> bool(end.converged)
        True

    Reference:
        Steihaug (1983), The conjugate gradient method and trust regions in large scale
        optimization; Nocedal and Wright (2006), Numerical Optimization, algorithms 4.1 and 7.2.
    """

    def begin(self, problem: SmoothObjective, point: Evaluation) -> TrustRegion:
        """A region of radius 1, in units of the params."""
        del problem
        zero, one = jnp.zeros_like(point.value), jnp.ones_like(point.value)
        return TrustRegion(one, zero, zero, point.value, jnp.zeros((), bool))

    def plan(self, problem: SmoothObjective, point: Evaluation, state: TrustRegion) -> StepPlan:
        """The step that minimises the model in the region."""
        step, predicted = steihaug(problem, point, state.radius)
        state = state._replace(predicted=predicted, step_length=length(step))
        # What a step gains that the region cut short says nothing of what there is to gain.
        predicted = jnp.where(state.at_the_edge(), jnp.inf, predicted)
        return StepPlan(point.x + step, predicted, step, state)

    def respond(
        self, problem: SmoothObjective, point: Evaluation, state: TrustRegion, there: Evaluation
    ) -> Answer:
        """Accepts a step that gains a part of what was predicted, and changes the radius."""
        finite = there.is_finite()
        actual = jnp.where(finite, point.value - there.value, -jnp.inf).astype(state.radius.dtype)
        # What rounding adds to the difference, so that its sign doesn't refuse the last steps.
        noise = 10 * jnp.finfo(there.value.dtype).eps * jnp.abs(point.value)
        noise = noise.astype(actual.dtype)
        certain = state.predicted > 0
        safe = jnp.where(certain, state.predicted, jnp.ones_like(actual))
        ratio = jnp.where(certain, (actual + noise) / (safe + noise), -jnp.inf)
        # What passes as rounding may raise the value a little in every step, but never above the
        # first one.
        kept = finite & (ratio > 1e-4) & (there.value <= state.first)
        flatter = length(there.gradient) < length(point.gradient)
        kept = kept & ((actual > 0) | flatter)
        edge = state.at_the_edge()
        # A shorter step shows no more where rounding hides it, in the value or in the params; a
        # longer one may.
        hidden = ~kept & finite & (state.predicted <= noise)
        farther = hidden & edge & certain & ~state.refused
        longer = farther | (kept & (ratio > 0.75) & edge)
        shorter = ~kept | (ratio < 0.25)
        radius = jnp.where(shorter, 0.25 * state.step_length, state.radius)
        radius = jnp.where(longer, 2 * state.radius, radius)
        nowhere = hidden | jnp.all(there.x == point.x) | ~certain
        dead = ~kept & nowhere & ~farther
        verdict = jnp.where(kept, MOVED, jnp.where(dead, FAILED, AGAIN)).astype(jnp.int32)
        refused = ~kept & (state.refused | ~farther)
        return Answer(verdict, there.x, there, state._replace(radius=radius, refused=refused))


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
    """The step in a region, by conjugate gradients, and by how much the model falls.

    Args:
        problem: The problem.
        point: Where the step starts.
        radius: The radius of the region.

    Returns:
        The step, and the predicted decrease.
    """
    g = point.gradient
    times = hessian_product(problem.f, point.x)
    size = length(g)
    # Eisenstat and Walker: few products far from the minimum, superlinear steps near it.
    enough = jnp.minimum(jnp.asarray(0.5, size.dtype), jnp.sqrt(size)) * size
    most = 2 * g.size + 10

    def step(state: _Inner) -> _Inner:
        p, r, d, rr, count, _ = state
        Hd = times(d)
        curvature = dot(d, Hd)
        down = curvature > 0
        alpha = rr / jnp.where(down, curvature, jnp.ones_like(curvature))
        ahead = p + alpha * d
        leaves = ~down | (length(ahead) >= radius) | ~jnp.all(jnp.isfinite(ahead))
        p = jnp.where(leaves, p + _to_the_edge(p, d, radius) * d, ahead)
        r = jnp.where(leaves, r, r + alpha * Hd)
        new = dot(r, r)
        d = -r + new / jnp.where(rr > 0, rr, jnp.ones_like(rr)) * d
        return _Inner(p, r, d, new, count + 1, leaves | (jnp.sqrt(new) <= enough))

    def unfinished(state: _Inner) -> jax.Array:
        return ~state.done & (state.count < most)

    zero = jnp.zeros_like(g)
    start = _Inner(zero, g, -g, dot(g, g), jnp.zeros((), jnp.int32), size <= 0)
    p = while_loop(unfinished, step, start).p
    # By a product of its own: the residual of the recursion drifts away from the true one.
    predicted = -(dot(g, p) + 0.5 * dot(p, times(p)))
    usable = jnp.isfinite(predicted) & jnp.all(jnp.isfinite(p))
    return jnp.where(usable, p, zero), jnp.where(usable, predicted, jnp.zeros_like(predicted))


def _to_the_edge(p: jax.Array, d: jax.Array, radius: jax.Array) -> jax.Array:
    """The step along `d` from inside of the region to its edge."""
    a, b, c = dot(d, d), dot(p, d), dot(p, p) - jnp.square(radius)
    root = jnp.sqrt(jnp.maximum(jnp.square(b) - a * c, 0))
    # Whichever of the two forms of the root doesn't cancel.
    positive = b > 0
    over = jnp.where(positive, -c, root - b)
    under = jnp.where(positive, b + root, a)
    return over / jnp.where(under > 0, under, jnp.ones_like(under))
