"""The evidence behind a claim: vanished columns, runaway params, level valleys, singular roots."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from fnopt.core import matmul, row_most, row_parts
from fnopt.linear import divide, norm
from fnopt.solvers.model._linearization import Linearization
from fnopt.solvers.model._scaling import initial_scale

_OUTWARD = 0.1  # of the way from the start, by which a claim is tested
_FAR = 100  # times its start; so far goes no param that ends at a minimum
HARDLY = 0.01  # of the residuals, that a param without effect may have moved
_ROUNDED = 32.0  # rounding units, of what the residuals are differences of
_GONE = 2  # power of the rounding unit: what is left of a param at a singular root
_LINEARLY = 1e-4, 0.5  # of the cost, between which each step to a singular root leaves of it
_VANISHED = 0.45  # power of the rounding unit: what is left of a column that counts no more
_CLEARLY = 1e-8  # of the cost, by which it rises beyond a minimum, if that is more than rounding
_NEAR = 0.25  # power of the rounding unit: the part of a param, by which it is moved on
_LITTLE = 1e-5  # of the residuals, what shows no minimum; in float32 the root of its unit
_SHRUNK = 0.1  # of its start: a param that is less has come near zero, and may end there
_STEEPER = 10.0  # times the slope at a minimum, a tenth of the way further


def vanished(point: Linearization, peak: jax.Array, start: jax.Array) -> jax.Array:
    """Which params have lost their effect on the way, as a mask of `[n]`.

    Args:
        point: The point.
        peak: The largest norms of the Jacobian's columns that were seen, of shape `[n]`.
        start: Where the search began, of shape `[n]`.
    """
    reach = jnp.maximum(jnp.abs(point.x - start), jnp.abs(point.x))
    return lost_effect(point.columns, peak, reach, jnp.sqrt(2 * point.cost))


def lost_effect(
    columns: jax.Array, peak: jax.Array, reach: jax.Array, residual: jax.Array
) -> jax.Array:
    """Which params have lost their effect, of one problem or of many.

    Nearly nothing is left of their columns, nor would the residuals know it if they went back, or
    changed by their own size: the column of a centre shrinks with the height of its peak, and means
    as much as before.

    Args:
        columns: The norms of the Jacobian's columns.
        peak: The largest of them that were seen.
        reach: How far the params have come, or how large they are if that is more.
        residual: The length of the residuals.
    """
    dtype = peak.dtype
    rest = columns <= jnp.asarray(float(jnp.finfo(dtype).eps) ** _VANISHED, dtype) * peak
    hardly = jnp.asarray(HARDLY, dtype) * residual
    return (peak > 0) & rest & (columns * reach <= hardly)


def outward(point: Linearization, lost: jax.Array, start: jax.Array) -> jax.Array:
    """The point with the params that lost their effect a tenth further than they have come.

    A column vanishes in passing or for good: at a minimum in which the
    params themselves have none, as that of :math:`x^2 + 5`, the cost rises beyond; on the way to
    a limit at infinity, or in saturation, nothing happens there. Much further on there may be a
    pole, behind which it rises as well, and which says nothing of the point.
    """
    tenth = jnp.asarray(_OUTWARD, start.dtype)
    return point.x + tenth * lost.astype(start.dtype) * (point.x - start)


def near(point: Linearization, away: jax.Array) -> jax.Array:
    """The point as far out as another, but by no more than a small part of what params are.

    Where steps were long a tenth of the way is many periods of a sine.
    """
    part = float(jnp.finfo(away.dtype).eps) ** _NEAR
    most = jnp.asarray(part, away.dtype) * jnp.abs(point.x)
    return point.x + jnp.clip(away - point.x, -most, most)


def has_moved(lost: jax.Array, x: jax.Array, start: jax.Array) -> jax.Array:
    """Whether params have lost their effect on their way."""
    return jnp.any(lost & (x != start))


def held_up(point: Linearization, away: jax.Array, gradient: jax.Array) -> jax.Array:
    """Which params the cost rises with on the way out, ever more steeply, as a mask of `[n]`.

    At a minimum some may have no effect while others are on their way to infinity; taken out
    together, the former would speak for the latter, whose slope only decays.

    Args:
        point: The point.
        away: The point further out.
        gradient: What the residuals of the point make of the Jacobian there.
    """
    steeper = jnp.abs(gradient) > jnp.asarray(_STEEPER, gradient.dtype) * jnp.abs(point.gradient)
    return (gradient * (away - point.x) > 0) & steeper


def rises(actual: jax.Array, cost: jax.Array) -> jax.Array:
    """Whether the cost rises clearly outward, so that a claim stands.

    Args:
        actual: By how much the cost falls outward.
        cost: The cost.
    """
    much = max(_ROUNDED * float(jnp.finfo(cost.dtype).eps), _CLEARLY)
    return actual < -jnp.asarray(much, cost.dtype) * cost


def ran_away(
    point: Linearization,
    start: jax.Array,
    scale: jax.Array,
    unseen: jax.Array,
    own: jax.Array | None,
) -> jax.Array:
    r"""Whether params went to infinity along directions that the data don't determine any more.

    .. math:: |x_j| > 100\, |x_{0,j}|, \quad |d_j| > \tfrac12 |x_j| \quad\text{and}\quad
        |x_j| < \max(0.01\, \|r\|, 32 \rho)\, \sqrt{(J^T J)^{-1}_{jj}}, \qquad
        d = D^{-1} V_0^T V_0 D (x - x_0)

    No column needs to vanish on such a way: the terms of a sum may cancel, so the other params
    count as free to follow, and of what cancels its rounding :math:`\rho` is left. Where the data
    never determined a direction, steps don't go along it.

    Args:
        point: The point.
        start: Where the search began, or all of its cost fell away, of shape `[n]`.
        scale: `D`.
        unseen: :math:`V_0`, orthonormal rows; zeros for directions that the data determine.
        own: The curvature of every param by itself, of shape `[n]`, if it was learned: what is held
            by that hasn't run away, however far it jumped.

    Returns:
        Whether any param did.
    """
    along = matmul(unseen.T, matmul(unseen, scale * (point.x - start))) / scale
    away = goes_far(point.x, start) & (jnp.abs(along) > jnp.abs(point.x) / 2)
    if own is not None:
        away &= own * jnp.square(point.x) <= jnp.square(_hardly(point))
    unseen_effect = jnp.maximum(_hardly(point), _rounding(point))
    return jnp.any(away & (_own_effects(point) <= unseen_effect))


def drift(point: Linearization, start: jax.Array, known: jax.Array, noise: jax.Array) -> jax.Array:
    r"""The step along a valley that params have come, as far as a param is large, of shape `[n]`.

    With the step :math:`v_j = C_j x_j / C_{jj}`, `C = (J^T J)^{-1}`, that changes a param by its
    own size while the others follow,

    .. math:: \|J v_j\| \le \max(10^{-5} \|r\|, \sqrt{\epsilon}\, \|r\|, \rho), \quad
        |v_j^T D^2 (x - x_0)| \ge \tfrac12 \|D v_j\|^2, \quad |x_j| \ge 0.1\, |x_{0,j}|

    or, in place of the second, a change of no more than :math:`\rho`, the rounding of the
    residuals. If its floor is level to second order, too, a minimum there can't be told from a
    slope to one far off, nor from infinity. It is another matter where the data never determined
    all params (two by their product). The step is zero where there is no such valley.

    Args:
        point: The point.
        start: Where the search began, or all of its cost fell away, of shape `[n]`.
        known: Whether the data determined all params anywhere on the way.
        noise: :math:`\rho`, the rounding of the residuals.
    """
    units, dtype = initial_scale(point.columns), point.x.dtype
    inverse = _inverse(point, units)
    whole = units * jnp.abs(point.x)
    directions = matmul(inverse.T, inverse)  # C, in units
    variances, squares = jnp.diagonal(directions), jnp.sum(jnp.square(directions), axis=0)
    went = jnp.abs(matmul(units * (point.x - start), directions)) * variances >= squares * whole / 2
    effects = divide(whole, norm(inverse, axis=0))
    part = max(_LITTLE, float(jnp.finfo(dtype).eps) ** 0.5)
    least = jnp.asarray(part, dtype) * jnp.sqrt(2 * point.cost)
    least = jnp.maximum(least, noise)
    went |= effects <= noise
    away = went & (effects <= least) & (start != 0) & (point.x != 0)
    away &= known & jnp.all(point.columns > 0)
    away &= jnp.abs(point.x) >= jnp.asarray(_SHRUNK, dtype) * jnp.abs(start)
    j = jnp.argmin(jnp.where(away, effects, jnp.full_like(effects, jnp.inf)))
    step = directions[j] * (units[j] * point.x[j] / variances[j]) / units
    known = jnp.any(away) & jnp.all(jnp.isfinite(step))
    return jnp.where(known, step, jnp.zeros_like(step))


def _own_effects(point: Linearization) -> jax.Array:
    """By how much the whole of a param moves the residuals, of shape `[n]`, if others follow."""
    units = initial_scale(point.columns)
    inverse = _inverse(point, units)
    effects = divide(units * jnp.abs(point.x), norm(inverse, axis=0))
    return jnp.where(jnp.isfinite(effects), effects, jnp.zeros_like(effects))


def _inverse(point: Linearization, units: jax.Array) -> jax.Array:
    """The inverse of the triangle of the Jacobian in units of the params."""
    assert point.triangle is not None
    L = point.triangle.L / units[:, None]
    return solve_triangular(L, jnp.eye(L.shape[0], dtype=L.dtype), lower=True)


def _hardly(point: Linearization) -> jax.Array:
    """What counts as no effect on the residuals."""
    return jnp.asarray(HARDLY, point.x.dtype) * jnp.sqrt(2 * point.cost)


def _rounding(point: Linearization) -> jax.Array:
    """What residuals may be off by, of which an effect that cancels in a sum leaves as much."""
    units = _ROUNDED * float(jnp.finfo(point.x.dtype).eps)
    return jnp.asarray(units, point.x.dtype) * norm(point.columns * point.x)


def went_far(point: Linearization, start: jax.Array) -> jax.Array:
    """Whether any param is a hundred times its start."""
    return jnp.any(goes_far(point.x, start))


def goes_far(x: jax.Array, start: jax.Array) -> jax.Array:
    """Which params are a hundred times their start; one that began at zero never is."""
    return (start != 0) & (jnp.abs(x) > jnp.asarray(_FAR, x.dtype) * jnp.abs(start))


def nears_singular_root(
    step: jax.Array, start: jax.Array, scale: jax.Array, before: jax.Array, after: jax.Array
) -> jax.Array:
    r"""Whether a full step is one of those that go on towards a singular root without end.

    .. math:: |p_j| \le \epsilon^2 |x_{0,j}| \quad\text{and}\quad
        10^{-4} f(x) \le f(x + p) \le \tfrac12 f(x)

    To the root of :math:`x^3` each step goes a part of the rest: it is never tiny against the
    params, only against where they came from. That alone says nothing: a start may be as far off
    as one likes, and the rest of the cost as small beside that of the start. So it has to be far
    less than the rounding of the start, and still linear convergence. A regular solution is
    found by then, and the cost falls faster or no more.

    Args:
        step: `p`.
        start: :math:`x_0`.
        scale: `D`.
        before: The cost before the step.
        after: The cost after it.
    """
    gone = jnp.asarray(float(jnp.finfo(step.dtype).eps) ** _GONE, step.dtype)
    least, most = (jnp.asarray(part, before.dtype) * before for part in _LINEARLY)
    # Strictly more than the least, which may underflow: a cost of zero is not approached linearly.
    return jnp.all(jnp.abs(step) <= gone * _sizes(start, scale)) & (after > least) & (after <= most)


def drowned(point: Linearization, start: jax.Array, scale: jax.Array) -> jax.Array:
    """Whether squares underflow at a point that is no root.

    Where residuals fell by the whole range of the dtype, that nothing is gained shows nothing. A
    root is where every param that moves them, by the rounding of its start, moves them by more
    than is left.

    Args:
        point: The point.
        start: Where the search began, of shape `[n]`.
        scale: `D`.
    """
    info = jnp.finfo(point.cost.dtype)
    eps = jnp.asarray(info.eps, point.cost.dtype)
    little = point.cost < jnp.asarray(float(info.tiny) / float(info.eps), point.cost.dtype)
    left = row_most(jnp.max(jnp.abs(point.r), initial=0))
    moves = left <= eps * point.columns * _sizes(start, scale)
    # Of a param: 0 if it moves nothing, 1 if its rounding moves more than is left, else 2.
    kinds = jnp.where(point.columns <= 0, 0, jnp.where(moves, 1, 2))
    return little & (left > 0) & (jnp.max(kinds, initial=0) != 1)


def fell_away(before: jax.Array, after: jax.Array) -> jax.Array:
    r"""Whether a step took away all of the cost but rounding, :math:`f_+ \le \epsilon^{3/2} f`.

    The data are far less than what the params began with, which is no measure of them any more.
    """
    return after <= jnp.asarray(float(jnp.finfo(after.dtype).eps) ** 1.5, after.dtype) * before


def fell_from_sight(
    point: Linearization, start: jax.Array, peak: jax.Array, rank: jax.Array
) -> jax.Array:
    r"""Whether a point that the data don't determine is far below the rounding of the start.

    .. math:: 0 < \|r\| \le \epsilon^2\, \|(d_j\, x_{0,j})_j\|, \qquad k < n

    Only params that became as small themselves leave so little of the residuals. If some of them
    cancel each other on the way, what is left is the rounding of these, and not that of the data.

    Args:
        point: The point.
        start: Where the search began, of shape `[n]`.
        peak: The largest norms of the Jacobian's columns that were seen, of shape `[n]`.
        rank: The rank of the Jacobian; negative where it isn't known.
    """
    eps = float(jnp.finfo(peak.dtype).eps)
    least = jnp.asarray(eps**_GONE, peak.dtype) * norm(peak * start)
    deficient = (rank >= 0) & (rank < min(point.x.size, point.r.size * row_parts()))
    return deficient & (jnp.sqrt(2 * point.cost) <= least) & (point.cost > 0)


def _sizes(start: jax.Array, scale: jax.Array) -> jax.Array:
    """How large params were; one that was zero, by what moves residuals as the others do."""
    return jnp.where(start == 0, divide(norm(scale * start), scale), jnp.abs(start))
