"""The stopping tests of `minimize`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import divide
from fnopt.solvers.minimize._method import largest
from fnopt.solvers.minimize._problem import Evaluation

# L-BFGS-B's factr of 1e7, in float64: Byrd, Lu, Nocedal and Zhu (1995), and SciPy.
_FTOL = 2.2e-9
# Tolerance of the relative gradient. If the curvature is as large as the value, x^T H x = f, the
# remaining decrease is half of 1e-4 times the value, the share that `least_squares` accepts.
OPTIMALITY = 1e-2


class MinimizeTolerances(NamedTuple):
    """Tolerances of the stopping tests."""

    ftol: jax.Array  # tolerance of the value
    xtol: jax.Array  # tolerance of the largest param
    gtol: jax.Array | None  # tolerance of the gradient; None if none was given


def tolerances(dtype: Any, ftol: Any, xtol: Any, gtol: Any) -> MinimizeTolerances:
    """Return the tolerances as arrays, with defaults for None."""
    eps = float(jnp.finfo(dtype).eps)

    def number(x: Any, default: float) -> jax.Array:
        return jnp.asarray(default if x is None else x, dtype)

    return MinimizeTolerances(
        number(ftol, max(_FTOL, 10 * eps)),
        # Dennis and Schnabel (1983), section 7.2: two thirds of the digits.
        number(xtol, eps ** (2 / 3)),
        None if gtol is None else number(gtol, 0),
    )


def value_converged(gained: jax.Array, predicted: jax.Array, small: jax.Array) -> jax.Array:
    r"""Whether the last change and the next predicted decrease of the value are negligible.

    .. math:: |\delta f| \le \epsilon_f F \quad\text{and}\quad
        \delta f_\text{predicted} \le \epsilon_f F, \qquad
        F = \max(|f|, \epsilon_f \min(|f_0|, 1))

    A value that tends to zero has converged when it is below :math:`\epsilon_f^2` times the value
    at the initial guess.

    Args:
        gained: The decrease by the last step.
        predicted: The predicted decrease by the next step.
        small: :math:`\epsilon_f F`.
    """
    return jnp.maximum(jnp.abs(gained), predicted) <= small


def step_converged(last: jax.Array, step: jax.Array, x: jax.Array, xtol: jax.Array) -> jax.Array:
    r"""Whether the last and the next step are tiny: :math:`\|p\| \le \epsilon_x \|x\|`.

    Both norms are maximum norms.
    """
    longest = jnp.max(jnp.maximum(jnp.abs(last), jnp.abs(step)), initial=0)
    return longest <= xtol * largest(x)


def relative_gradient(point: Evaluation, pull: jax.Array, typical: jax.Array) -> jax.Array:
    r"""Return the relative gradient, a measure of first-order optimality.

    .. math:: \max_i |g_i x_i| \,/ \max(|f|, \epsilon^{1/4} \min(|f_0|, 1))

    A relative rounding error :math:`\epsilon` of values limits the relative gradient to
    :math:`\sqrt\epsilon` times the root of the curvature :math:`x^T H x`. For a value that tends to
    zero, the denominator is :math:`\epsilon^{1/4}` times the value at the initial guess, which
    allows for a curvature of 1e4.

    Args:
        point: The point.
        pull: The projected gradient, of shape `[n]`.
        typical: :math:`\min(|f_0|, 1)`.

    Reference:
        Dennis and Schnabel (1983), Numerical Methods for Unconstrained Optimization and Nonlinear
        Equations, eq. 7.2.5.
    """
    part = jnp.asarray(float(jnp.finfo(typical.dtype).eps) ** 0.25, typical.dtype)
    scale = jnp.maximum(jnp.abs(point.value), part * typical)
    return divide(jnp.max(jnp.abs(pull * point.x), initial=0), scale)
