"""Spheres and Stiefel manifolds, whose tangents have the shape of the points."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import static
from fnopt.errors import where
from fnopt.manifolds._manifold import Manifold
from fnopt.manifolds._smooth import angle_ratio, cosine, sine_ratio
from fnopt.numerics import matmul


class Sphere(Manifold):
    r"""Vectors of a given length along the last axis, such as unit vectors or rows of a matrix.

    .. math:: \mathrm{retract}(x, v) = \cos(\|v\| / r)\, x + \sin(\|v\| / r)\, r v / \|v\|

    This is the exponential map, applied to the projection of `v` onto the tangent space
    :math:`v^\top x = 0`. `local` is the logarithm map, whose norm is the arc length. At the
    antipodal point the logarithm is undefined, and `local` returns a finite value. `transport`
    projects onto the tangent space.

    Args:
        radius: The length of the vectors. With None (`Oblique`), each vector keeps its initial
            length, for example each row of a weight matrix.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.manifolds import UnitVector
        >>> x, y = jnp.asarray([1.0, 0.0]), jnp.asarray([0.0, 1.0])
        >>> print(UnitVector.local(x, y), UnitVector.gradient(x, jnp.asarray([3.0, 4.0])))
        [0.        1.5707964] [0. 4.]

    Reference:
        Absil, Mahony and Sepulchre (2008), Optimization algorithms on matrix manifolds, examples
        4.1.1 and 5.4.1.
    """

    radius: Any = static(default=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise ValueError(
                f"{where()}Sphere: radius = {self.radius}, expected a positive number, or None to "
                "keep the initial length of each vector."
            )

    @property
    def points(self) -> str:
        """Description of the points and their shape."""
        return f"vectors [..., n] of length {'> 0' if self.radius is None else self.radius}"

    def dimension(self, shape: tuple[int, ...]) -> int:
        """Length of the last axis minus one."""
        return shape[-1] - 1

    def retract(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """End point of the great-circle arc from `x` with the initial tangent `v`."""
        # Normalization removes the rounding errors of earlier steps.
        x, square = self._normalize(x)
        v = _tangent(x, v, square)
        t = jnp.sum(v * v, axis=-1, keepdims=True) / square
        return cosine(t) * x + sine_ratio(t) * v

    def local(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Tangent of the great-circle arc from `x` to `y`, with the arc length as norm."""
        x, square = self._normalize(x)
        y, _ = self._normalize(y)
        normal = _tangent(x, y, square)
        # The angle is computed from sine and cosine: `arccos` is inaccurate near 0 and pi.
        c = jnp.sum(x * y, axis=-1, keepdims=True) / square
        return angle_ratio(jnp.sum(normal * normal, axis=-1, keepdims=True) / square, c) * normal

    def nearest(self, y: jax.Array) -> jax.Array:
        """Vector in the same direction; a zero vector is replaced by the first unit vector."""
        first_axis = jnp.eye(1, y.shape[-1], dtype=y.dtype)[0]
        is_zero = jnp.sum(y * y, axis=-1, keepdims=True) == 0
        return self._normalize(jnp.where(is_zero, first_axis, y))[0]

    def from_coordinates(self, x: jax.Array, c: jax.Array) -> jax.Array:
        """Tangent with coordinates in the basis of a reflection that maps an axis to `x`."""
        x, square = self._normalize(x)
        return complement((x / jnp.sqrt(square))[..., None], c[..., None])[..., 0]

    def gradient(self, x: jax.Array, g: jax.Array) -> jax.Array:
        """Projection onto the tangent space."""
        return self.transport(x, g)

    def transport(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """Projection onto the tangent space."""
        x, square = self._normalize(x)
        return _tangent(x, v, square)

    def _normalize(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Scale vectors to the radius; also return the squared radius."""
        square = jnp.sum(x * x, axis=-1, keepdims=True)
        safe = jnp.where(square > 0, square, jnp.ones_like(square))
        if self.radius is None:
            return x, safe
        length = jnp.asarray(self.radius, x.dtype)
        return x * (length / jnp.sqrt(safe)), jnp.broadcast_to(length * length, safe.shape)

    def __repr__(self) -> str:
        return {1.0: "UnitVector", None: "Oblique"}.get(self.radius, f"Sphere({self.radius})")


def _tangent(x: jax.Array, v: jax.Array, square: jax.Array) -> jax.Array:
    return v - x * (jnp.sum(x * v, axis=-1, keepdims=True) / square)


class OrthonormalFrames(Manifold):
    r"""Matrices with orthonormal columns, `[..., n, p]` (the Stiefel manifold).

    With :math:`A = \mathrm{skew}(X^\top V)`, :math:`N = V - X X^\top V` and
    :math:`S = N^\top N / 4` the retraction is the Cayley transform

    .. math:: Y_1 = (I - A / 2 + S)^{-1} (I + A / 2 - S), \qquad
        \mathrm{retract}(X, V) = X Y_1 + N (I + Y_1) / 2

    The Cayley transform takes one linear solve of size `p`, exists for every `V`, and agrees with
    the geodesic to second order. A tangent longer than :math:`(n \epsilon)^{-1/2}` is shortened to
    this length, because rounding errors of `S` would exceed `I`. A QR factorization removes the
    rounding errors of the result, which is on the manifold for every finite `V`. `local` is the
    inverse of the retraction. `transport` projects onto the tangent space.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.manifolds import Stiefel
        >>> X = jnp.eye(3)[:, :2]
        >>> Y = Stiefel.retract(X, jnp.ones((3, 2)))
        >>> print(jnp.abs(Y.T @ Y - jnp.eye(2)).max() < 1e-6)
        True

    Reference:
        Edelman, Arias and Smith (1998), The geometry of algorithms with orthogonality constraints,
        arXiv:physics/9806030. Wen and Yin (2013), A feasible method for optimization with
        orthogonality constraints.
    """

    axes = 2

    @property
    def points(self) -> str:
        """Description of the points and their shape."""
        return "matrices [..., n, p] with orthonormal columns and n >= p"

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether there are at least as many rows as columns."""
        return len(shape) > 1 and shape[-2] >= shape[-1]

    def dimension(self, shape: tuple[int, ...]) -> int:
        """`n p - p (p + 1) / 2`."""
        n, p = shape[-2:]
        return n * p - p * (p + 1) // 2

    def retract(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """Cayley transform along a tangent."""
        # Products with a tangent of entries up to 1 don't overflow.
        size = lax.stop_gradient(jnp.max(jnp.abs(v), (-2, -1), keepdims=True, initial=1))
        A, normal = _frame_parts(x, v / size)
        length = lax.stop_gradient(jnp.sqrt(_square_sum(A) + _square_sum(normal)))
        # Higham (2002), section 3.5: the rounding error of N^T N is at most about n eps |N|^2.
        longest = (x.shape[-2] * jnp.finfo(x.dtype).eps) ** -0.5
        scale = longest / jnp.maximum(longest / size, length)
        A, normal = scale * A, scale * normal
        eye = jnp.eye(x.shape[-1], dtype=x.dtype)
        K = A / 2 - matmul(_transpose(normal), normal) / 4
        Y1 = jnp.linalg.solve(eye - K, eye + K)
        y = matmul(x, Y1) + matmul(normal, eye + Y1) / 2
        # The exact result has orthonormal columns, so the correction has the derivative 0.
        return y + lax.stop_gradient(_orthonormal_factor(y) - y)

    def local(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Tangent whose retraction at `x` is `y`."""
        Y1 = matmul(_transpose(x), y)
        normal = y - matmul(x, Y1)
        eye = jnp.eye(x.shape[-1], dtype=x.dtype)
        # The inverse of the Cayley transform. N is the solution of N (I + Y1) / 2 = normal. Then
        # K (I + Y1) = Y1 - I, with K = A / 2 - N^T N / 4, determines A.
        N = 2 * _solve_right(normal, eye + Y1)
        A = _solve_right(2 * (Y1 - eye) + matmul(_transpose(N), normal), eye + Y1)
        return matmul(x, A) + N

    def nearest(self, y: jax.Array) -> jax.Array:
        """Orthogonal factor of the polar decomposition."""
        U, _, Vt = jnp.linalg.svd(y, full_matrices=False)
        return matmul(U, Vt)

    def from_coordinates(self, x: jax.Array, c: jax.Array) -> jax.Array:
        """Tangent with coordinates in the basis of a block reflection."""
        n, p = x.shape[-2:]
        split = p * (p - 1) // 2
        skew, normal = c[..., :split], c[..., split:]
        rows, columns = jnp.tril_indices(p, -1)
        A = jnp.zeros((*c.shape[:-1], p, p), c.dtype).at[..., rows, columns].set(skew)
        # Every coordinate occurs twice in A, so the factor sqrt(1/2) makes the basis orthonormal.
        A = (A - _transpose(A)) * jnp.asarray(0.5**0.5, c.dtype)
        return matmul(x, A) + complement(x, normal.reshape(*c.shape[:-1], n - p, p))

    def gradient(self, x: jax.Array, g: jax.Array) -> jax.Array:
        """Projection onto the tangent space."""
        return self.transport(x, g)

    def transport(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """Projection onto the tangent space."""
        A, normal = _frame_parts(x, v)
        return matmul(x, A) + normal

    def __repr__(self) -> str:
        return "Stiefel"


def _frame_parts(x: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    inner = matmul(_transpose(x), v)
    return (inner - _transpose(inner)) / 2, v - matmul(x, inner)


def _square_sum(x: jax.Array) -> jax.Array:
    return jnp.sum(x * x, axis=(-2, -1), keepdims=True)


def _orthonormal_factor(y: jax.Array) -> jax.Array:
    """Orthonormal factor `Q` of the QR factorization whose triangle has a positive diagonal."""
    Q, R = jnp.linalg.qr(y)
    diagonal = jnp.diagonal(R, axis1=-2, axis2=-1)[..., None, :]
    return jnp.where(diagonal < 0, -Q, Q)


def _solve_right(b: jax.Array, a: jax.Array) -> jax.Array:
    return _transpose(jnp.linalg.solve(_transpose(a), _transpose(b)))


def _transpose(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2)


def complement(x: jax.Array, b: jax.Array) -> jax.Array:
    r""":math:`X_\perp B` for an orthonormal basis :math:`X_\perp` of the complement of `x`.

    The basis consists of columns of the block reflection :math:`I - W (I + H)^{-1} W^\top`, which
    maps `x` to the first unit vectors. :math:`U H` is the polar decomposition of the first rows of
    `x`, and `W` is `x` with `U` added to these rows. Derivatives treat the basis as constant.

    Args:
        x: Orthonormal columns, `[..., n, p]`.
        b: Coordinates, `[..., n - p, p]`.

    Reference:
        Schreiber and Parlett (1988), Block reflectors: theory and computation.
    """
    p = x.shape[-1]
    x = lax.stop_gradient(x)
    # `x` is constant here, because the derivative of an SVD is infinite for equal singular values.
    U, s, Vt = jnp.linalg.svd(x[..., :p, :], full_matrices=False)
    W = x.at[..., :p, :].add(matmul(U, Vt))
    inner = matmul(_transpose(W[..., p:, :]), b)
    weights = matmul(_transpose(Vt) / (1 + s)[..., None, :], matmul(Vt, inner))
    padded = jnp.concatenate([jnp.zeros((*b.shape[:-2], p, b.shape[-1]), b.dtype), b], axis=-2)
    return padded - matmul(W, weights)


UnitVector = Sphere()
"""Vectors of length 1, `[..., n]`; see :class:`fnopt.manifolds.Sphere`."""

Oblique = Sphere(None)
"""Vectors of constant length, such as the rows of a matrix; :class:`fnopt.manifolds.Sphere`."""

Stiefel = OrthonormalFrames()
"""Orthonormal columns, `[..., n, p]`; see :class:`fnopt.manifolds.OrthonormalFrames`."""
