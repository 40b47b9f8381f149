"""Checks of the shapes of points, tangents and coordinates."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fnopt.errors import where
from fnopt.numerics import is_array_like

Manifold = Any  # fnopt.manifolds.Manifold, whose file imports this one
Shape = tuple[int, ...]

KINDS: dict[str, tuple[str, ...]] = {
    "retract": ("point", "tangent", "point"),
    "local": ("point", "point", "tangent"),
    "nearest": ("point", "point"),
    "from_coordinates": ("point", "vector of coordinates", "tangent"),
    "transport": ("point", "tangent", "tangent"),
    "gradient": ("point", "point", "tangent"),
}
"""For each method of a manifold, what the arguments and the result are; a point comes first."""


def checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that `KINDS` names, so that wrong shapes raise an error.

    JAX clamps an index that is too large, so a method may otherwise compute wrong numbers.
    Leading axes may broadcast.
    """
    name = method.__name__
    kinds = KINDS[name]

    @functools.wraps(method)
    def call(self: Manifold, *args: Any, **kwargs: Any) -> Any:
        arrays = (*args, *kwargs.values())
        if not all(map(is_array_like, arrays)):  # such as a node from `on`, whose error says more
            return method(self, *args, **kwargs)
        shapes = [jnp.shape(x) for x in arrays]
        check_accepted(self, shapes[0], name)
        for kind, shape in zip(kinds, shapes, strict=False):
            _check_shape(self, name, f"the {kind}", kind, shapes[0], shape)
        try:
            result = method(self, *args, **kwargs)
        except (TypeError, ValueError) as error:
            # Arrays of accepted shapes fail if the user's own methods disagree.
            pairs = ", ".join(f"a {k} {s}" for k, s in zip(kinds, shapes, strict=False))
            error.add_note(
                f"{self!r}.{name} got shapes that agree with its tangent_shape: {pairs}."
            )
            raise
        _check_shape(self, name, "the result", kinds[-1], shapes[0], jnp.shape(result))
        return result

    return call


def check_accepted(manifold: Manifold, shape: Shape, name: str, what: str = "the point") -> None:
    """Raise an error unless the manifold accepts arrays of points of a shape."""
    if not manifold.accepts(shape):
        raise ValueError(
            f"{where()}{manifold!r}.{name}: {what} has shape {shape}, expected points of "
            f"{manifold!r}: {manifold.points}."
        )


def _check_shape(
    manifold: Manifold, name: str, what: str, kind: str, point: Shape, shape: Shape
) -> None:
    """Check the last axes of an array, at points of shape `point`."""
    batch = len(point) - manifold.axes
    if kind == "tangent":
        expected = tuple(manifold.tangent_shape(point))[batch:]
    elif kind == "point":
        expected = point[batch:]
    else:
        expected = (manifold.dimension(point),)
    if shape[len(shape) - len(expected) :] != expected or len(shape) < len(expected):
        axes = ", ".join(["...", *map(str, expected)])
        at = "" if kind == "point" else f" at points of shape {point}"
        raise ValueError(
            f"{where()}{manifold!r}.{name}: {what} has shape {shape}, expected [{axes}]{at}."
        )
