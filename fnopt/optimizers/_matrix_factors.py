"""Kronecker factors of a matrix: mean outer products of its rows and of its columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.numerics import ema, matmul, nonzero, safe_sqrt
from fnopt.optimizers._matrix_functions import eigenvectors_down, orthonormal_columns
from fnopt.sharding import sequential

Pair = tuple[Any, Any]
"""Values for the rows and for the columns of a matrix; None for a side without a value."""


def zeros(k: int, n: int, dtype: Any) -> jax.Array:
    """Return zero matrices, as initial factors."""
    return jnp.zeros((k, n, n), dtype)


def identities(k: int, n: int, dtype: Any) -> jax.Array:
    """Return identity matrices, as initial bases."""
    return jnp.tile(jnp.eye(n, dtype=dtype), (k, 1, 1))


def transpose(x: jax.Array) -> jax.Array:
    """Transpose every matrix."""
    return jnp.swapaxes(x, 1, 2)


def rotate(x: jax.Array, bases: Pair) -> jax.Array:
    """Transform matrices into the eigenbases of their sides, `Q_L^T X Q_R`."""
    left, right = bases
    x = x if left is None else matmul(transpose(left), x)
    return x if right is None else matmul(x, right)


def rotation_error(x: jax.Array, bases: Pair) -> jax.Array:
    """Rounding error of the entries of `rotate(x, bases)`, `[k, 1, 1]`."""
    # A product with a basis of order n has an error of n u |x|, and a computed basis is orthogonal
    # up to n u (Higham, 2002, sections 3.5 and 19.3), where u = eps / 2 and |x| is the Frobenius
    # norm. With random rounding errors, sqrt(n) replaces n (section 2.8).
    roots = sum(math.sqrt(basis.shape[-1]) for basis in bases if basis is not None)
    return roots * jnp.finfo(x.dtype).eps * frobenius_norm(x)


def rotate_back(x: jax.Array, bases: Pair) -> jax.Array:
    """Transform matrices back from the eigenbases of their sides, `Q_L X Q_R^T`."""
    left, right = bases
    x = x if left is None else matmul(left, x)
    return x if right is None else matmul(x, transpose(right))


def sides(
    make: Callable[[int, int, Any], jax.Array],
    shape: tuple[int, int, int],
    dtype: Any,
    has_factor: Sequence[bool] = (True, True),
) -> Pair:
    """Make square matrices `make(k, n, dtype)` for each side of a stack that has a factor."""
    k, *sizes = shape
    pairs = zip(has_factor, sizes, strict=True)
    left, right = (make(k, n, dtype) if selected else None for selected, n in pairs)
    return left, right


def map_sides(fn: Callable[..., Any], *pairs: Pair) -> Pair:
    """Apply `fn` to each side; a side without a value stays None."""
    left, right = (None if x[0] is None else fn(*x) for x in zip(*pairs, strict=True))
    return left, right


def update_factors(factors: Pair, g: jax.Array, decay: Any, gain: Any = None) -> Pair:
    """Update the moving averages of `G G^T` and `G^T G`; ignore non-finite products."""

    def average(old: jax.Array, x: jax.Array) -> jax.Array:
        # Once NaN, a moving average would stay NaN.
        return only_finite(ema(old, matmul(x, transpose(x)), decay, gain), old)

    return map_sides(average, factors, (g, transpose(g)))


def refresh_bases(
    count: jax.Array, every: int, iterate: Callable[..., Any], factors: Pair, *operands: Any
) -> Any:
    """Refresh the eigenbases in every `every`-th step.

    Args:
        count: The number of previous steps.
        every: The number of steps between two refreshes.
        iterate: A function `iterate(factors, *operands)` that refreshes the operands. In the first
            step, an eigendecomposition replaces this function.
        factors: The factors of both sides.
        *operands: The bases, and arrays that depend on them.

    Returns:
        The new operands; the old operands if no refresh is due.
    """

    def decompose(factors: Pair, bases: Pair, *others: Any) -> Any:
        # On a CPU, concurrent batches of LAPACK calls can deadlock.
        return map_sides(sequential(eigenvectors), factors, bases), *others

    # `switch` runs one branch; `select` would compute factorizations in every step.
    branch = jnp.where(count % every == 0, 1, 2)
    branches = (decompose, iterate, lambda factors, *operands: operands)
    return jax.lax.switch(jnp.where(count == 0, 0, branch), branches, factors, *operands)


def only_finite(new: jax.Array, old: jax.Array) -> jax.Array:
    """Replace non-finite matrices by the corresponding old matrices."""
    return jnp.where(jnp.isfinite(new).all(axis=(1, 2), keepdims=True), new, old)


def eigenvectors(factor: jax.Array, old: jax.Array) -> jax.Array:
    """Eigenvectors of a factor as columns, in decreasing order of the eigenvalues."""
    return only_finite(eigenvectors_down(factor), old)


def orthonormal(x: jax.Array, old: jax.Array) -> jax.Array:
    """Orthonormal basis of the columns (the `Q` of a QR factorization); `old` if non-finite."""
    return only_finite(orthonormal_columns(x), old)


def root_mean_square(x: jax.Array) -> jax.Array:
    """Root mean square of each matrix, `[k, 1, 1]`, without overflow of the squares."""
    # The divisor cancels in the result, so no derivative goes through it.
    largest = jax.lax.stop_gradient(nonzero(jnp.max(jnp.abs(x), axis=(1, 2), keepdims=True)))
    return largest * safe_sqrt(jnp.mean(jnp.square(x / largest), axis=(1, 2), keepdims=True))


def largest_entry(x: jax.Array, axes: tuple[int, ...] = (1, 2)) -> jax.Array:
    """Largest modulus of the entries of each matrix, as a constant; 1 for a zero matrix."""
    largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True, initial=0.0)
    return jax.lax.stop_gradient(nonzero(largest))


def frobenius_norm(x: jax.Array, axes: tuple[int, ...] = (1, 2)) -> jax.Array:
    """Euclidean norm over some axes, without overflow of the squares."""
    largest = largest_entry(x, axes)
    return largest * safe_sqrt(jnp.sum(jnp.square(x / largest), axis=axes, keepdims=True))


def limit_rms(u: jax.Array, limit: float) -> jax.Array:
    """Scale down matrices whose root mean square exceeds a limit."""
    rms = root_mean_square(u)
    return u * jnp.minimum(limit / nonzero(rms), jnp.ones_like(rms))
