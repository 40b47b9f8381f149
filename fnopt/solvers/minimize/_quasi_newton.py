"""Quasi-Newton methods: BFGS with the whole inverse Hessian, and L-BFGS(-B)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import matmul, static
from fnopt.optimizers import inverse_product
from fnopt.solvers.minimize._compact import (
    CorrectionPairs,
    cauchy_point,
    compact,
    free_step,
    no_pairs,
    with_pair,
)
from fnopt.solvers.minimize._method import (
    Direction,
    MinimizeMethod,
    dot,
    first_step,
    newton_like,
    secant_pair,
)
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


class bfgs(MinimizeMethod):
    r"""BFGS: gradients times an inverse Hessian that is learned from their changes.

    .. math:: H^+ = (I - \rho\, s y^T)\, H\, (I - \rho\, y s^T) + \rho\, s s^T, \qquad
              \rho = 1 / s^T y

    It remembers all of the curvature, in a matrix of the number of params squared: for up to some
    thousands of them.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> end = fnopt.minimize(lambda x: jnp.sum((x - 1) ** 4), jnp.zeros(2), method="bfgs")
        >>> bool(end.converged)
        True

    Reference:
        Nocedal and Wright (2006), Numerical Optimization, section 6.1.
    """

    def begin(self, problem: SmoothObjective, point: Evaluation) -> jax.Array:
        """A multiple of the identity."""
        return first_step(point) * jnp.eye(point.x.size, dtype=point.x.dtype)

    def learn(
        self, memory: jax.Array, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> jax.Array:
        """The update by a pair, if its curvature is positive."""
        s, y, sy, yy, usable = secant_pair(before, after)
        # The first pair gives the scale of the matrix: Nocedal and Wright, eq. 6.20.
        scale = jnp.eye(s.size, dtype=s.dtype) / jnp.where(yy > 0, yy, jnp.ones_like(yy))
        H = jnp.where(fresh, scale, memory)
        Hy = matmul(H, y)
        # (I - rho s y^T) H (I - rho y s^T) multiplied out, which stays exactly symmetric.
        weight = (1 + dot(y, Hy) / sy) / sy
        H = H - (jnp.outer(s, Hy) + jnp.outer(Hy, s)) / sy + weight * jnp.outer(s, s)
        return jnp.where(usable & jnp.all(jnp.isfinite(H)), H, memory)

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: jax.Array, fresh: jax.Array
    ) -> tuple[Direction, jax.Array]:
        """The quasi-Newton step."""
        return newton_like(point, -matmul(memory, point.gradient), ~fresh), memory


class lbfgsb(MinimizeMethod):
    r"""L-BFGS, with bounds if there are any (L-BFGS-B).

    .. math:: x^+ = x + \eta (\bar x - x), \qquad \bar x \approx \arg\min_{l \le z \le u}\;
              g^T (z - x) + \tfrac12 (z - x)^T B (z - x)

    :math:`B` is the limited-memory BFGS matrix. Which params go to a bound is decided along the
    projected gradient (the generalised Cauchy point). The model is then minimized over the others,
    the result is projected, and a line search finds :math:`\eta`. Without bounds it is L-BFGS by
    the two-loop recursion.

    Args:
        memory_size: How many differences of params and gradients are remembered.

    Raises:
        ValueError: If `memory_size` is below 1.
        TypeError: If it isn't an integer.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> f = lambda x: jnp.sum((x - jnp.asarray([1.0, -1.0])) ** 2)
        >>> end = fnopt.minimize(f, jnp.ones(2), method=fnopt.lbfgsb(5), bounds=(0.0, 2.0))
        >>> print(end.params)
        [1. 0.]

    Reference:
        Byrd, Lu, Nocedal and Zhu (1995), A limited memory algorithm for bound constrained
        optimization; Morales and Nocedal (2011), Remark on Algorithm 778.
    """

    memory_size: int = static(default=10, least=1)

    takes_bounds = True

    def begin(self, problem: SmoothObjective, point: Evaluation) -> CorrectionPairs:
        """No pairs."""
        return no_pairs(self.memory_size, point.x, 1 / first_step(point))

    def learn(
        self, memory: CorrectionPairs, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> CorrectionPairs:
        """The pairs with the newest one, if its curvature is positive."""
        return with_pair(memory, secant_pair(before, after))

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: CorrectionPairs, fresh: jax.Array
    ) -> tuple[Direction, CorrectionPairs]:
        """The step to the minimum of the model within the bounds."""
        if problem.box is None:
            order = jnp.arange(self.memory_size, dtype=jnp.int32)
            gamma = 1 / memory.theta
            step = inverse_product(point.gradient, memory.S, memory.Y, memory.rho, gamma, order)
            return newton_like(point, -step, ~fresh), memory
        box, B = problem.box, compact(memory)
        cauchy, free = cauchy_point(B, box, point)
        step = free_step(B, free, point.gradient + B.times(cauchy - point.x))
        target = box.nearest(cauchy + step)
        # Morales and Nocedal: where the projected step leads uphill, the step is cut instead.
        downhill = dot(point.gradient, target - point.x) < 0
        inside = jnp.minimum(_largest_part(box.lower, box.upper, cauchy, step), 1)
        target = jnp.where(downhill, target, box.nearest(cauchy + inside * step))
        target = jnp.where(jnp.all(jnp.isfinite(target)), target, cauchy)
        step = target - point.x
        direction = newton_like(point, step, ~fresh)
        longest = _largest_part(box.lower, box.upper, point.x, step)
        return direction._replace(longest=jnp.maximum(longest, 1)), memory


def _largest_part(lower: jax.Array, upper: jax.Array, x: jax.Array, d: jax.Array) -> jax.Array:
    """The largest part of a step that stays within the bounds."""
    room = jnp.where(d > 0, upper - x, lower - x)
    part = jnp.where(d != 0, room / jnp.where(d != 0, d, jnp.ones_like(d)), jnp.inf)
    return jnp.maximum(jnp.min(part, initial=jnp.inf), 0)
