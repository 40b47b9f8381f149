"""The model of L-BFGS-B: the compact BFGS matrix, and the generalized Cauchy point."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.numerics import matmul
from fnopt.residuals import Box
from fnopt.solvers.minimize._method import SecantPair
from fnopt.solvers.minimize._problem import Evaluation


class CorrectionPairs(NamedTuple):
    """Differences of points and of gradients, the oldest first, divided by the step length.

    Therefore the rows of `S` have length 1 and the rows of `Y` are curvatures, independent of the
    scale of the problem. Unused rows are zero.
    """

    S: jax.Array  # [m, n]
    Y: jax.Array  # [m, n]
    rho: jax.Array  # [m], 1 / s^T y; 0 for an empty row
    theta: jax.Array  # the curvature in directions without a correction pair


def no_pairs(m: int, x: jax.Array, theta: jax.Array) -> CorrectionPairs:
    """Return an empty memory, with an initial curvature."""
    rows = jnp.zeros((m, x.size), x.dtype)
    return CorrectionPairs(rows, rows, jnp.zeros(m, x.dtype), theta)


def with_pair(pairs: CorrectionPairs, new: SecantPair) -> CorrectionPairs:
    """Replace the oldest correction pair by a new pair with positive curvature."""

    def pushed(rows: jax.Array, row: jax.Array) -> jax.Array:
        return jnp.where(new.usable, jnp.concatenate([rows[1:], row[None]]), rows)

    theta = jnp.where(new.usable, new.yy, pairs.theta)
    S, Y, rho = pushed(pairs.S, new.s), pushed(pairs.Y, new.y), pushed(pairs.rho, 1 / new.sy)
    return CorrectionPairs(S, Y, rho, theta)


class CompactMatrix(NamedTuple):
    r"""The matrix :math:`B = \theta I - W M^{-1} W^T`."""

    W: jax.Array  # [n, 2 m]
    M: jax.Array  # [2 m, 2 m]
    theta: jax.Array

    def solved(self, v: jax.Array) -> jax.Array:
        """Return the inverse of M times vectors, `[..., 2 m]`."""
        return jnp.linalg.solve(self.M, v[..., None])[..., 0]

    def times(self, v: jax.Array) -> jax.Array:
        """Return the matrix times a vector."""
        inside = self.solved(matmul(self.W.T, v))
        return self.theta * v - matmul(self.W, inside)


def compact(pairs: CorrectionPairs) -> CompactMatrix:
    r"""Return the compact form of the BFGS matrix.

    .. math:: W = [Y^T \;\; \theta S^T], \qquad
              M = \begin{pmatrix} -D & L^T \\ L & \theta S S^T \end{pmatrix}

    with the diagonal :math:`D` and the strictly lower triangle :math:`L` of :math:`S Y^T`. Rows
    and columns are scaled so that entries of :math:`M` are of order 1; unused rows have a 1 on the
    diagonal of :math:`M` and zeros in :math:`W`.
    """
    S, Y, theta = pairs.S, pairs.Y, pairs.theta
    root = jnp.sqrt(theta)
    SY, SS = matmul(S, Y.T) / theta, matmul(S, S.T)
    empty = (pairs.rho == 0).astype(S.dtype)
    D = jnp.diagonal(SY) + empty
    L = jnp.tril(SY, -1)
    d = jnp.sqrt(D)
    # The first half is scaled by 1 / sqrt(D), because after poor steps s^T y is far smaller than
    # theta.
    L = L / d
    top = jnp.concatenate([-jnp.eye(d.size, dtype=S.dtype), L.T], axis=1)
    bottom = jnp.concatenate([L, SS + jnp.diag(empty)], axis=1)
    W = jnp.concatenate([Y.T / (root * d), root * S.T], axis=1)
    return CompactMatrix(W, jnp.concatenate([top, bottom]), theta)


def free_step(B: CompactMatrix, free: jax.Array, r: jax.Array) -> jax.Array:
    r"""Return the step of the free params to the minimum of the model.

    .. math:: d = -B_{FF}^{-1} r_F = -\tfrac1\theta r_F - \tfrac{1}{\theta^2} W_F
              \left( M - \tfrac1\theta W_F^T W_F \right)^{-1} W_F^T r_F

    Args:
        B: The compact BFGS matrix.
        free: Mask of the free params, `[n]`.
        r: The gradient of the model, of shape `[n]`.

    Returns:
        The step of shape `[n]`, zero for the params that aren't free.
    """
    mask = free.astype(r.dtype)
    W, r = B.W * mask[:, None], r * mask
    # Sherman-Morrison-Woodbury: a system of 2 m unknowns instead of one for all free params.
    K = B.M - matmul(W.T, W) / B.theta
    inside = jnp.linalg.solve(K, matmul(W.T, r)[:, None])[:, 0]
    return -(r + matmul(W, inside) / B.theta) / B.theta


def cauchy_point(B: CompactMatrix, box: Box, point: Evaluation) -> tuple[jax.Array, jax.Array]:
    r"""Find the first local minimum of the model along :math:`P(x - t g)`.

    .. math:: m'_k = -\|d_k\|^2 + \theta\, t_k \|d_k\|^2 - p_k^T M^{-1} c_k, \qquad
              m''_k = \theta \|d_k\|^2 - p_k^T M^{-1} p_k

    On the piece between the breakpoints :math:`t_k` and :math:`t_{k+1}`, where :math:`d_k` is the
    descent direction of the params not yet on a bound, :math:`p_k = W^T d_k`, and :math:`c_k = W^T
    (x(t_k) - x)`. One pass over the sorted breakpoints evaluates all pieces, with sums from the
    last breakpoint to avoid cancellation.

    Args:
        B: The compact BFGS matrix.
        box: The bounds.
        point: The evaluation at the current iterate.

    Returns:
        The Cauchy point, and the mask of the params that aren't on a bound at this point.
    """
    x, g = point.x, point.gradient
    t, d = _breakpoints(box, x, g)
    order = jnp.argsort(t)
    t_sorted, d_sorted, W = t[order], d[order], B.W[order]
    zero = jnp.zeros((1,), t.dtype)
    start = jnp.concatenate([zero, t_sorted])  # [n + 1], the start of each piece
    end = jnp.concatenate([t_sorted, jnp.full((1,), jnp.inf, t.dtype)])
    moving = W * d_sorted[:, None]
    square = _from_the_end(jnp.square(d_sorted))
    p = _from_the_end(moving)
    stopped = jnp.where(jnp.isfinite(t_sorted), t_sorted, 0)[:, None] * moving
    still = jnp.concatenate([jnp.zeros_like(stopped[:1]), jnp.cumsum(stopped, axis=0)])
    # The product inf * 0 would be NaN for params that don't move.
    finite_start = jnp.where(jnp.isfinite(start), start, 0)
    c = still + finite_start[:, None] * p
    inside = B.solved(jnp.stack([p, c]))
    slope = -square + B.theta * finite_start * square - jnp.sum(p * inside[1], axis=1)
    curvature = B.theta * square - jnp.sum(p * inside[0], axis=1)
    least = jnp.asarray(jnp.finfo(t.dtype).eps, t.dtype) * B.theta * square
    # Rounding errors must not make the curvature zero or negative.
    curvature = jnp.maximum(curvature, least)
    going = (slope < 0) & (square > 0)
    forward = jnp.where(going, -slope / jnp.where(going, curvature, jnp.ones_like(slope)), 0)
    best = finite_start + forward
    ends_here = ~going | (best <= end)
    at = best[jnp.argmax(ends_here)]
    arrived = t <= at
    bound = jnp.where(d > 0, box.upper, box.lower)
    there = jnp.where(arrived & (d != 0), bound, x + at * d)
    there = box.nearest(there)  # rounding may put the point outside of the box
    return there, (there > box.lower) & (there < box.upper)


def _breakpoints(box: Box, x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return every param's breakpoint along the negative gradient, and the descent direction."""
    room = jnp.where(g < 0, box.upper - x, x - box.lower)
    moves = (g != 0) & (room > 0)
    t = jnp.where(moves, room / jnp.where(moves, jnp.abs(g), jnp.ones_like(g)), 0)
    t = jnp.where(g == 0, jnp.asarray(jnp.inf, t.dtype), t)
    return t, jnp.where(moves, -g, jnp.zeros_like(g))


def _from_the_end(rows: jax.Array) -> jax.Array:
    """Return the sums over rows k, k + 1, ...; the last sum is 0."""
    sums = lax.cumsum(rows, axis=0, reverse=True)
    return jnp.concatenate([sums, jnp.zeros_like(rows[:1])])
