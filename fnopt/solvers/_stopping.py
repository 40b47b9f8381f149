"""The stopping tests of a least-squares loop, and the one bound on rounding that they share.

A point may also stand for many problems, which then lie along the last axis of all of its arrays.
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

# Of the cost: a change of the params by 1e-5 sqrt(m - n) standard errors (see SHARE).
_SHARP = 1e-10


class Tolerances(NamedTuple):
    """The hyper-parameters of a method, in the dtype of the computation."""

    ftol: jax.Array
    xtol: jax.Array
    gtol: jax.Array
    eps: jax.Array  # rounding unit of the params

    @property
    def share(self) -> jax.Array:
        """What a converged point may leave of the cost, by the first-order model."""
        return jnp.maximum(jnp.asarray(SHARE, self.ftol.dtype), jnp.maximum(self.ftol, self.xtol))


def default_tolerances(eps: float) -> tuple[float, float, float]:
    r"""`ftol`, `xtol` and `gtol` for params with the rounding unit `eps`.

    The predicted decrease has twice the digits of the cost, so `ftol` can be below `eps`.
    """
    return min(eps, max(_SHARP, eps**2)), 4 * eps, eps


def first_of(*cases: tuple[jax.Array, Status]) -> jax.Array:
    """The status of the first case that holds, `RUNNING` if none does."""
    status = Status.RUNNING.array
    for holds, case in reversed(cases):
        status = jnp.where(holds, case.array, status)
    return status


def cost_rounding(point: Linearization, eps: jax.Array) -> jax.Array:
    r"""Bound on what rounding does to a difference of costs.

    .. math:: \delta f = 4 \epsilon f + \rho \|r\| / \sqrt m

    The sum of squares itself, and the residuals, whose errors have random signs.
    """
    return _rounding(point, eps)[1]


def _rounding(point: Linearization, eps: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""The bounds for the length of the residuals and for a difference of costs.

    .. math:: \rho = \epsilon\, \max(1, n / m)\, \| (\|J_j\| x_j)_j \|

    A residual is a difference of terms as large as :math:`J_j x_j`, each rounded once; with more
    params than residuals it is a sum of `n / m` times as many (Higham 2002, section 3.1).
    """
    m = max(len(point.r) * row_shards(), 1)
    more, root = (jnp.asarray(a, eps.dtype) for a in (max(1.0, len(point.x) / m), m**0.5))
    rho = eps * more * length(point.columns * point.x)
    return rho, 4 * eps * point.cost + rho * jnp.sqrt(2 * point.cost) / root


def slopes(point: Linearization) -> jax.Array:
    r"""The gradient by every column's length, :math:`|J_j^T r| / \|J_j\|`, of shape `[n]`.

    Each is the length of what that parameter alone could take off the residuals. MINPACK's gnorm is
    their largest, over :math:`\|r\|`.
    """
    return divide(jnp.abs(point.gradient), point.columns)


def within_range(point: Linearization) -> jax.Array:
    r"""The length of the residuals within the range of the Jacobian, :math:`\|P r\|`.

    Of models without a triangle the largest slope, which is a lower bound.
    """
    if point.triangle is None:
        return jnp.max(slopes(point), axis=0, initial=0)
    return length(point.triangle.c)


def is_nearer(after: Linearization, before: Linearization) -> jax.Array:
    r"""Whether the residual norm within the range of the Jacobian is at least halved.

    This decides about a step whose cost is flat to rounding. At rounding level the norm itself has
    hardly a digit; a Gauss-Newton step that converges leaves far less than half of it.

    Reference:
        Hager and Zhang (2005), A new conjugate gradient method with guaranteed descent and an
        efficient line search, section 2 (approximate Wolfe conditions).
    """
    return 2 * within_range(after) <= within_range(before)


def is_stationary(point: Linearization, gtol: jax.Array) -> jax.Array:
    """Whether no residual is left, or it is at right angles to every column (MINPACK's gtol)."""
    steep = jnp.max(slopes(point), axis=0, initial=0)
    return (point.cost <= 0) | (steep <= gtol * jnp.sqrt(2 * point.cost))


def negligible_decrease(point: Linearization, tolerances: Tolerances) -> jax.Array:
    r"""Largest predicted decrease that is accepted at convergence.

    A share of the cost, or what rounding makes of it and, for each parameter, of one component of
    the residuals, :math:`\delta f + \tfrac12 n \rho^2`.
    """
    rho, noise = _rounding(point, tolerances.eps)
    noise += jnp.asarray(len(point.x) / 2, rho.dtype) * jnp.square(rho)
    return jnp.maximum(tolerances.share * point.cost, noise)


def is_flat(point: Linearization, tolerances: Tolerances) -> jax.Array:
    r"""Whether no single parameter could lower the cost by more than a negligible decrease."""
    alone = jnp.square(jnp.max(slopes(point), axis=0, initial=0)) / 2
    return alone <= negligible_decrease(point, tolerances)


def cost_converged(step: StepEvaluation, cost: jax.Array, ftol: jax.Array) -> jax.Array:
    r"""Whether the model promises, and the step gained, next to nothing (MINPACK's ftol).

    .. math:: \delta f_\text{predicted} \le \epsilon_f f \quad\text{and}\quad
        |\delta f| \le \max(\epsilon_f f, \text{noise})

    The prediction is exact to rounding, so it is what is tested sharply; the actual reduction is a
    difference of nearly equal numbers and only has to be as small as its noise allows.
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
    r"""The status after a step, `RUNNING` where no stopping test holds.

    A step is tiny against the params if :math:`\|D p\| \le \epsilon_x \|D x\|` (MINPACK's xtol).

    Args:
        reached: Where the search is after the step.
        before: Where the step started.
        step: The step.
        scale: The scaling, of shape `[n]`.
        tolerances: The numbers of the method.
    """
    is_minimum = is_flat(reached, tolerances)
    exhausted = step.flat & ~step.accepted
    small = exhausted | cost_converged(step, before.cost, tolerances.ftol)
    tiny = step.trial.length <= tolerances.xtol * length(scale * before.x)
    newton = (step.trial.lam <= 0) & step.accepted
    # The radius shrinks at least by half with every refusal: so often, until steps that were longer
    # than the params by 1 / eps are as short as rounding.
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
    """The status; `ILL_POSED` where every column of the Jacobian is zero, and residuals are not.

    Such a point is stationary, but because the residuals are constant, or saturated, or the loss
    counts all of them as outliers, or no residual counts.

    Args:
        status: The status by the tests of convergence.
        moved: Whether any param moves any residual that counts.
        cost: The cost.
        counted: Number of residuals that count.

    Returns:
        The status, of the same shape.
    """
    nothing = ~moved & ((cost > 0) | (counted <= 0))
    return jnp.where(is_converged(status) & nothing, Status.ILL_POSED.array, status)
