"""Poses: rigid motions of the plane (SE(2)) and of space (SE(3))."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import static
from fnopt.errors import where
from fnopt.manifolds._manifold import Manifold
from fnopt.manifolds._rotations import Rotations
from fnopt.manifolds._shapes import check_accepted
from fnopt.numerics import matmul


class RigidMotions(Manifold):
    r"""Poses :math:`\begin{pmatrix} R & p \\ 0 & 1 \end{pmatrix}`, of the plane or of space.

    .. math:: \mathrm{retract}(T, (u, \omega)) = (R \exp(\hat\omega),\ p + R u)

    Tangents are `(u, omega)`, a translation and a rotation vector in the frame of the pose. Their
    shape is `[..., 6]` in space and `[..., 3]` in the plane. To first order the retraction equals
    the exponential map of the group, so covariances of tangents are equal for both maps. `local` is
    the inverse of the retraction. `local` defines relative poses like g2o and GTSAM's `Pose2`.

    Args:
        size: The dimension of the space, 2 or 3.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.manifolds import SE2
        >>> T = SE2.retract(jnp.eye(3), jnp.asarray([1.0, 2.0, 0.5]))
        >>> print(T[:2, 2], SE2.local(jnp.eye(3), T))
        [1. 2.] [1.  2.  0.5]

    Reference:
        Solà, Deray and Atchuthan (2018), A micro Lie theory for state estimation in robotics,
        arXiv:1812.01537, section IV-B (composite manifolds).
    """

    size: int = static(default=3, choices=(2, 3))

    axes = 2

    @property
    def rotations(self) -> Rotations:
        """The manifold of rotations."""
        return Rotations(self.size)

    @property
    def points(self) -> str:
        """Description of the points and their shape."""
        return f"poses [..., {self.size + 1}, {self.size + 1}]"

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether the last two axes have length `size + 1`."""
        return shape[-2:] == (self.size + 1, self.size + 1)

    def tangent_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a vector of 6 numbers in space, of 3 in the plane."""
        return (*shape[:-2], self.size + (3 if self.size == 3 else 1))

    def retract(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """Translate and rotate a pose `x` in the frame of `x`."""
        R, p = self.parts(x)
        u, omega = v[..., : self.size], v[..., self.size :]
        return self.of(self.rotations.retract(R, omega), p + _rotate_vector(R, u))

    def local(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Translation and rotation vector from `x` to `y`, in the frame of `x`."""
        (R, p), (S, q) = self.parts(x), self.parts(y)
        u = _rotate_vector(jnp.swapaxes(R, -1, -2), q - p)
        return jnp.concatenate([u, self.rotations.local(R, S)], axis=-1)

    def nearest(self, y: jax.Array) -> jax.Array:
        """Pose with the nearest rotation."""
        R, p = self.parts(y)
        return self.of(self.rotations.nearest(R), p)

    def parts(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Rotation `[..., n, n]` and position `[..., n]`."""
        check_accepted(self, jnp.shape(x), "parts")
        n = self.size
        return x[..., :n, :n], x[..., :n, n]

    def of(self, R: jax.Array, p: jax.Array) -> jax.Array:
        """Make the pose with rotation `R` and position `p`."""
        check_accepted(self.rotations, R.shape, "of", "the rotation")
        if p.shape[-1:] != (self.size,):
            raise ValueError(
                f"{where()}{self!r}.of: the position has shape {p.shape}, expected "
                f"[..., {self.size}]."
            )
        shape = jnp.broadcast_shapes(R.shape[:-2], p.shape[:-1])
        R = jnp.broadcast_to(R, (*shape, self.size, self.size))
        p = jnp.broadcast_to(p, (*shape, self.size))
        last_row = jnp.eye(self.size + 1, dtype=R.dtype)[-1:]
        last_row = jnp.broadcast_to(last_row, (*shape, 1, self.size + 1))
        return jnp.concatenate([jnp.concatenate([R, p[..., None]], axis=-1), last_row], axis=-2)

    def inverse(self, x: jax.Array) -> jax.Array:
        """Inverse pose, computed without a linear solve."""
        check_accepted(self, jnp.shape(x), "inverse")
        R, p = self.parts(x)
        R_inverse = jnp.swapaxes(R, -1, -2)
        return self.of(R_inverse, -_rotate_vector(R_inverse, p))

    def __repr__(self) -> str:
        return f"SE{self.size}"


def _rotate_vector(R: jax.Array, u: jax.Array) -> jax.Array:
    return matmul(R, u[..., None])[..., 0]


SE2 = RigidMotions(2)
"""Poses in the plane, `[..., 3, 3]`; see :class:`fnopt.manifolds.RigidMotions`."""

SE3 = RigidMotions(3)
"""Poses in space, `[..., 4, 4]`; see :class:`fnopt.manifolds.RigidMotions`."""
