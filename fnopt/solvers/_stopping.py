"""The stopping tests of a least-squares loop, and the bounds on rounding errors.

The arrays of a point may also have a last axis of many problems.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Status, is_converged
from fnopt.linear import divide, length
from fnopt.sharding import row_shards
from fnopt.solvers._trust_region import SHARE, StepEvaluation
from fnopt.solvers.linear_model._linearization import Linearization

# Relative decrease of the cost. 1e-10 changes the params by 1e-5 sqrt(m - n) standard errors (see
# SHARE).
_SHARP = 1e-10
# Hager and Zhang (2005), section 2: 1 - 2 delta with their delta = 0.1. With 0.5, a search that
# converges linearly, as for large residuals, ends early: `dogleg` in float32 then solves 46 of 54
# NIST fits instead of 52, and reports convergence falsely for 6.
_LESS = 0.8


class Tolerances(NamedTuple):
    """The tolerances of a method, in the dtype of the computation."""

    ftol: jax.Array
    xtol: jax.Array
    gtol: jax.Array
    eps: jax.Array  # machine epsilon of the params

    @property
    def share(self) -> jax.Array:
        """Largest predicted decrease, relative to the cost, at a converged point."""
        return jnp.maximum(jnp.asarray(SHARE, self.ftol.dtype), jnp.maximum(self.ftol, self.xtol))


def default_tolerances(eps: float) -> tuple[float, float, float]:
    r"""Return `ftol`, `xtol` and `gtol` for params with the machine epsilon `eps`.

    The predicted decrease has twice the digits of the cost, so `ftol` can be below `eps`.
    """
    return min(eps, max(_SHARP, eps**2)), 4 * eps, eps


def first_of(*cases: tuple[jax.Array, Status]) -> jax.Array:
    """Return the status of the first case that holds, or `RUNNING`."""
    status = Status.RUNNING.array
    for holds, case in reversed(cases):
        status = jnp.where(holds, case.array, status)
    return status


def cost_rounding(point: Linearization, eps: jax.Array) -> jax.Array:
    r"""Return a bound on the rounding error of a difference of costs.

    .. math:: \delta f = 4 \epsilon f + \rho \|r\| / \sqrt m

    The first term is due to the sum of squares, the second to the residuals, whose rounding errors
    have random signs.
    """
    return _rounding(point, eps)[1]


def _rounding(point: Linearization, eps: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Return bounds on the rounding errors of the residual norm and of a difference of costs.

    .. math:: \rho = \epsilon\, \max(1, n / m)\, \| (\|J_j\| x_j)_j \|

    A residual is a difference of terms as large as :math:`J_j x_j`, each rounded once. With more
    params than residuals, a residual is a sum of `n / m` times as many terms (Higham 2002, section
    3.1).
    """
    m = max(len(point.r) * row_shards(), 1)
    more, root = (jnp.asarray(a, eps.dtype) for a in (max(1.0, len(point.x) / m), m**0.5))
    rho = eps * more * length(point.columns * point.x)
    return rho, 4 * eps * point.cost + rho * jnp.sqrt(2 * point.cost) / root


def slopes(point: Linearization) -> jax.Array:
    r"""Return the scaled gradient, :math:`|J_j^T r| / \|J_j\|`, of shape `[n]`.

    Each entry is the norm of the component of the residuals that a single param could remove, to
    first order. MINPACK's gnorm is the largest entry divided by :math:`\|r\|`.
    """
    return divide(jnp.abs(point.gradient), point.columns)


def within_range(point: Linearization) -> jax.Array:
    r"""Return the norm of the residuals projected onto the Jacobian's range, :math:`\|P r\|`.

    For models without a triangular factor, return the largest entry of `slopes`, a lower bound.
    """
    if point.triangle is None:
        return jnp.max(slopes(point), axis=0, initial=0)
    return length(point.triangle.c)


def is_nearer(after: Linearization, before: Linearization) -> jax.Array:
    r"""Whether the norm of the residuals' projection onto the Jacobian's range clearly decreases.

    This test decides whether to accept a step that changes the cost only at rounding level. Near
    such a step, hardly any digit of the norm is correct.

    Reference:
        Hager and Zhang (2005), A new conjugate gradient method with guaranteed descent and an
        efficient line search, section 2 (approximate Wolfe conditions).
    """
    return within_range(after) <= jnp.asarray(_LESS, after.cost.dtype) * within_range(before)


def is_stationary(point: Linearization, gtol: jax.Array) -> jax.Array:
    """Whether the residual is zero, or orthogonal to every column within gtol, as in MINPACK."""
    steep = jnp.max(slopes(point), axis=0, initial=0)
    return (point.cost <= 0) | (steep <= gtol * jnp.sqrt(2 * point.cost))


def negligible_decrease(point: Linearization, tolerances: Tolerances) -> jax.Array:
    r"""Return the largest predicted decrease that is accepted at convergence.

    The decrease is a share of the cost, or the rounding error of the cost plus the rounding error
    of one residual component for each param, :math:`\delta f + \tfrac12 n \rho^2`.
    """
    rho, noise = _rounding(point, tolerances.eps)
    noise += jnp.asarray(len(point.x) / 2, rho.dtype) * jnp.square(rho)
    return jnp.maximum(tolerances.share * point.cost, noise)


def is_flat(point: Linearization, tolerances: Tolerances) -> jax.Array:
    r"""Whether no single parameter could lower the cost by more than a negligible decrease."""
    alone = jnp.square(jnp.max(slopes(point), axis=0, initial=0)) / 2
    return alone <= negligible_decrease(point, tolerances)


def cost_converged(step: StepEvaluation, cost: jax.Array, ftol: jax.Array) -> jax.Array:
    r"""Whether predicted and actual reduction are both negligible (MINPACK's ftol).

    .. math:: \delta f_\text{predicted} \le \epsilon_f f \quad\text{and}\quad
        |\delta f| \le \max(\epsilon_f f, \text{noise})

    The predicted reduction is exact to rounding error, so its test is strict. The actual reduction
    is a difference of nearly equal numbers, so its tolerance is at least its rounding error.
    """
    small = ftol * cost
    return (step.trial.predicted <= small) & (
        jnp.abs(step.actual) <= jnp.maximum(small, step.noise)
    )


def stopping_status(
    reached: Linearization,
    before: Linearization,
    step: StepEvaluation,
    scale: jax.Array,
    tolerances: Tolerances,
) -> jax.Array:
    r"""Return the status after a step, `RUNNING` if no stopping test holds.

    The params have converged if a step has :math:`\|D p\| \le \epsilon_x \|D x\|` (MINPACK's xtol).

    Args:
        reached: The linearization at the iterate after the step.
        before: The linearization at the iterate before the step.
        step: The step.
        scale: The scaling, of shape `[n]`.
        tolerances: The tolerances of the method.
    """
    is_minimum = is_flat(reached, tolerances)
    exhausted = step.within_noise & ~step.accepted
    small = exhausted | cost_converged(step, before.cost, tolerances.ftol)
    tiny = step.trial.length <= tolerances.xtol * length(scale * before.x)
    # An accepted step without damping is a Newton step: a tiny one shows convergence.
    newton = (step.trial.lam <= 0) & step.accepted
    # Every rejection at least halves the radius. After this many, steps that were 1 / eps times as
    # long as the params are as short as their rounding error.
    most = 2 * int(-np.log2(float(jnp.finfo(step.actual.dtype).eps)))
    refused = ~step.accepted & (step.rejections >= most)
    stuck = tiny | refused | (exhausted & step.interior)
    return first_of(
        (is_stationary(reached, tolerances.gtol), Status.CONVERGED_GRADIENT),
        (small & is_minimum, Status.CONVERGED_COST),
        (tiny & (is_minimum | newton), Status.CONVERGED_STEP),
        (stuck & ~jnp.isfinite(step.actual), Status.NONFINITE_STEP),
        (stuck, Status.STALLED),
    )


def checked_status(
    status: jax.Array, moved: jax.Array, cost: jax.Array, counted: int | jax.Array = 1
) -> jax.Array:
    """Return the status; `ILL_POSED` for a zero Jacobian and nonzero residuals.

    Such a point is stationary only because the residuals are constant or saturated, the loss treats
    all residuals as outliers, or all weights are zero.

    Args:
        status: The status by the convergence tests.
        moved: Whether any Jacobian column is nonzero.
        cost: The cost.
        counted: Number of residuals with nonzero weight.

    Returns:
        The status, of the same shape.
    """
    nothing = ~moved & ((cost > 0) | (counted <= 0))
    return jnp.where(is_converged(status) & nothing, Status.ILL_POSED.array, status)
