"""Positive definite matrices and probabilities: open sets with global flat coordinates."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.manifolds._frames import complement
from fnopt.manifolds._manifold import Manifold
from fnopt.numerics import matmul


class PositiveDefiniteMatrices(Manifold):
    r"""Symmetric positive definite matrices, `[..., n, n]`, in the log-Cholesky metric.

    With :math:`X = L L^\top`, a tangent is a vector `[..., n (n + 1) / 2]`. The tangent contains
    the changes of :math:`\log L_{ii}`, then the changes of the entries of `L` below the diagonal.
    In these coordinates the manifold is flat. Steps stay on the manifold, `local` is a difference,
    the mean is the mean of coordinates, and `transport` is the identity.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.manifolds import PositiveDefinite
        >>> X = PositiveDefinite.retract(jnp.eye(2), jnp.asarray([0.0, 0.0, -3.0]))
        >>> print(X, jnp.linalg.det(X))
        [[ 1. -3.]
         [-3. 10.]] 1.0

    Reference:
        Lin (2019), Riemannian geometry of symmetric positive definite matrices via Cholesky
        decomposition, arXiv:1908.09326. For the affine-invariant metric, which needs matrix
        logarithms: Pennec, Fillard and Ayache (2006).
    """

    axes = 2

    @property
    def points(self) -> str:
        """Description of the points and their shape."""
        return "symmetric positive definite matrices [..., n, n]"

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether the matrices are square."""
        return len(shape) > 1 and shape[-1] == shape[-2]

    def tangent_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a vector of n (n + 1) / 2 numbers."""
        return (*shape[:-2], shape[-1] * (shape[-1] + 1) // 2)

    def retract(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """Change the Cholesky factor by a tangent."""
        n = x.shape[-1]
        L, below = jnp.linalg.cholesky(x), jnp.tril_indices(n, -1)
        # The exponential keeps the diagonal of L positive for every tangent.
        factors = jnp.eye(n, dtype=v.dtype) * jnp.exp(v[..., :n])[..., None]
        L = L * jnp.where(jnp.eye(n, dtype=bool), factors, 1)
        L = L.at[..., below[0], below[1]].add(v[..., n:])
        return matmul(L, jnp.swapaxes(L, -1, -2))

    def local(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Differences of the Cholesky factors, with logarithms of the diagonals."""
        L, M = jnp.linalg.cholesky(x), jnp.linalg.cholesky(y)
        below = jnp.tril_indices(x.shape[-1], -1)
        ratios = jnp.diagonal(M, axis1=-2, axis2=-1) / jnp.diagonal(L, axis1=-2, axis2=-1)
        return jnp.concatenate([jnp.log(ratios), (M - L)[..., below[0], below[1]]], axis=-1)

    def nearest(self, y: jax.Array) -> jax.Array:
        """Symmetric part, with eigenvalues raised to `n eps` times the largest modulus."""
        # A smaller eigenvalue could become negative: rounding errors are about n eps times the
        # largest modulus. `tiny` is the bound for a zero matrix.
        values, Q = jnp.linalg.eigh((y + jnp.swapaxes(y, -1, -2)) / 2)
        floor = jnp.max(jnp.abs(values), axis=-1, keepdims=True)
        floor = jnp.asarray(y.shape[-1] * jnp.finfo(y.dtype).eps, y.dtype) * floor
        values = jnp.maximum(values, jnp.maximum(floor, jnp.finfo(y.dtype).tiny))
        return matmul(Q * values[..., None, :], jnp.swapaxes(Q, -1, -2))

    def distance(self, x: jax.Array) -> jax.Array:
        """Distance as in `Manifold.distance`; infinite if a matrix isn't positive definite."""
        # JAX's Cholesky factor of an indefinite matrix is NaN, and `NaN > 0` is false.
        diagonal = jnp.diagonal(jnp.linalg.cholesky(x), axis1=-2, axis2=-1)
        return jnp.where(jnp.all(diagonal > 0), super().distance(x), jnp.inf)

    def __repr__(self) -> str:
        return "PositiveDefinite"


class Probabilities(Manifold):
    r"""Positive numbers with the sum 1 along the last axis (the open simplex).

    .. math:: \mathrm{retract}(x, v)_i = x_i e^{v_i} \Big/ \sum_j x_j e^{v_j}

    The metric is Aitchison's metric of log-ratios, in which the simplex is flat. A step never
    reaches 0. If the solution contains zeros, the iterates approach the solution, and solvers
    report the entries that tend to zero as undetermined.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.manifolds import Simplex
        >>> print(Simplex.retract(jnp.full(2, 0.5), jnp.log(jnp.asarray([3.0, 1.0]))).round(4))
        [0.75 0.25]

    Reference:
        Egozcue, Pawlowsky-Glahn, Mateu-Figueras and Barceló-Vidal (2003), Isometric logratio
        transformations for compositional data analysis.
    """

    @property
    def points(self) -> str:
        """Description of the points and their shape."""
        return "positive numbers [..., n] with the sum 1"

    def dimension(self, shape: tuple[int, ...]) -> int:
        """Length of the last axis minus one."""
        return shape[-1] - 1

    def retract(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """Add `v` to the logarithms of the probabilities, and normalize."""
        p = jax.nn.softmax(jnp.log(x) + v, axis=-1)
        # A probability that underflows to zero would have an infinite logarithm in the next step.
        return jnp.maximum(p, jnp.finfo(p.dtype).tiny)

    def local(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Difference of the logarithms, minus the mean of the difference."""
        change = jnp.log(y) - jnp.log(x)
        return change - jnp.mean(change, axis=-1, keepdims=True)

    def nearest(self, y: jax.Array) -> jax.Array:
        """Replace entries below the machine epsilon by it, and divide by the sum."""
        y = jnp.maximum(y, jnp.asarray(jnp.finfo(y.dtype).eps, y.dtype))
        return y / jnp.sum(y, axis=-1, keepdims=True)

    def distance(self, x: jax.Array) -> jax.Array:
        """Distance as in `Manifold.distance`; infinite if an entry isn't positive."""
        return jnp.where(jnp.any(x <= 0), jnp.inf, super().distance(x))

    def from_coordinates(self, x: jax.Array, c: jax.Array) -> jax.Array:
        """Tangent (log-ratios with mean 0) with the orthonormal coordinates `c`."""
        n = x.shape[-1]
        # Vectors with mean 0 are the orthogonal complement of the uniform vector.
        uniform = jnp.full((*x.shape[:-1], n, 1), n**-0.5, x.dtype)
        return complement(uniform, c[..., None])[..., 0]

    def __repr__(self) -> str:
        return "Simplex"


PositiveDefinite = PositiveDefiniteMatrices()
"""Positive definite matrices, `[..., n, n]`; :class:`fnopt.manifolds.PositiveDefiniteMatrices`."""

Simplex = Probabilities()
"""Probabilities, `[..., n]`; see :class:`fnopt.manifolds.Probabilities`."""
