"""Powell's dogleg: a trust region without a secular equation."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.core import hyper
from fnopt.linear import dogleg_step
from fnopt.residuals import FlatResidual
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers.convergence._options import Options
from fnopt.solvers.model._linearization import Linearization
from fnopt.solvers.trust_region._step import Trial, TrustRegionState, straight


class dogleg(LeastSquaresMethod):
    r"""Powell's dogleg in a scaled trust region.

    The step is the point on the path from 0 by the Cauchy step (the minimum of the linear model
    along the gradient) to the Gauss-Newton step that lies farthest along it within
    :math:`\|D u\| \le \Delta`. It needs one factorisation a step; those of
    :class:`fnopt.levenberg_marquardt` may need a few, but lower the model more.

    It is called as :class:`fnopt.levenberg_marquardt` is, and :func:`fnopt.least_squares` loops it
    to convergence.

    Args:
        ftol, xtol, gtol, jacobian, linear_solver, chunk_size, axis_name: As for all of the
            methods; see :class:`fnopt.solvers.LeastSquaresMethod`.
        radius: The first trust radius, in units of :math:`\|D x\|`.

    Raises:
        ValueError: If a hyper-parameter is out of its range.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> from fnopt.solvers import dogleg
        >>> solution = fnopt.least_squares(lambda x: x**2 - 2, jnp.asarray([1.0]), solver=dogleg())
        >>> print(solution.params)
        [1.4142135]

    Reference:
        Powell (1970), A hybrid method for nonlinear equations; Nocedal and Wright (2006),
        Numerical Optimization, section 4.1.
    """

    radius: float | jax.Array = hyper(default=0.6, gt=0, infinite=True)

    def options(self, params: Any, dtype: Any) -> Options:
        """The hyper-parameters in the dtype that is computed in, with the defaults filled in."""
        return super().options(params, dtype).with_radius(self.radius)

    def propose(
        self,
        flat: FlatResidual,
        point: Linearization,
        factors: Any,
        search: TrustRegionState,
        options: Options,
    ) -> Trial:
        """The step along the dogleg path."""
        del options
        system = self.system(flat, point, factors, search)
        step = dogleg_step(system, point.gradient / search.scale, search.radius)
        return straight(point, search, step)
