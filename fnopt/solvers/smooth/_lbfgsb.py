"""L-BFGS, and L-BFGS-B where there are bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import static
from fnopt.optimizers import inverse_product
from fnopt.solvers.smooth._compact import (
    CorrectionPairs,
    cauchy_point,
    compact,
    free_step,
    no_pairs,
    with_pair,
)
from fnopt.solvers.smooth._descent import (
    DescentState,
    LineSearchMethod,
    SearchLine,
    first_rate,
    line_of,
)
from fnopt.solvers.smooth._method import Evaluation, SmoothObjective, dot


class lbfgsb(LineSearchMethod):
    r"""L-BFGS, with bounds if there are any (L-BFGS-B).

    .. math:: x^+ = x + \eta (\bar x - x), \qquad \bar x \approx \arg\min_{l \le z \le u}\;
              g^T (z - x) + \tfrac12 (z - x)^T B (z - x)

    :math:`B` is the limited-memory BFGS matrix. Which params go to a bound is decided along the
    projected gradient (the generalised Cauchy point); the others are then minimised over, the
    result is projected, and :math:`\eta` comes from the line search of Moré and Thuente. Without
    bounds it is L-BFGS by the two-loop recursion.

    Args:
        memory_size: How many differences of params and gradients are remembered.

    Raises:
        ValueError: If `memory_size` is below 1.
        TypeError: If it is no whole number.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> f = lambda x: jnp.sum((x - jnp.asarray([1.0, -1.0])) ** 2)
        >>> end = fnopt.minimize(f, jnp.ones(2), method=fnopt.lbfgsb(5), bounds=(0.0, 2.0))
        >>> print(end.params)
        [1. 0.]

    Reference:
        Byrd, Lu, Nocedal and Zhu (1995), A limited memory algorithm for bound constrained
        optimization; Morales and Nocedal (2011), Remark on Algorithm 778; Moré and Thuente (1994),
        Line search algorithms with guaranteed sufficient decrease.
    """

    memory_size: int = static(default=10, least=1)

    takes_bounds = True
    # A first step of length 1 and a first curvature of 1 need fewer evaluations than those that the
    # start gives: 1.04 of SciPy's and 1.00 with bounds, instead of 1.14 and 1.16.
    trusts_units = True

    def empty(self, problem: SmoothObjective, point: Evaluation) -> CorrectionPairs:
        """No pairs."""
        del problem
        return no_pairs(self.memory_size, point.x)

    def learned(
        self, memory: CorrectionPairs, before: Evaluation, after: Evaluation
    ) -> CorrectionPairs:
        """The pairs with the newest one, if its curvature is positive."""
        return with_pair(memory, after.x - before.x, after.gradient - before.gradient)

    def heading(
        self, problem: SmoothObjective, point: Evaluation, state: DescentState
    ) -> SearchLine:
        """The minimum of the model within the bounds."""
        pairs = state.memory
        if problem.box is None:
            order = jnp.arange(self.memory_size, dtype=jnp.int32)
            gamma = 1 / pairs.theta
            step = inverse_product(point.gradient, pairs.S, pairs.Y, pairs.rho, gamma, order)
            return line_of(point, step, state.fresh)
        box, B = problem.box, compact(pairs)
        one = jnp.ones_like(point.value)
        far = jnp.asarray(jnp.inf, one.dtype)
        cauchy = cauchy_point(B, box, point)
        r = point.gradient + B.times(cauchy.x - point.x)
        step = free_step(B, cauchy.free, r)
        target = box.nearest(cauchy.x + step)
        downhill = dot(point.gradient, target - point.x) < 0
        short = cauchy.x + _within(cauchy.x, step, box.lower, box.upper) * step
        target = jnp.where(downhill, target, box.nearest(short))
        target = jnp.where(jnp.all(jnp.isfinite(target)), target, cauchy.x)
        # Between bounds on all sides the model's first target is a step of a sensible length.
        boxed = jnp.all(jnp.isfinite(box.lower) & jnp.isfinite(box.upper))
        rate = jnp.minimum(first_rate(target - point.x, point), one)
        rate = jnp.where(state.fresh & ~boxed, rate, one)
        longest = _within(point.x, target - point.x, box.lower, box.upper, far)
        return SearchLine(target, rate, jnp.where(state.fresh, one, jnp.maximum(one, longest)))


def _within(
    x: jax.Array, d: jax.Array, lower: jax.Array, upper: jax.Array, most: jax.Array | float = 1.0
) -> jax.Array:
    """The largest part of a step, up to `most`, that stays within the bounds."""
    room = jnp.where(d > 0, upper - x, lower - x)
    part = jnp.where(d != 0, room / jnp.where(d != 0, d, jnp.ones_like(d)), jnp.inf)
    return jnp.clip(jnp.min(part, initial=jnp.inf), 0, most)
