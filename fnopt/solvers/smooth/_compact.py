"""The limited-memory BFGS matrix in its compact form."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.solvers.smooth._method import dot, length


class Pairs(NamedTuple):
    """Differences of points and of gradients, the oldest first, each over the step's length.

    So the rows of `S` have length 1 and those of `Y` are curvatures, whatever the scale of the
    problem. Rows that aren't filled yet are zero.
    """

    S: jax.Array  # [m, n]
    Y: jax.Array  # [m, n]
    rho: jax.Array  # [m], 1 / s^T y; 0 for an empty row
    theta: jax.Array  # the curvature in directions that nothing is known of


def no_pairs(m: int, x: jax.Array) -> Pairs:
    """An empty memory."""
    rows = jnp.zeros((m, x.size), x.dtype)
    return Pairs(rows, rows, jnp.zeros(m, x.dtype), jnp.ones((), x.dtype))


def with_pair(pairs: Pairs, s: jax.Array, y: jax.Array) -> Pairs:
    """The memory with a pair more, if it has positive curvature, and without the oldest."""
    size = length(s)
    safe = jnp.where(size > 0, size, jnp.ones_like(size))
    s, y = s / safe, y / safe
    sy, steep = dot(s, y), length(y)
    eps = jnp.asarray(jnp.finfo(s.dtype).eps, s.dtype)
    usable = (size > 0) & (sy > eps * steep) & jnp.isfinite(steep)
    one = jnp.ones_like(sy)
    sy = jnp.where(usable, sy, one)

    def pushed(rows: jax.Array, row: jax.Array) -> jax.Array:
        return jnp.where(usable, jnp.concatenate([rows[1:], row[None]]), rows)

    theta = jnp.where(usable, steep * (steep / sy), pairs.theta)
    return Pairs(pushed(pairs.S, s), pushed(pairs.Y, y), pushed(pairs.rho, 1 / sy), theta)


class Compact(NamedTuple):
    r"""The matrix :math:`B = \theta I - W M^{-1} W^T`."""

    W: jax.Array  # [n, 2 m]
    M: jax.Array  # [2 m, 2 m]
    theta: jax.Array

    def solved(self, v: jax.Array) -> jax.Array:
        """The inverse of M times vectors, `[..., 2 m]`."""
        return jnp.linalg.solve(self.M, v[..., None])[..., 0]

    def times(self, v: jax.Array) -> jax.Array:
        """The matrix times a vector."""
        inside = self.solved(_product(self.W.T, v))
        return self.theta * v - _product(self.W, inside)


def _product(A: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(A, b, precision=lax.Precision.HIGHEST)


def compact(pairs: Pairs) -> Compact:
    r"""The compact form.

    .. math:: W = [Y^T \;\; \theta S^T], \qquad
              M = \begin{pmatrix} -D & L^T \\ L & \theta S S^T \end{pmatrix}

    with the diagonal :math:`D` and the strictly lower triangle :math:`L` of :math:`S Y^T`. Rows
    and columns are scaled so that those of :math:`M` are of order 1; empty ones have a 1 on the
    diagonal and nothing in :math:`W`.
    """
    S, Y, theta = pairs.S, pairs.Y, pairs.theta
    root = jnp.sqrt(theta)
    SY, SS = _product(S, Y.T) / theta, _product(S, S.T)
    empty = (pairs.rho == 0).astype(S.dtype)
    D = jnp.diagonal(SY) + empty
    L = jnp.tril(SY, -1)
    d = jnp.sqrt(D)
    # Scaled by 1 / sqrt(D) on the first half: s^T y is far smaller than theta if the memory is bad.
    L = L / d
    top = jnp.concatenate([-jnp.eye(d.size, dtype=S.dtype), L.T], axis=1)
    bottom = jnp.concatenate([L, SS + jnp.diag(empty)], axis=1)
    W = jnp.concatenate([Y.T / (root * d), root * S.T], axis=1)
    return Compact(W, jnp.concatenate([top, bottom]), theta)


def free_step(B: Compact, free: jax.Array, r: jax.Array) -> jax.Array:
    r"""The step of the free params to the minimum of the model.

    .. math:: d = -B_{FF}^{-1} r_F = -\tfrac1\theta r_F - \tfrac{1}{\theta^2} W_F
              \left( M - \tfrac1\theta W_F^T W_F \right)^{-1} W_F^T r_F

    Args:
        B: The matrix.
        free: Which params are free, a mask of `[n]`.
        r: The gradient of the model, of shape `[n]`.

    Returns:
        The step of shape `[n]`, zero for the params that aren't free.
    """
    mask = free.astype(r.dtype)
    W, r = B.W * mask[:, None], r * mask
    K = B.M - _product(W.T, W) / B.theta
    inside = jnp.linalg.solve(K, _product(W.T, r)[:, None])[:, 0]
    return -(r + _product(W, inside) / B.theta) / B.theta
