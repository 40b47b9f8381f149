"""The quadratic model of L-BFGS-B: compact BFGS matrix and generalized Cauchy point."""

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

    Therefore the rows of `S` have length 1, and the rows of `Y` have the magnitude of the
    curvature, however short the steps are. Unused rows are zero.
    """

    S: jax.Array  # [m, n]
    Y: jax.Array  # [m, n]
    rho: jax.Array  # [m], 1 / s^T y; 0 for an empty row
    theta: jax.Array  # curvature in directions orthogonal to all stored pairs


def empty_pairs(m: int, x: jax.Array, theta: jax.Array) -> CorrectionPairs:
    """Return an empty memory of `m` pairs, with an initial curvature."""
    rows = jnp.zeros((m, x.size), x.dtype)
    return CorrectionPairs(rows, rows, jnp.zeros(m, x.dtype), theta)


def add_pair(pairs: CorrectionPairs, new: SecantPair) -> CorrectionPairs:
    """Replace the oldest correction pair by a new pair, if the new pair has positive curvature."""

    def append(rows: jax.Array, row: jax.Array) -> jax.Array:
        return jnp.where(new.usable, jnp.concatenate([rows[1:], row[None]]), rows)

    theta = jnp.where(new.usable, new.yy, pairs.theta)
    S, Y, rho = append(pairs.S, new.s), append(pairs.Y, new.y), append(pairs.rho, 1 / new.sy)
    return CorrectionPairs(S, Y, rho, theta)


class CompactMatrix(NamedTuple):
    r"""The matrix :math:`B = \theta I - W M^{-1} W^T`."""

    W: jax.Array  # [n, 2 m]
    M: jax.Array  # [2 m, 2 m]
    theta: jax.Array

    def solve(self, v: jax.Array) -> jax.Array:
        r"""Return :math:`M^{-1} v` for vectors, `[..., 2 m]`."""
        return jnp.linalg.solve(self.M, v[..., None])[..., 0]

    def times(self, v: jax.Array) -> jax.Array:
        """Return the product with a vector."""
        return self.theta * v - matmul(self.W, self.solve(matmul(self.W.T, v)))


def compact_form(pairs: CorrectionPairs) -> CompactMatrix:
    r"""Return the compact form of the BFGS matrix.

    .. math:: W = [Y^T \;\; \theta S^T], \qquad
              M = \begin{pmatrix} -D & L^T \\ L & \theta S S^T \end{pmatrix}

    with the diagonal :math:`D` and the strictly lower triangle :math:`L` of :math:`S Y^T`. Rows
    and columns are scaled so that entries of :math:`M` are of order 1. Unused pairs have a 1 on the
    diagonal of :math:`M` and zeros in :math:`W`, so :math:`M` stays invertible.
    """
    S, Y, theta = pairs.S, pairs.Y, pairs.theta
    root = jnp.sqrt(theta)
    SY, SS = matmul(S, Y.T) / theta, matmul(S, S.T)
    empty = (pairs.rho == 0).astype(S.dtype)
    D = jnp.diagonal(SY) + empty
    L = jnp.tril(SY, -1)
    d = jnp.sqrt(D)
    # The columns of Y^T are divided by sqrt(D). Otherwise M would be nearly singular after a poor
    # step, whose s^T y may be far smaller than theta.
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
        The step, of shape `[n]`, with zeros for params with an active bound.
    """
    mask = free.astype(r.dtype)
    W, r = B.W * mask[:, None], r * mask
    # Sherman-Morrison-Woodbury: 2 m unknowns, instead of one unknown per free param.
    K = B.M - matmul(W.T, W) / B.theta
    v = jnp.linalg.solve(K, matmul(W.T, r)[:, None])[:, 0]
    return -(r + matmul(W, v) / B.theta) / B.theta


def cauchy_point(B: CompactMatrix, box: Box, point: Evaluation) -> tuple[jax.Array, jax.Array]:
    r"""Find the first local minimum of the model along :math:`P(x - t g)`.

    .. math:: m'_k = -\|d_k\|^2 + \theta\, t_k \|d_k\|^2 - p_k^T M^{-1} c_k, \qquad
              m''_k = \theta \|d_k\|^2 - p_k^T M^{-1} p_k

    are the slope and the curvature of the model between the breakpoints :math:`t_k` and
    :math:`t_{k+1}`. Here :math:`d_k` is the descent direction of the params that aren't on a bound
    yet, :math:`p_k = W^T d_k`, and :math:`c_k = W^T (x(t_k) - x)`.

    Args:
        B: The compact BFGS matrix.
        box: The bounds.
        point: The evaluation at the current iterate.

    Returns:
        The Cauchy point, and the mask of the params that aren't on a bound at this point.
    """
    # Byrd et al. visit the breakpoints one by one and update p and c. Here cumulative sums over
    # the sorted breakpoints give the slope and the curvature of all n + 1 segments at once. Sums
    # over the params that still move start at the last breakpoint, because subtracting the sum of
    # the other params from the total would cancel.
    x, g = point.x, point.gradient
    t, d = _breakpoints(box, x, g)
    order = jnp.argsort(t)
    t_sorted, d_sorted, W = t[order], d[order], B.W[order]
    zero = jnp.zeros((1,), t.dtype)
    start = jnp.concatenate([zero, t_sorted])  # [n + 1], t at the start of each segment
    end = jnp.concatenate([t_sorted, jnp.full((1,), jnp.inf, t.dtype)])
    W_d = W * d_sorted[:, None]
    square = _suffix_sums(jnp.square(d_sorted))
    p = _suffix_sums(W_d)
    # c = (params stopped at their breakpoints) + (params that still move).
    W_stopped = jnp.where(jnp.isfinite(t_sorted), t_sorted, 0)[:, None] * W_d
    stopped = jnp.concatenate([jnp.zeros_like(W_stopped[:1]), jnp.cumsum(W_stopped, axis=0)])
    # The product inf * 0 would be NaN for params that don't move.
    finite_start = jnp.where(jnp.isfinite(start), start, 0)
    c = stopped + finite_start[:, None] * p
    M_inv_p, M_inv_c = B.solve(jnp.stack([p, c]))
    slope = -square + B.theta * finite_start * square - jnp.sum(p * M_inv_c, axis=1)
    curvature = B.theta * square - jnp.sum(p * M_inv_p, axis=1)
    # Rounding errors must not make the curvature zero or negative.
    noise = jnp.asarray(jnp.finfo(t.dtype).eps, t.dtype) * B.theta * square
    curvature = jnp.maximum(curvature, noise)
    descends = (slope < 0) & (square > 0)
    to_minimum = -slope / jnp.where(descends, curvature, jnp.ones_like(slope))
    minimizer = finite_start + jnp.where(descends, to_minimum, 0)
    is_inside = ~descends | (minimizer <= end)
    t_cauchy = minimizer[jnp.argmax(is_inside)]  # of the first segment with a minimum
    bound = jnp.where(d > 0, box.upper, box.lower)
    cauchy = jnp.where((t <= t_cauchy) & (d != 0), bound, x + t_cauchy * d)
    cauchy = box.nearest(cauchy)  # rounding may put the point outside of the box
    return cauchy, (cauchy > box.lower) & (cauchy < box.upper)


def _breakpoints(box: Box, x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the breakpoints along the negative gradient, `[n]`, and the descent direction.

    A breakpoint is the `t` at which a param reaches its bound: 0 on an active bound, and infinite
    for a param with zero gradient.
    """
    distance = jnp.where(g < 0, box.upper - x, x - box.lower)
    moves = (g != 0) & (distance > 0)
    t = jnp.where(moves, distance / jnp.where(moves, jnp.abs(g), jnp.ones_like(g)), 0)
    t = jnp.where(g == 0, jnp.asarray(jnp.inf, t.dtype), t)
    return t, jnp.where(moves, -g, jnp.zeros_like(g))


def _suffix_sums(rows: jax.Array) -> jax.Array:
    """Return the sums over rows k, k + 1, ..., n - 1, for k = 0, ..., n."""
    sums = lax.cumsum(rows, axis=0, reverse=True)
    return jnp.concatenate([sums, jnp.zeros_like(rows[:1])])
