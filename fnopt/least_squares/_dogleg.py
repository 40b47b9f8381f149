"""Powell's dogleg: a trust region without a secular equation."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.core import hyper
from fnopt.least_squares._method import LeastSquaresMethod
from fnopt.least_squares._options import Options
from fnopt.least_squares._point import Point
from fnopt.least_squares._step import Search, Trial, straight
from fnopt.linear import dogleg_step
from fnopt.residuals import FlatResidual


class dogleg(LeastSquaresMethod):
    r"""Powell's dogleg in a scaled trust region.

    The step is the point on the path from 0 by the Cauchy step (the minimum of the linear model
    along the gradient) to the Gauss-Newton step that lies farthest along it within
    :math:`\|D u\| \le \Delta`. It needs one factorisation a step; those of
    :class:`fnopt.levenberg_marquardt` may need a few, but lower the model more.

    Its `update` ignores the gradients that it is given (they may be `None`) and needs the
    residuals instead: `update(None, state, params, residual_fn=fn)`.
    :func:`fnopt.least_squares` loops it to convergence.

    Args:
        ftol: Relative tolerance of the cost; by default the rounding unit of the params' dtype.
        xtol: Relative tolerance of the params; by default 4 rounding units.
        gtol: Tolerance of the cosine between the residual and the Jacobian's columns; by default
            the rounding unit.
        jacobian: `'forward'`, `'reverse'`, or `'auto'` for the cheaper one.
        linear_solver: `'svd'`, `'cholesky'`, `'cg'`, or `'auto'`, which goes by shape.
        chunk_size: How many tangents or cotangents are pushed at once; by default all up to
            256, else 64.
        radius: The first trust radius, in units of :math:`\|D x\|`.

    Raises:
        ValueError: If a hyper-parameter is out of its range.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> from fnopt.least_squares import dogleg
        >>> solution = fnopt.least_squares(lambda x: x**2 - 2, jnp.asarray([1.0]), solver=dogleg())
        >>> print(solution.params)
        [1.4142135]

    Reference:
        Powell (1970), A hybrid method for nonlinear equations; Nocedal and Wright (2006),
        Numerical Optimization, section 4.1.
    """

    radius: float | jax.Array = hyper(default=0.6, gt=0)

    def options(self, params: Any, dtype: Any) -> Options:
        """The hyper-parameters in the dtype that is computed in, with the defaults filled in."""
        return super().options(params, dtype).with_reach(self.radius)

    def propose(
        self, flat: FlatResidual, point: Point, factors: Any, search: Search, options: Options
    ) -> Trial:
        """The step along the dogleg path."""
        del options
        system = self.model(flat).system(point, factors, search.scale, search.lam)
        step = dogleg_step(system, point.gradient / search.scale, search.radius)
        return straight(point, search, step)
