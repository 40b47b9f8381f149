"""The model of a curve fit, as the batch needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.least_squares.batched._data import NAME, Points, joined
from fnopt.least_squares.batched._lanes import Params
from fnopt.least_squares.batched._start import Layout

_MOST_PARAMS = 16  # everything is unrolled: compile time grows with the cube


class Model:
    """A user's function with how it takes its params.

    It is a static argument of the compiled program: equal for the same function object.
    """

    def __init__(self, f: Callable[..., Any], layout: Layout) -> None:
        self.f, self.layout = f, layout

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Model)
            and self.f is other.f
            and self.layout.key() == other.layout.key()
        )

    def __hash__(self) -> int:
        return hash(id(self.f))

    def predict(self, x: Params, at: Any) -> Any:
        """The values of the function for one fit."""
        params = self.layout.params(x)
        return self.f(at, *params) if self.layout.unpacked else self.f(at, params)

    def residual(self, x: Params, points: Points) -> jax.Array:
        """The residuals of one fit, laid end to end."""
        assert points.y is not None
        dtype = x[0].dtype
        r = jnp.asarray(self.predict(x, points.x)).astype(dtype) - points.y.astype(dtype)
        if points.sigma is not None:
            r = r / points.sigma.astype(dtype)
        if points.mask is not None:
            r = jnp.where(points.mask, r, jnp.zeros_like(r))
        return jnp.ravel(r)


def check_model(model: Model, x0: jax.Array, shared: Points, own: Points) -> None:
    """Traces the function for one fit, to say what is wrong in terms of one fit."""
    n = x0.shape[1]
    if n > _MOST_PARAMS:
        raise ValueError(
            f"{NAME}: p0 has {n} params a fit, expected at most {_MOST_PARAMS}: the algebra is "
            "unrolled. Use jax.vmap over fnopt.least_squares for larger problems."
        )
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), own)
    numbers = (jax.ShapeDtypeStruct((), x0.dtype),) * n
    value = jax.eval_shape(model.predict, numbers, joined(shared, one).x)
    if not hasattr(value, "shape") or jnp.issubdtype(value.dtype, jnp.complexfloating):
        raise TypeError(f"{NAME}: f returned {value!r}, expected a real array like y[0].")
    if value.shape not in {one.y.shape, ()}:
        raise ValueError(
            f"{NAME}: f returned shape {value.shape} for one fit, but one fit's data have shape "
            f"{one.y.shape}; expected the same. If x has an axis for the fits, say "
            "x_per_fit=True."
        )
