"""The two Kronecker factors of a matrix: mean outer products of its rows and of its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.numerics import ema, matmul, nonzero, safe_sqrt
from fnopt.optimizers._matrix_functions import eigenvectors_down, orthonormal_columns
from fnopt.sharding import sequential

Pair = tuple[Any, Any]
"""A value for the rows and a value for the columns; None for a side without a value."""


def zeros(k: int, n: int, dtype: Any) -> jax.Array:
    """Return factors of zeros."""
    return jnp.zeros((k, n, n), dtype)


def identities(k: int, n: int, dtype: Any) -> jax.Array:
    """Return identity matrices, as bases."""
    return jnp.tile(jnp.eye(n, dtype=dtype), (k, 1, 1))


def transpose(x: jax.Array) -> jax.Array:
    """Transpose every matrix."""
    return jnp.swapaxes(x, 1, 2)


def rotate(x: jax.Array, bases: Pair) -> jax.Array:
    """Transform matrices into the bases of their sides, `Q_L^T X Q_R`."""
    left, right = bases
    x = x if left is None else matmul(transpose(left), x)
    return x if right is None else matmul(x, right)


def rotate_back(x: jax.Array, bases: Pair) -> jax.Array:
    """Transform matrices back from the bases of their sides, `Q_L X Q_R^T`."""
    left, right = bases
    x = x if left is None else matmul(left, x)
    return x if right is None else matmul(x, transpose(right))


def sides(
    make: Callable[[int, int, Any], jax.Array],
    shape: tuple[int, int, int],
    dtype: Any,
    chosen: Sequence[bool] = (True, True),
) -> Pair:
    """Make square matrices `make(k, n, dtype)` for the chosen sides of a stack."""
    k, *sizes = shape
    pairs = zip(chosen, sizes, strict=True)
    left, right = (make(k, n, dtype) if yes else None for yes, n in pairs)
    return left, right


def map_sides(fn: Callable[..., Any], *pairs: Pair) -> Pair:
    """Apply `fn` to each side; a side that isn't transformed stays None."""
    left, right = (None if x[0] is None else fn(*x) for x in zip(*pairs, strict=True))
    return left, right


def update_factors(factors: Pair, g: jax.Array, decay: Any, gain: Any = None) -> Pair:
    """Update the means of `G G^T` and `G^T G`; nonfinite products are ignored."""

    def average(old: jax.Array, x: jax.Array) -> jax.Array:
        # A NaN would stay in the average.
        return only_finite(ema(old, matmul(x, transpose(x)), decay, gain), old)

    return map_sides(average, factors, (g, transpose(g)))


def refresh_bases(
    count: jax.Array, every: int, iterate: Callable[..., Any], factors: Pair, *kept: Any
) -> Any:
    """Refresh the eigenbases if a refresh is due.

    The bases are the eigenvectors at the first step, `iterate(factors, *kept)` when a refresh is
    due, and `kept` in between.
    """

    def decompose(factors: Pair, bases: Pair, *rest: Any) -> Any:
        # On a CPU, concurrent batches of LAPACK calls can deadlock.
        return map_sides(sequential(eigenvectors), factors, bases), *rest

    due = jnp.where(count % every == 0, 1, 2)
    branches = (decompose, iterate, lambda factors, *kept: kept)
    return jax.lax.switch(jnp.where(count == 0, 0, due), branches, factors, *kept)


def only_finite(new: jax.Array, old: jax.Array) -> jax.Array:
    """Return the new matrices if they are finite, otherwise the old matrices."""
    return jnp.where(jnp.isfinite(new).all(axis=(1, 2), keepdims=True), new, old)


def eigenvectors(factor: jax.Array, old: jax.Array) -> jax.Array:
    """Eigenvectors of a factor in columns, in decreasing order of their eigenvalues."""
    return only_finite(eigenvectors_down(factor), old)


def orthonormal(x: jax.Array, old: jax.Array) -> jax.Array:
    """An orthonormal basis of the columns, in their order."""
    return only_finite(orthonormal_columns(x), old)


def root_mean_square(x: jax.Array) -> jax.Array:
    """Root mean square of each matrix, `[k, 1, 1]`, without overflow of the squares."""
    # The divisor cancels in the result, so no derivative goes through it.
    largest = jax.lax.stop_gradient(nonzero(jnp.max(jnp.abs(x), axis=(1, 2), keepdims=True)))
    return largest * safe_sqrt(jnp.mean(jnp.square(x / largest), axis=(1, 2), keepdims=True))


def largest_entry(x: jax.Array, axes: tuple[int, ...] = (1, 2)) -> jax.Array:
    """The largest modulus of every matrix, without derivative; 1 for a zero matrix."""
    size = jnp.max(jnp.abs(x), axis=axes, keepdims=True, initial=0.0)
    return jax.lax.stop_gradient(nonzero(size))


def frobenius_norm(x: jax.Array, axes: tuple[int, ...] = (1, 2)) -> jax.Array:
    """The root of the sum of squares over the given axes, without overflow of the squares."""
    unit = largest_entry(x, axes)
    return unit * safe_sqrt(jnp.sum(jnp.square(x / unit), axis=axes, keepdims=True))


def limit_rms(u: jax.Array, most: float) -> jax.Array:
    """Shorten matrices whose root mean square exceeds a limit."""
    rms = root_mean_square(u)
    return u * jnp.minimum(most / nonzero(rms), jnp.ones_like(rms))
