"""Second-order correction of a step: geodesic acceleration, and the best length along it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import matmul
from fnopt.linear import DampedStep, System, divide, length
from fnopt.sharding import psum_rows
from fnopt.solvers._trust_region import Trial, linear_step
from fnopt.solvers.linear_model._linearization import Linearization

# Of a step. As in line searches (Dennis and Schnabel 1983, section 6.3.2) a length below a third
# is left to the next radius, and extrapolation is at most by a factor of two.
_SHORTEST, _LONGEST = 0.3, 2.0


def accelerated(
    point: Linearization,
    system: System,
    scale: jax.Array,
    radius: jax.Array,
    curvature: Callable[[jax.Array], jax.Array],
    ratio: Any,
    step: DampedStep,
) -> Trial:
    r"""The step of the linear model, corrected to second order in its length and direction.

    With the second derivative :math:`r''_{vv}` of the residuals along the step `v` the cost along
    it is known to second order,

    .. math:: f(x + t v) \approx f + t\, g^T v + \tfrac12 t^2 C, \quad C = \|J v\|^2 + r^T r''_{vv},
        \quad t = -\frac{g^T v}{C}

    which Gauss-Newton takes with :math:`r^T r''_{vv} = 0`: it overshoots where residuals stay
    large. And along :math:`x + t v + \tfrac12 t^2 a` the residuals are straight to second order, in
    the damped least-squares sense, if

    .. math:: (J^T J + \lambda D^2)\, a = -J^T r''_{vv}

    The acceleration is left out where :math:`\|D a\| t > \alpha \|D v\|`, for there the path bends
    too much for the model to hold.

    Args:
        point: Where the step starts.
        system: The linear model there, in scaled variables.
        scale: The scaling `D`, of shape `[n]`.
        radius: The trust radius.
        curvature: `v -> r''_vv` at the point.
        ratio: The largest ratio :math:`\alpha`.
        step: The step of the linear model.

    Reference:
        Transtrum and Sethna (2012), Improvements to the Levenberg-Marquardt algorithm for
        nonlinear least-squares minimization, arXiv:1201.5885.
    """
    linear = linear_step(point, scale, step)
    bend = curvature(linear.step)
    rest = psum_rows(matmul(point.r, bend))
    t = _best_length(linear, rest + step.model_norm, radius)
    half = jnp.asarray(0.5, t.dtype)
    second = -t * linear.slope - half * t * t * (rest + step.model_norm)
    predicted = jnp.where(second > 0, second, linear.predicted)
    p, solution = t * step.p, system.pull_back(bend, step)
    if solution is not None:
        a = half * t * t * solution
        small = (
            2 * length(a) <= jnp.asarray(ratio, t.dtype) * t * linear.length
        )  # false if any of it is NaN
        p = p - jnp.where(small, a, jnp.zeros_like(a))
    v = p / scale
    return linear._replace(
        step=v, length=length(p), slope=matmul(point.gradient, v), predicted=predicted
    )


def _best_length(linear: Trial, curvature: jax.Array, radius: jax.Array) -> jax.Array:
    """The minimum of the second-order model along the step; 1 where it isn't finite.

    A damped step is at the edge of the region already, and only gets shorter.
    """
    one = jnp.ones_like(curvature)
    longest = jnp.asarray(_LONGEST, one.dtype)
    most = jnp.clip(divide(radius, linear.length), one, longest)
    most = jnp.where(linear.lam > 0, one, most)
    t = jnp.where(curvature > 0, divide(-linear.slope, curvature), most)
    t = jnp.clip(t, jnp.asarray(_SHORTEST, one.dtype), most)
    return jnp.where(jnp.isfinite(curvature), t, one)
