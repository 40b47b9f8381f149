"""Gauss-Newton with refused steps shortened."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import hyper
from fnopt.linear import DampedStep
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers._trust_region import FRACTION, RadiusRule, Trial, linear_step
from fnopt.solvers.linear_model._base import LinearModel
from fnopt.solvers.linear_model._linearization import Linearization


class gauss_newton(LeastSquaresMethod):
    r"""Gauss-Newton: the minimum of the linear model, or a part of the way there.

    .. math:: p = \arg\min_p \tfrac12 \|J p + r\|^2, \qquad u = t\, p

    The fraction `t` starts at `step_size`; it shrinks with every refused step, to the minimum of
    the parabola through what is known of the cost along `p` (at least to a half, at most to a
    tenth), and is 1 again after an accepted one. So the cost never rises, and the iteration always
    ends. Where the data don't determine all params the step of least norm is taken, in units of
    the Jacobian's columns.

    It is the plainest method and the quickest near a solution with small residuals. From far away,
    or where the Jacobian is nearly singular, :class:`fnopt.levenberg_marquardt` is more reliable.

    It is called as :class:`fnopt.levenberg_marquardt` is, and :func:`fnopt.least_squares` loops it
    to convergence.

    Args:
        ftol, xtol, gtol, jacobian, linear_solver, chunk_size, axis_name: As for all of the
            methods; see :class:`fnopt.solvers.LeastSquaresMethod`.
        step_size: The fraction of the first step, in (0, 1].

    Raises:
        ValueError: If a hyper-parameter is out of its range.

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

    rule: ClassVar[RadiusRule] = FRACTION

    def first_radius(self, scale: jax.Array, x: jax.Array, cost: jax.Array) -> jax.Array:
        """The radius of the first step, from the scaling, the params and their cost."""
        return jnp.full_like(cost, self.step_size)

    def propose(
        self,
        model: LinearModel,
        point: Linearization,
        scale: jax.Array,
        radius: jax.Array,
        lam: jax.Array,
    ) -> Trial:
        """A fraction of the full step."""
        full, t = model.system(point, scale, lam).gauss_newton(), radius
        # A fraction t of the step gains t (2 - t) as much.
        norm, predicted = jnp.square(t) * full.model_norm, t * (2 - t) * full.predicted
        return linear_step(point, scale, DampedStep(t * full.p, full.lam, norm, predicted))
