"""Parametrization of points on manifolds by coordinates of the tangent space at a base point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Value, static
from fnopt.errors import leaf_text, where
from fnopt.manifolds import Manifold, check_point, is_on


class curved(Value):
    """Represent points of a manifold by coordinates of the tangent space at their initial values.

    The base point has coordinates 1 instead of 0. A relative tolerance on coordinates near 1 is an
    absolute tolerance on the tangent, which for a rotation is an angle in radians.
    """

    manifold: Manifold = static()

    def start(self, x: jax.Array) -> jax.Array:
        """Coordinates of the base points `x`, which are all 1."""
        batch = x.shape[: x.ndim - self.manifold.axes]
        return jnp.ones((*batch, self.manifold.dimension(x.shape)), x.dtype)

    def point(self, x: jax.Array, coordinates: jax.Array) -> jax.Array:
        """Convert coordinates to points, by a retraction from the base points `x`."""
        tangent = self.manifold.from_coordinates(x, coordinates - 1)
        return self.manifold.retract(x, tangent)

    def __repr__(self) -> str:
        return f"on {self.manifold!r}"


class Charts(NamedTuple):
    """Functions that move the base points of params on manifolds."""

    fitted: int  # number of fitted variables in the raveled free tree; base points follow
    leaves: int  # number of leaves of the free tree before the base points
    rebase: Callable[[Any], Any]  # free tree -> free tree with the current points as base points
    tangent: Callable[[Any], Any]  # free tree -> params, with coordinates in place of points


class Parametrization(NamedTuple):
    """Params as a function of the free variables."""

    free: Any  # initial values of the free tree: fitted variables, then base points on manifolds
    assemble: Callable[[Any], Any]  # free tree -> params
    kinds: tuple[Value | None, ...]  # the constraint of every leaf of the params
    charts: Charts | None = None  # None if no param is on a manifold


def manifolds_of(params: Any) -> list[Manifold | None]:
    """Find the manifold of every leaf, or None for a leaf without a manifold."""
    return [
        node.manifold if is_on(node) else None
        for node in jax.tree.leaves(params, is_leaf=is_on)
        for _ in jax.tree.leaves(node)
    ]


def on_its_manifold(kind: Value | None, manifold: Manifold, path: str, leaf: Any) -> curved:
    """Make the constraint of a point on a manifold, or raise an error for another constraint."""
    if kind is not None:
        raise ValueError(
            f"{where()}{leaf_text(path)} is on the manifold {manifold!r} and has the constraint "
            f"{kind!r}, expected fixed() or no constraint for a parameter on a manifold."
        )
    check_point(manifold, leaf, leaf_text(path), "params")
    return curved(manifold)
