"""The stopping tests of `minimize`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import divide
from fnopt.solvers.minimize._method import largest, rounding_of
from fnopt.solvers.minimize._problem import Evaluation

# L-BFGS-B's factr of 1e7, in float64: Byrd, Lu, Nocedal and Zhu (1995), and SciPy.
_FTOL = 2.2e-9
# Of the relative gradient. Where the curvature is as large as the value, x^T H x = f, this leaves a
# decrease by half of 1e-4 of the value, the share that `least_squares` accepts.
_OPTIMALITY = 1e-2


class MinimizeTolerances(NamedTuple):
    """Numbers to stop at."""

    ftol: jax.Array  # of the value
    xtol: jax.Array  # of the largest param
    gtol: jax.Array | None  # of the gradient; None if none was given
    optimality: jax.Array  # of the relative gradient


def tolerances(dtype: Any, ftol: Any, xtol: Any, gtol: Any) -> MinimizeTolerances:
    """The tolerances as arrays, with the defaults filled in."""
    eps = float(jnp.finfo(dtype).eps)

    def number(x: Any, default: float) -> jax.Array:
        return jnp.asarray(default if x is None else x, dtype)

    return MinimizeTolerances(
        number(ftol, max(_FTOL, 10 * eps)),
        # Dennis and Schnabel (1983), section 7.2: two thirds of the digits.
        number(xtol, eps ** (2 / 3)),
        None if gtol is None else number(gtol, 0),
        number(None, _OPTIMALITY),
    )


def value_converged(gained: jax.Array, predicted: jax.Array, small: jax.Array) -> jax.Array:
    r"""Whether the last step changed, and the next one promises, next to nothing of the value.

    .. math:: |\delta f| \le \epsilon_f F \quad\text{and}\quad
        \delta f_\text{predicted} \le \epsilon_f F, \qquad
        F = \max(|f|, \epsilon_f \min(|f_0|, 1))

    A value that falls to zero has converged where it is less than :math:`\epsilon_f^2` of that of
    the start.

    Args:
        gained: The decrease by the last step.
        predicted: That of the next one by the model.
        small: :math:`\epsilon_f F`.
    """
    return jnp.maximum(jnp.abs(gained), predicted) <= small


def is_rounding(steep: jax.Array, value: jax.Array) -> jax.Array:
    r"""Whether a gradient is zero at the rounding level of the value.

    .. math:: \|g\|_\infty \|x\|_\infty \le \sqrt{8 \epsilon}\, |f|

    Where the curvature is as large as the value, :math:`x^T H x = f`, a step from there decreases
    the value by at most half of its rounding error.
    """
    return steep <= jnp.sqrt(rounding_of(jnp.ones_like(value))) * jnp.abs(value)


def step_converged(last: jax.Array, step: jax.Array, x: jax.Array, xtol: jax.Array) -> jax.Array:
    r"""Whether the last step and the next are tiny: :math:`\|p\| \le \epsilon_x \|x\|`.

    Both in the maximum norm.
    """
    longest = jnp.max(jnp.maximum(jnp.abs(last), jnp.abs(step)), initial=0)
    return longest <= xtol * largest(x)


def relative_gradient(point: Evaluation, pull: jax.Array, typical: jax.Array) -> jax.Array:
    r"""First-order optimality: the relative change of the value by relative changes of params.

    .. math:: \max_i |g_i x_i| \,/ \max(|f|, \epsilon^{1/4} \min(|f_0|, 1))

    Rounding of values by :math:`\epsilon` of a typical one hides :math:`\sqrt\epsilon` of the
    gradient, times the root of a curvature :math:`x^T H x`. A value that falls to zero is compared
    with :math:`\epsilon^{1/4}` of that of the start, which allows for a curvature of 1e4.

    Args:
        point: The point.
        pull: The gradient within the feasible set, of shape `[n]`.
        typical: :math:`\min(|f_0|, 1)`.

    Reference:
        Dennis and Schnabel (1983), Numerical Methods for Unconstrained Optimization and Nonlinear
        Equations, eq. 7.2.5.
    """
    part = jnp.asarray(float(jnp.finfo(typical.dtype).eps) ** 0.25, typical.dtype)
    scale = jnp.maximum(jnp.abs(point.value), part * typical)
    return divide(jnp.max(jnp.abs(pull * point.x), initial=0), scale)
