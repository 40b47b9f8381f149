"""Extreme eigenvalues of a matrix from its products, by the Lanczos method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.curvature._sums import symmetric_product
from fnopt.errors import check_choice, check_count, check_key
from fnopt.jacobians import ravel
from fnopt.numerics import axis_norms, matmul

_ENDS = ("largest", "smallest", "magnitude")
_NAME = "top_eigenvalues"


class Eigenpairs(NamedTuple):
    """Eigenvalues and their eigenvectors.

    Attributes:
        values: The eigenvalues, `[k]`, ordered from the requested end of the spectrum.
        vectors: The unit eigenvectors, a tree with a leading axis of `k`.
        errors: Residual norms `|A q - value q|`, `[k]`, which bound the distance to an eigenvalue.
    """

    values: jax.Array
    vectors: Any
    errors: jax.Array


def top_eigenvalues(
    product: Callable[[Any], Any],
    like: Any,
    key: jax.Array,
    *,
    k: int = 1,
    iterations: int = 32,
    which: str = "largest",
) -> Eigenpairs:
    r"""Compute extreme eigenvalues of a symmetric matrix by Lanczos' method.

    From `m` products the method computes the restriction of the matrix to the Krylov space,

    .. math:: T = Q^\top A Q, \qquad Q = [q, A q, \dots, A^{m-1} q] \text{ orthonormal},

    whose extreme eigenvalues approximate the extreme eigenvalues of `A` even if `m` is far below
    the size of `A`. Every vector is orthogonalized twice against all previous vectors, so there are
    no spurious copies of eigenvalues. A multiple eigenvalue usually appears once.

    Args:
        product: `v -> A v`, where `A v` has the structure and shapes of `v`: for example
            :func:`hvp` or :func:`ggn_vp` with fixed params and batch.
        like: A tree of floating arrays like `v`; its values are ignored.
        key: A PRNG key for the random initial vector.
        k: Number of eigenvalues.
        iterations: Number of products `m`, at most the number of params. `m` vectors are stored.
        which: `'largest'`, `'smallest'` or `'magnitude'`.

    Returns:
        The `Eigenpairs`.

    Raises:
        TypeError: If a leaf isn't real and floating, or `key` isn't one PRNG key.
        ValueError: If `k` exceeds the number of iterations or params, the structure or shapes of
            `A v` and `v` differ, or an option is invalid.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.curvature import top_eigenvalues
        >>> d = jnp.arange(1.0, 6.0)
        >>> found = top_eigenvalues(lambda v: d * v, d, jax.random.key(0), k=2)
        >>> [round(float(x), 4) for x in found.values]
        [5.0, 4.0]

    Reference:
        Lanczos, 1950; Ghorbani, Krishnan and Xiao, 2019, "An Investigation into Neural Net
        Optimization via Hessian Eigenvalue Density", arXiv:1901.10159.
    """
    check_choice(which, _ENDS, "which", _NAME)
    check_count(k, "k", _NAME)
    check_count(iterations, "iterations", _NAME)
    product = symmetric_product(product, like, _NAME)
    start, unravel = ravel(like, "like")
    steps = min(iterations, start.size)
    if k > steps:
        raise ValueError(
            f"{_NAME}: k is {k}, expected at most {steps}, the smaller of iterations={iterations} "
            f"and the number of params, {start.size}."
        )
    flat_product = lambda v: ravel(product(unravel(v)))[0].astype(start.dtype)  # noqa: E731
    basis, T = _lanczos(flat_product, check_key(key, _NAME), start, steps)
    values, small = jnp.linalg.eigh(T)
    key_of = {"smallest": values, "largest": -values, "magnitude": -jnp.abs(values)}[which]
    order = jnp.argsort(key_of)[:k]
    values, vectors = values[order], matmul(small[:, order].T, basis)
    images = jax.lax.map(flat_product, vectors)
    errors = axis_norms(images - values[:, None] * vectors, 1)[:, 0]
    return Eigenpairs(values, jax.vmap(unravel)(vectors), errors)


def _lanczos(
    product: Callable[[jax.Array], jax.Array], key: jax.Array, like: jax.Array, steps: int
) -> tuple[jax.Array, jax.Array]:
    """Orthonormal basis `Q` of the Krylov space, `[steps, n]`, and `T`, `[steps, steps]`."""

    def draw(i: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.fold_in(key, i), like.shape, like.dtype)

    def orthogonalize(v: jax.Array, basis: jax.Array) -> jax.Array:
        for _ in range(2):  # "twice is enough" (Parlett, 1980, section 6.9)
            v = v - matmul(matmul(basis, v), basis)
        return v

    def extend_basis(i: jax.Array, carry: Any) -> Any:
        basis, images, size = carry
        image = product(basis[i])
        size = jnp.maximum(size, axis_norms(image, 0)[0])
        residual = orthogonalize(image, basis)
        length = axis_norms(residual, 0)[0]
        # If the residual is at rounding level, a few eps |A| n^(1/2), the span of the basis is
        # invariant. A random vector then continues the basis.
        eps = jnp.asarray(8 * jnp.finfo(like.dtype).eps, like.dtype)
        is_invariant = length <= eps * size * jnp.sqrt(jnp.asarray(like.size, like.dtype))
        residual = jax.lax.cond(
            is_invariant, lambda: orthogonalize(draw(i + 1), basis), lambda: residual
        )
        next_vector = _unit(residual)
        basis = basis.at[i + 1].set(next_vector, mode="drop")
        return basis, images.at[i].set(image), size

    first = _unit(draw(jnp.zeros((), jnp.int32)))
    zeros = jnp.zeros((steps, like.size), like.dtype)
    carry = (zeros.at[0].set(first), zeros, jnp.zeros((), like.dtype))
    basis, images, _ = jax.lax.fori_loop(0, steps, extend_basis, carry)
    # T is computed from the products A q, because the coefficients of the three-term recurrence
    # are inaccurate in float32.
    T = matmul(basis, images.T)
    return basis, (T + T.T) / 2


def _unit(v: jax.Array) -> jax.Array:
    length = axis_norms(v, 0)[0]
    return v / jnp.where(length > 0, length, jnp.ones_like(length))
