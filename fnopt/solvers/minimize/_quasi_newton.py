"""Quasi-Newton methods: BFGS with a dense inverse Hessian, and L-BFGS(-B)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import static
from fnopt.numerics import matmul, nonzero
from fnopt.optimizers import inverse_product
from fnopt.solvers.minimize._compact import (
    CorrectionPairs,
    add_pair,
    cauchy_point,
    compact_form,
    empty_pairs,
    free_step,
)
from fnopt.solvers.minimize._method import (
    Direction,
    MinimizeMethod,
    dot,
    first_step_size,
    newton_like,
    secant_pair,
)
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


class bfgs(MinimizeMethod):
    r"""BFGS with a dense approximation of the inverse Hessian.

    .. math:: H^+ = (I - \rho\, s y^T)\, H\, (I - \rho\, y s^T) + \rho\, s s^T, \qquad
              \rho = 1 / s^T y

    The matrix has `n^2` entries for `n` params, so use BFGS for at most a few thousand params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> end = fnopt.minimize(lambda x: jnp.sum((x - 1) ** 4), jnp.zeros(2), method="bfgs")
        >>> bool(end.converged)
        True

    Reference:
        Nocedal and Wright (2006), Numerical Optimization, section 6.1.
    """

    def begin(self, problem: SmoothObjective, point: Evaluation) -> jax.Array:
        """Return a multiple of the identity as the initial inverse Hessian."""
        return first_step_size(point) * jnp.eye(point.x.size, dtype=point.x.dtype)

    def learn(
        self, memory: jax.Array, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> jax.Array:
        """Update the inverse Hessian with a secant pair, if its curvature is positive."""
        s, y, sy, yy, usable = secant_pair(before, after)
        # The first secant pair sets the scale of the matrix: Nocedal and Wright, eq. 6.20.
        initial = jnp.eye(s.size, dtype=s.dtype) / nonzero(yy)
        H = jnp.where(fresh, initial, memory)
        Hy = matmul(H, y)
        # (I - rho s y^T) H (I - rho y s^T) is multiplied out, so that H stays exactly symmetric.
        weight = (1 + dot(y, Hy) / sy) / sy
        H = H - (jnp.outer(s, Hy) + jnp.outer(Hy, s)) / sy + weight * jnp.outer(s, s)
        # A pair without positive curvature, or whose update overflows, is skipped.
        return jnp.where(usable & jnp.all(jnp.isfinite(H)), H, memory)

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: jax.Array, fresh: jax.Array
    ) -> tuple[Direction, jax.Array]:
        """Return the quasi-Newton direction."""
        return newton_like(point, -matmul(memory, point.gradient), ~fresh), memory


class lbfgsb(MinimizeMethod):
    r"""Limited-memory BFGS: L-BFGS-B with bounds, L-BFGS without.

    .. math:: x^+ = x + \eta (\bar x - x), \qquad \bar x \approx \arg\min_{l \le z \le u}\;
              g^T (z - x) + \tfrac12 (z - x)^T B (z - x)

    :math:`B` is the limited-memory BFGS matrix. The generalized Cauchy point determines the active
    set. Then the model is minimized over the free params, the result is projected, and a line
    search chooses :math:`\eta`. Without bounds the method is L-BFGS by the two-loop recursion.

    Args:
        memory_size: The number of stored correction pairs (differences of params and gradients).

    Raises:
        ValueError: If `memory_size` is below 1.
        TypeError: If `memory_size` isn't an integer.

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

    # Nocedal and Wright (2006), section 7.2: 3 to 20 pairs are enough.
    memory_size: int = static(default=10, least=1)

    takes_bounds = True

    def begin(self, problem: SmoothObjective, point: Evaluation) -> CorrectionPairs:
        """Return an empty memory, whose curvature gives the first steepest-descent step."""
        return empty_pairs(self.memory_size, point.x, 1 / first_step_size(point))

    def learn(
        self, memory: CorrectionPairs, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> CorrectionPairs:
        """Add the newest correction pair, if its curvature is positive."""
        return add_pair(memory, secant_pair(before, after))

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: CorrectionPairs, fresh: jax.Array
    ) -> tuple[Direction, CorrectionPairs]:
        """Return the direction to the minimizer of the model within the bounds."""
        if problem.box is None:
            order = jnp.arange(self.memory_size, dtype=jnp.int32)
            gamma = 1 / memory.theta
            step = inverse_product(point.gradient, memory.S, memory.Y, memory.rho, gamma, order)
            return newton_like(point, -step, ~fresh), memory
        box, B = problem.box, compact_form(memory)
        cauchy, free = cauchy_point(B, box, point)
        step = free_step(B, free, point.gradient + B.times(cauchy - point.x))
        target = box.nearest(cauchy + step)
        # Morales and Nocedal: if the projected step isn't a descent direction, truncate the step.
        downhill = dot(point.gradient, target - point.x) < 0
        feasible = jnp.minimum(_largest_step_size(box.lower, box.upper, cauchy, step), 1)
        target = jnp.where(downhill, target, box.nearest(cauchy + feasible * step))
        # If the reduced system is singular, the step ends at the Cauchy point.
        target = jnp.where(jnp.all(jnp.isfinite(target)), target, cauchy)
        step = target - point.x
        direction = newton_like(point, step, ~fresh)
        longest = _largest_step_size(box.lower, box.upper, point.x, step)
        # The full step is feasible; rounding must not make its step size smaller than 1.
        return direction._replace(longest=jnp.maximum(longest, 1)), memory


def _largest_step_size(lower: jax.Array, upper: jax.Array, x: jax.Array, d: jax.Array) -> jax.Array:
    """Return the largest step size along `d` that satisfies the bounds."""
    distance = jnp.where(d > 0, upper - x, lower - x)
    step_sizes = jnp.where(d != 0, distance / jnp.where(d != 0, d, jnp.ones_like(d)), jnp.inf)
    return jnp.maximum(jnp.min(step_sizes, initial=jnp.inf), 0)
