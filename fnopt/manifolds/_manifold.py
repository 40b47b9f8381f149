"""Interface of a manifold."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import Value
from fnopt.manifolds._shapes import KINDS, checked


def _missing(manifold: Any, method: str) -> str:
    return f"{type(manifold).__name__} lacks a method expected of every Manifold: define {method}."


class Manifold(Value):
    r"""Base class of manifolds; the last axes of an array are a point, leading axes are batch axes.

    `retract(x, v)` moves a point `x` along a tangent `v`, an array of `tangent_shape`.
    Tangents form a vector space, so optimizers and solvers treat them as ordinary arrays. A
    subclass defines

    - `retract(x, v)`, smooth and on the set for every `v`, with :math:`R_x(0) = x`.
    - `local(x, y)`, the tangent that leads from `x` to `y`: :math:`R_x(\mathrm{local}(x, y)) = y`.
    - `nearest(y)`, a point of the set close to an arbitrary array.
    - `tangent_shape(shape)` and `accepts(shape)`, and `axes`, the number of axes of a point. Other
      shapes of points and tangents raise an error, which describes the set by `points`.

    These methods suffice if the entries of a tangent are orthonormal coordinates. If tangents have
    the shape of the points (such as vectors orthogonal to the point of a sphere), a subclass also
    defines `dimension(shape)`, `from_coordinates(x, c)` and `transport(x, v)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.manifolds import Manifold
        >>> class Positive(Manifold):
        ...     axes = 0
        ...     def retract(self, x, v):
        ...         return x * jnp.exp(v)
        ...     def local(self, x, y):
        ...         return jnp.log(y / x)
        ...     def nearest(self, y):
        ...         return jnp.maximum(y, jnp.finfo(y.dtype).tiny)
        >>> print(Positive().retract(2.0, Positive().local(2.0, 6.0)))
        6.0

    Reference:
        Absil, Mahony and Sepulchre (2008), Optimization algorithms on matrix manifolds,
        sections 4.1 (retractions) and 8.1 (vector transport).
    """

    axes: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        for name in KINDS.keys() & vars(cls).keys():
            setattr(cls, name, checked(vars(cls)[name]))
        super().__init_subclass__(**kwargs)

    @property
    def points(self) -> str:
        """Description of the points and their shape, for messages."""
        return f"arrays of {self.axes} axes or more"

    def retract(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """Move a point along a tangent."""
        raise NotImplementedError(_missing(self, "retract(self, x, v)"))

    def local(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Tangent at `x` whose retraction is `y`."""
        raise NotImplementedError(_missing(self, "local(self, x, y)"))

    def nearest(self, y: jax.Array) -> jax.Array:
        """Point of the set close to an array."""
        raise NotImplementedError(_missing(self, "nearest(self, y)"))

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether arrays of this shape contain points."""
        return len(shape) >= self.axes

    def tangent_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the tangents at an array of points of the given shape."""
        return tuple(shape)

    def dimension(self, shape: tuple[int, ...]) -> int:
        """Dimension of the manifold (of one point)."""
        return math.prod(self.tangent_shape(shape)[len(shape) - self.axes :])

    @checked
    def from_coordinates(self, x: jax.Array, c: jax.Array) -> jax.Array:
        """Tangent with the orthonormal coordinates `c`, `[..., dimension]`."""
        return c.reshape(self.tangent_shape(x.shape))

    @checked
    def transport(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """Transport a tangent `v` at a nearby point to the tangent space at `x`."""
        del x
        return v

    @checked
    def gradient(self, x: jax.Array, g: jax.Array) -> jax.Array:
        r"""Riemannian gradient, as a tangent, from the Euclidean gradient `g`.

        .. math:: \mathrm{grad} f = DR_x(0)^\top g

        The coordinates are orthonormal in the metric, so the gradient is the direction of steepest
        ascent.
        """
        zero = jnp.zeros(self.tangent_shape(x.shape), x.dtype)
        return jax.vjp(lambda v: self.retract(x, v), zero)[1](g.astype(x.dtype))[0]

    def distance(self, x: jax.Array) -> jax.Array:
        """Largest entry of the difference between an array and the nearest point of the set."""
        return jnp.max(jnp.abs(x - self.nearest(x)), initial=0)

    # A short hash: JAX hashes the manifold of every leaf in every call of a jitted function.
    def __hash__(self) -> int:
        return hash((type(self), self._flatten()[1]))

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self._flatten() == other._flatten()
