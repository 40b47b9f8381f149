"""Spectral projected gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.solvers.smooth._descent import DescentState, LineSearchMethod, SearchLine, first_rate
from fnopt.solvers.smooth._method import Evaluation, SmoothObjective, dot


class projected_gradient(LineSearchMethod):
    r"""Projected gradients with spectral steps: for any convex set that can be projected on.

    .. math:: x^+ = x + \eta\, (P(x - \lambda g) - x), \qquad
              \lambda = \frac{s^T s}{s^T y}

    The set is given to :func:`fnopt.minimize` by its `projection`, or by `bounds`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def onto_disk(x): return x / jnp.maximum(1.0, jnp.linalg.norm(x))
        >>> f = lambda x: jnp.sum((x - 2) ** 2)
        >>> end = fnopt.minimize(f, jnp.zeros(2), projection=onto_disk)
        >>> print(end.params.round(3))
        [0.707 0.707]

    Reference:
        Birgin, Martínez and Raydan (2000), Nonmonotone spectral projected gradient methods on
        convex sets; here with a monotone line search.
    """

    takes_bounds = True
    takes_projection = True

    def empty(self, problem: SmoothObjective, point: Evaluation) -> jax.Array:
        """The step of length 1 down the gradient."""
        del problem
        return first_rate(point.gradient)

    def learned(self, memory: jax.Array, before: Evaluation, after: Evaluation) -> jax.Array:
        """The inverse of the curvature along the last step."""
        s, y = after.x - before.x, after.gradient - before.gradient
        sy, ss = dot(s, y), dot(s, s)
        usable = (sy > 0) & (ss > 0)
        rate = ss / jnp.where(usable, sy, jnp.ones_like(sy))
        # Down a slope that gets steeper: further than before.
        rate = jnp.where(usable, rate, 4 * memory)
        return jnp.where(jnp.isfinite(rate), jnp.clip(rate, 1e-20, 1e20), memory)

    def heading(
        self, problem: SmoothObjective, point: Evaluation, state: DescentState
    ) -> SearchLine:
        """To the projection of the spectral step."""
        target = problem.inside(point.x - state.memory * point.gradient)
        one = jnp.ones_like(point.value)
        return SearchLine(target, one, one)
