"""Rotations of the plane (SO(2)) and of space (SO(3))."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import static
from fnopt.manifolds._manifold import Manifold
from fnopt.manifolds._smooth import angle_ratio, cosine_ratio, sine_ratio
from fnopt.numerics import matmul


class Rotations(Manifold):
    r"""Rotation matrices :math:`R^\top R = I,\ \det R = 1`, of size 2 or 3.

    .. math:: \mathrm{retract}(R, v) = R \exp(\hat v), \qquad
        \mathrm{local}(R, S) = \log(R^\top S)^\vee

    Tangents are rotation vectors in the frame of `R`, axis times angle, `[..., 3]`; in the plane
    they are angles, `[..., 1]`. `transport` leaves these coordinates unchanged, which is an
    isometry.

    The points are matrices and not quaternions, because `R @ x` rotates a vector and `R @ S`
    composes rotations. Moreover, a rotation has one matrix but two quaternions. `local` computes a
    quaternion, so it is accurate and differentiable at the angles 0 and :math:`\pi`. At exactly
    :math:`\pi`, `local` returns one of the two rotation vectors.

    Args:
        size: 2 or 3.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.manifolds import SO3
        >>> R = SO3.retract(jnp.eye(3), jnp.asarray([0.0, 0.0, jnp.pi / 2]))
        >>> print(jnp.abs(R @ jnp.asarray([1.0, 0.0, 0.0])).round(4))
        [0. 1. 0.]
        >>> print(SO3.local(jnp.eye(3), R).round(4))
        [0.     0.     1.5708]

    Reference:
        Solà, Deray and Atchuthan (2018), A micro Lie theory for state estimation in robotics,
        arXiv:1812.01537. Shepperd (1978), Quaternion from rotation matrix.
    """

    size: int = static(default=3, choices=(2, 3))

    axes = 2

    @property
    def points(self) -> str:
        """Description of the points and their shape."""
        return f"rotation matrices [..., {self.size}, {self.size}]"

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether the last two axes have length `size`."""
        return shape[-2:] == (self.size, self.size)

    def tangent_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a vector of 3 numbers in space, of 1 in the plane."""
        return (*shape[:-2], 3 if self.size == 3 else 1)

    def retract(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """Rotate by `v` in the frame of `x`."""
        return orthonormalize(matmul(x, rotation(v)))

    def local(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Rotation vector from `x` to `y`."""
        return rotation_vector(matmul(jnp.swapaxes(x, -1, -2), y))

    def nearest(self, y: jax.Array) -> jax.Array:
        """Nearest rotation (Arun, Huang and Blostein 1987; Umeyama 1991)."""
        U, _, Vt = jnp.linalg.svd(y, full_matrices=False)
        # The sign makes the determinant 1; without it the result may be a reflection.
        sign = jnp.linalg.det(matmul(U, Vt))[..., None]
        return matmul(U.at[..., -1].multiply(sign), Vt)

    def __repr__(self) -> str:
        return f"SO{self.size}"


def orthonormalize(x: jax.Array) -> jax.Array:
    r"""Correct rounding errors by a Newton-Schulz step, :math:`\tfrac12 X (3 I - X^\top X)`.

    Reference:
        Higham (2008), Functions of matrices, section 8.3.
    """
    gram = matmul(jnp.swapaxes(x, -1, -2), x)
    return matmul(x, (3 * jnp.eye(x.shape[-1], dtype=x.dtype) - gram) / 2)


def rotation(v: jax.Array) -> jax.Array:
    r"""Rotation matrix of a rotation vector, :math:`I + a \hat v + b \hat v^2` (Rodrigues)."""
    if v.shape[-1] == 1:
        c, s = jnp.cos(v[..., 0]), jnp.sin(v[..., 0])
        return _matrix([[c, -s], [s, c]])
    t = jnp.sum(v * v, axis=-1)[..., None, None]
    x, y, z = (v[..., i] for i in range(3))
    zero = jnp.zeros_like(x)
    hat = _matrix([[zero, -z, y], [z, zero, -x], [-y, x, zero]])
    return jnp.eye(3, dtype=v.dtype) + sine_ratio(t) * hat + cosine_ratio(t) * matmul(hat, hat)


def rotation_vector(R: jax.Array) -> jax.Array:
    """Rotation vector of a rotation matrix, with an angle up to pi."""
    if R.shape[-1] == 2:
        s, c = R[..., 1, 0] - R[..., 0, 1], R[..., 0, 0] + R[..., 1, 1]
        return jnp.arctan2(s, c)[..., None]
    q = quaternion(R)
    w, u = q[..., :1], q[..., 1:]
    return 2 * angle_ratio(jnp.sum(u * u, axis=-1, keepdims=True), w) * u


def quaternion(R: jax.Array) -> jax.Array:
    r"""Unit quaternion of a rotation matrix, `[..., 4]`, with the nonnegative real part first.

    The entries of :math:`4 q q^\top` are linear in the entries of the rotation matrix. The longest
    column is a multiple of :math:`q`, and its normalization doesn't cancel.
    """
    a, b, c = R[..., 0, 0], R[..., 1, 1], R[..., 2, 2]
    x = R[..., 2, 1] - R[..., 1, 2]
    y = R[..., 0, 2] - R[..., 2, 0]
    z = R[..., 1, 0] - R[..., 0, 1]
    xy, xz = R[..., 1, 0] + R[..., 0, 1], R[..., 0, 2] + R[..., 2, 0]
    yz = R[..., 2, 1] + R[..., 1, 2]
    outer = _matrix(
        [
            [1 + a + b + c, x, y, z],
            [x, 1 + a - b - c, xy, xz],
            [y, xy, 1 - a + b - c, yz],
            [z, xz, yz, 1 - a - b + c],
        ]
    )
    longest = jnp.argmax(jnp.diagonal(outer, axis1=-2, axis2=-1), axis=-1)[..., None, None]
    q = jnp.take_along_axis(outer, longest, axis=-1)[..., 0]
    q = q / jnp.sqrt(jnp.sum(q * q, axis=-1, keepdims=True))
    # q and -q are the same rotation; with a nonnegative real part the angle is at most pi.
    return jnp.where(q[..., :1] < 0, -q, q)


def _matrix(rows: list[list[jax.Array]]) -> jax.Array:
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


SO2 = Rotations(2)
"""Rotations of the plane, `[..., 2, 2]`; see :class:`fnopt.manifolds.Rotations`."""

SO3 = Rotations(3)
"""Rotations of space, `[..., 3, 3]`; see :class:`fnopt.manifolds.Rotations`."""
