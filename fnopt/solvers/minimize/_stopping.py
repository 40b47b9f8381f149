"""The stopping tests of `minimize`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import divide
from fnopt.solvers.minimize._method import largest_param
from fnopt.solvers.minimize._problem import Evaluation

# L-BFGS-B's factr of 1e7 times the epsilon of float64: Byrd, Lu, Nocedal and Zhu (1995), SciPy.
_FTOL = 2.2e-9
# Tolerance of the relative gradient. For a curvature x^T H x = f, the value can still decrease by
# a relative (1e-2)^2 / 2. `least_squares` accepts a similar share, 1e-4.
OPTIMALITY = 1e-2


class MinimizeTolerances(NamedTuple):
    """Tolerances of the stopping tests."""

    ftol: jax.Array  # relative tolerance of the value
    xtol: jax.Array  # tolerance of a step, relative to the largest param
    gtol: jax.Array | None  # absolute tolerance of the gradient; None to skip this test


def tolerances(dtype: Any, ftol: Any, xtol: Any, gtol: Any) -> MinimizeTolerances:
    """Convert the tolerances to scalars of a dtype, with defaults for None."""
    eps = float(jnp.finfo(dtype).eps)

    def scalar(x: Any, default: float) -> jax.Array:
        return jnp.asarray(default if x is None else x, dtype)

    return MinimizeTolerances(
        # L-BFGS-B's smallest recommended factr, 10 ("extremely high accuracy").
        scalar(ftol, max(_FTOL, 10 * eps)),
        # Dennis and Schnabel (1983), section 7.2: two thirds of the digits.
        scalar(xtol, eps ** (2 / 3)),
        None if gtol is None else scalar(gtol, 0),
    )


def value_converged(decrease: jax.Array, predicted: jax.Array, small: jax.Array) -> jax.Array:
    r"""Whether the last change and the next predicted decrease of the value are negligible.

    .. math:: |\delta f| \le \epsilon_f F \quad\text{and}\quad
        \delta f_\text{predicted} \le \epsilon_f F, \qquad
        F = \max(|f|, \epsilon_f \min(|f_0|, 1))

    A value that tends to zero has converged when it is below :math:`\epsilon_f^2` times the value
    at the initial guess.

    Args:
        decrease: The decrease :math:`\delta f` by the last step, possibly negative.
        predicted: The predicted decrease by the next step.
        small: The largest negligible decrease, :math:`\epsilon_f F`.
    """
    return jnp.maximum(jnp.abs(decrease), predicted) <= small


def step_converged(last: jax.Array, step: jax.Array, x: jax.Array, xtol: jax.Array) -> jax.Array:
    r"""Whether the last and the next step are tiny: :math:`\|p\| \le \epsilon_x \|x\|`.

    Both norms are maximum norms.
    """
    longest = jnp.max(jnp.maximum(jnp.abs(last), jnp.abs(step)), initial=0)
    return longest <= xtol * largest_param(x)


def relative_gradient(point: Evaluation, gradient: jax.Array, typical: jax.Array) -> jax.Array:
    r"""Return the relative gradient, a measure of first-order optimality.

    .. math:: \max_i |g_i x_i| \,/ \max(|f|, \epsilon^{1/4} \min(|f_0|, 1))

    A relative rounding error :math:`\epsilon` of the value limits the relative gradient to about
    :math:`(\epsilon\, x^T H x / |f|)^{1/2}`. For a value that tends to zero, the denominator is
    :math:`\epsilon^{1/4}` times the value at the initial guess. In float64, the test can then be
    passed up to a curvature :math:`x^T H x` of about 1e4.

    Args:
        point: The point.
        gradient: The projected gradient, of shape `[n]`.
        typical: The typical magnitude of values, :math:`\min(|f_0|, 1)`.

    Reference:
        Dennis and Schnabel (1983), Numerical Methods for Unconstrained Optimization and Nonlinear
        Equations, eq. 7.2.5.
    """
    root = jnp.asarray(float(jnp.finfo(typical.dtype).eps) ** 0.25, typical.dtype)
    scale = jnp.maximum(jnp.abs(point.value), root * typical)
    return divide(jnp.max(jnp.abs(gradient * point.x), initial=0), scale)
