"""The Gauss-Newton method with backtracking."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import hyper
from fnopt.linear import DampedStep
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers._trust_region import BACKTRACKING, RadiusRule, Trial, linear_step
from fnopt.solvers.linear_model._base import LinearModel
from fnopt.solvers.linear_model._linearization import Linearization


class gauss_newton(LeastSquaresMethod):
    r"""Gauss-Newton with step sizes by backtracking.

    .. math:: p = \arg\min_p \tfrac12 \|J p + r\|^2, \qquad u = t\, p

    The step size `t` starts at `step_size`. A rejected step multiplies `t` by a factor between 0.1
    and 0.5, which minimizes a parabola that interpolates the cost along `p`. An accepted step
    resets `t` to 1. Therefore the cost never increases, and the iteration always ends. If the data
    don't determine all params, `p` is the minimum-norm step, in params scaled by the norms of the
    Jacobian's columns.

    Gauss-Newton is the simplest method and the fastest near a solution with small residuals. Far
    from a solution, or if the Jacobian is nearly singular, :class:`fnopt.levenberg_marquardt` is
    more reliable.

    `gauss_newton` has the interface of :class:`fnopt.levenberg_marquardt`;
    :func:`fnopt.least_squares` runs the method to convergence.

    Args:
        ftol, xtol, gtol, jacobian, linear_solver, chunk_size, axis_name: As in
            :class:`fnopt.solvers.LeastSquaresMethod`.
        step_size: The initial step size `t`, in (0, 1].

    Raises:
        ValueError: If a hyper-parameter is out of range.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> from fnopt.solvers import gauss_newton
        >>> solution = fnopt.least_squares(
        ...     lambda x: x**2 - 2, jnp.asarray([1.0]), solver=gauss_newton()
        ... )
        >>> print(solution.params, int(solution.steps))
        [1.4142135] 5

    Reference:
        Nocedal and Wright (2006), Numerical Optimization, section 10.3.
    """

    step_size: float | jax.Array = hyper(default=1.0, gt=0, le=1)

    rule: ClassVar[RadiusRule] = BACKTRACKING

    def first_radius(self, scale: jax.Array, x: jax.Array, cost: jax.Array) -> jax.Array:
        """Return the initial step size."""
        return jnp.full_like(cost, self.step_size)

    def propose(
        self,
        model: LinearModel,
        point: Linearization,
        scale: jax.Array,
        radius: jax.Array,
        lam: jax.Array,
    ) -> Trial:
        """Return the Gauss-Newton step times the step size."""
        full, t = model.system(point, scale, lam).gauss_newton(), radius
        # A step size of t decreases the model by t (2 - t) times the decrease of the full step.
        norm, predicted = jnp.square(t) * full.model_norm, t * (2 - t) * full.predicted
        return linear_step(point, scale, DampedStep(t * full.p, full.lam, norm, predicted))
