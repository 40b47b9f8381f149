"""BFGS with the whole inverse Hessian."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.solvers.smooth._descent import DescentState, LineSearchMethod, SearchLine, line_of
from fnopt.solvers.smooth._method import Evaluation, SmoothObjective, dot, secant_pair


class InverseHessian(NamedTuple):
    """The approximate inverse Hessian."""

    H: jax.Array  # [n, n]
    learned: jax.Array  # whether there was a pair


class bfgs(LineSearchMethod):
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

    def empty(self, problem: SmoothObjective, point: Evaluation) -> InverseHessian:
        """The identity."""
        del problem
        return InverseHessian(jnp.eye(point.x.size, dtype=point.x.dtype), jnp.zeros((), bool))

    def learned(
        self, memory: InverseHessian, before: Evaluation, after: Evaluation
    ) -> InverseHessian:
        """The update by a pair, if its curvature is positive."""
        s, y, sy, steep, usable = secant_pair(after.x - before.x, after.gradient - before.gradient)
        rho = 1 / jnp.where(usable, sy, jnp.ones_like(sy))
        # The first pair gives the scale of the diagonal that the update starts from.
        gamma = 1 / (rho * jnp.where(usable, jnp.square(steep), jnp.ones_like(sy)))
        H = jnp.where(memory.learned, memory.H, gamma * memory.H)
        Hy = jnp.matmul(H, y, precision=lax.Precision.HIGHEST)
        # The product (I - rho s y^T) H (I - rho y s^T) multiplied out: it stays exactly symmetric.
        weight = rho * (1 + rho * dot(y, Hy))
        H = H - rho * (jnp.outer(s, Hy) + jnp.outer(Hy, s)) + weight * jnp.outer(s, s)
        usable = usable & jnp.all(jnp.isfinite(H))
        return InverseHessian(jnp.where(usable, H, memory.H), memory.learned | usable)

    def heading(
        self, problem: SmoothObjective, point: Evaluation, state: DescentState
    ) -> SearchLine:
        """The quasi-Newton step."""
        H = state.memory.H
        step = jnp.matmul(H, point.gradient, precision=lax.Precision.HIGHEST)
        return line_of(point, step, state.fresh)
