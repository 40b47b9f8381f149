"""The covariances of many fits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.curves.batched._data import FitUnits, Points
from fnopt.curves.batched._progress import BatchState, columns, inverse_and_rank
from fnopt.curves.batched._task import Sums


def covariances(
    progress: BatchState, points: jax.Array, absolute_sigma: bool, units: FitUnits | None
) -> tuple[jax.Array, jax.Array]:
    """The covariances of fits and the roots of their diagonals, which underflow later.

    Both are infinite where the data don't determine all params.
    """
    n = progress.x.shape[1]
    known = (progress.rank == n) & jnp.isfinite(progress.square)
    variance = jnp.ones_like(progress.square)
    if not absolute_sigma:
        known &= points > n
        variance = progress.square / jnp.maximum(points - n, 1).astype(variance.dtype)
    covariance = progress.inverse * variance[:, None, None]
    errors = _root(jnp.diagonal(covariance, axis1=1, axis2=2))
    if units is not None:
        size = units.params * (units.residuals[:, None] if absolute_sigma else 1)
        covariance = (covariance * size[:, :, None]) * size[:, None, :]
        errors = errors * size
    infinite = jnp.asarray(jnp.inf, covariance.dtype)
    return (
        jnp.where(known[:, None, None], covariance, infinite),
        jnp.where(known[:, None], errors, infinite),
    )


def _root(variance: jax.Array) -> jax.Array:
    """The square root, whose derivative at zero is zero: nobody may ask for that of the errors."""
    some = variance > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, variance, 1)), 0)


def point_counts(shared: Points, own: Points) -> jax.Array:
    """The number of points of each fit, `int32[fits]`."""
    assert own.y is not None
    fits, *shape = own.y.shape
    if own.mask is not None:
        mask = jnp.broadcast_to(own.mask, own.y.shape)
        return jnp.sum(mask.reshape(fits, -1), axis=1, dtype=jnp.int32)
    mask = jnp.broadcast_to(True if shared.mask is None else shared.mask, tuple(shape))
    return jnp.broadcast_to(jnp.sum(mask, dtype=jnp.int32), fits)


def robust_inverses(sums: Sums, x: jax.Array, own: Points, chunk: int) -> jax.Array:
    """The inverses behind the covariances of robust fits."""

    def one(fit: tuple[jax.Array, Points]) -> jax.Array:
        x, own = jax.tree.map(lambda a: a[None], fit)
        lane = jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), own)
        return inverse_and_rank(sums.at_end(columns(x), lane).A)[0][0]

    return lax.map(one, (x, own), batch_size=chunk)
