"""The spectral projected-gradient method, for bounds and for convex sets with a projection."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import static
from fnopt.solvers.minimize._method import (
    Direction,
    MinimizeMethod,
    WolfeConditions,
    dot,
    first_step_size,
    newton_like,
)
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective


class SpectralMemory(NamedTuple):
    """The spectral step size, and the values at the last iterates."""

    rate: jax.Array  # inverse of the curvature along the last step
    values: jax.Array  # [memory_size]


class projected_gradient(MinimizeMethod):
    r"""Spectral projected gradients, for any convex set with a projection.

    .. math:: x^+ = x + \eta\, d, \qquad d = P(x - \lambda g) - x, \qquad
              \lambda = \frac{s^T s}{s^T y}

    where a backtracking line search chooses :math:`\eta \le 1` such that
    :math:`f(x^+) \le \max_{j < M} f(x_{-j}) + 10^{-4}\, \eta\, g^T d`. The line search is
    nonmonotone: a new value only has to be lower than the largest of the last :math:`M` values.
    Therefore spectral steps may increase the value, and converge far faster than steepest descent.

    Pass the set to :func:`fnopt.minimize` as `projection` or as `bounds`.

    Args:
        memory_size: The number :math:`M` of stored values; 1 makes the line search monotone.

    Raises:
        ValueError: If `memory_size` is below 1.
        TypeError: If `memory_size` isn't an integer.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def onto_disk(x): return x / jnp.maximum(1.0, jnp.linalg.norm(x))
        >>> f = lambda x: jnp.sum((x - 2) ** 2)
        >>> end = fnopt.minimize(f, jnp.zeros(2), projection=onto_disk)
        >>> print(end.params.round(3))
        [0.707 0.707]

    Reference:
        Birgin, Martínez and Raydan (2000), Nonmonotone spectral projected gradient methods on
        convex sets.
    """

    # Birgin, Martínez and Raydan (2000), section 4: M = 10.
    memory_size: int = static(default=10, least=1)

    takes_bounds = True
    takes_projection = True
    monotone = False
    wolfe = WolfeConditions(curvature=float("inf"))  # a sufficient decrease is enough

    def begin(self, problem: SmoothObjective, point: Evaluation) -> SpectralMemory:
        """Return the step size of the first steepest-descent step, and `M` copies of the value."""
        return SpectralMemory(first_step_size(point), jnp.full(self.memory_size, point.value))

    def learn(
        self, memory: SpectralMemory, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> SpectralMemory:
        """Update the spectral step size with the last secant pair."""
        s, y = after.x - before.x, after.gradient - before.gradient
        sy, ss = dot(s, y), dot(s, s)
        convex = (sy > 0) & (ss > 0)
        rate = ss / jnp.where(convex, sy, jnp.ones_like(sy))
        # Without positive curvature the step size grows; Birgin et al. use 1e30.
        rate = jnp.where(convex & jnp.isfinite(rate), rate, 4 * memory.rate)
        values = jnp.concatenate([memory.values[1:], after.value[None]])
        return SpectralMemory(rate, values)

    def reference(self, memory: SpectralMemory, point: Evaluation) -> jax.Array:
        """Return the largest of the last values."""
        return jnp.max(memory.values)

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: SpectralMemory, fresh: jax.Array
    ) -> tuple[Direction, SpectralMemory]:
        """Return the direction to the projection of a spectral step."""
        step = problem.project(point.x - memory.rate * point.gradient) - point.x
        return newton_like(point, step, ~fresh)._replace(longest=jnp.ones_like(point.value)), memory
