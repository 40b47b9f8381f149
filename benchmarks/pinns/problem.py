"""Differential equation with its conditions, points and known solution."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Field = Callable[[jax.Array], jax.Array]


class Problem(NamedTuple):
    """A problem, which is the same for all methods.

    Attributes:
        name: Name on the command line.
        title: Title in tables and pictures.
        text: Description of the equation.
        widths: Widths of the network's layers, with tanh between the layers.
        conditions: Functions `fn(u, point)` that are zero for the solution `u`: the equation first,
            then boundary and initial conditions.
        draw: `draw(key, counts) -> batches`, which samples points for each condition.
        counts: Number of points in a batch for each condition.
        points: Test points `[m, d]`, which no method uses.
        exact: Values of the solution at the test points, `[m]`.
    """

    name: str
    title: str
    text: str
    widths: tuple[int, ...]
    conditions: tuple[Callable[[Field, jax.Array], jax.Array], ...]
    draw: Callable[[jax.Array, tuple[int, ...]], tuple[jax.Array, ...]]
    counts: tuple[int, ...]
    points: Any
    exact: Any

    @property
    def residuals(self) -> tuple[Callable[[Any, jax.Array], jax.Array], ...]:
        """Return the conditions as functions `fn(params, point)` of the network's params."""

        def residual(condition: Callable[[Field, jax.Array], jax.Array]) -> Any:
            return lambda params, x: condition(functools.partial(net, params), x)

        return tuple(map(residual, self.conditions))

    def init(self, key: jax.Array) -> Any:
        """Draw weights by Glorot and Bengio's rule, with zero biases."""
        keys = jax.random.split(key, len(self.widths) - 1)
        sides = itertools.pairwise(self.widths)
        return [
            {
                "w": jax.random.normal(k, (n, m)) * (2 / (n + m)) ** 0.5,
                "b": jnp.zeros(m),
            }
            for k, (n, m) in zip(keys, sides, strict=True)
        ]

    def sample(self, key: jax.Array, factor: float = 1.0) -> tuple[jax.Array, ...]:
        """Sample a batch of points for each condition, `factor` times the default size."""
        return self.draw(key, tuple(round(factor * count) for count in self.counts))

    def loss(self, params: Any, batch: tuple[jax.Array, ...]) -> jax.Array:
        """Return the loss of `gauss_newton_descent`: the sum of half the mean squares."""
        rows = (
            jax.vmap(r, (None, 0))(params, x) for r, x in zip(self.residuals, batch, strict=True)
        )
        return sum((jnp.mean(r**2) / 2 for r in rows), jnp.zeros(()))

    def error(self, params: Any) -> jax.Array:
        """Return the relative L2 error at the test points."""
        values = jax.vmap(net, (None, 0))(params, jnp.asarray(self.points))
        exact = jnp.asarray(self.exact)
        return jnp.linalg.norm(values - exact) / jnp.linalg.norm(exact)


def net(params: Any, x: jax.Array) -> jax.Array:
    """Return the scalar output of the network for one point."""
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return (x @ params[-1]["w"] + params[-1]["b"])[0]


def second_derivatives(fn: Field, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return all first derivatives and all unmixed second derivatives at a point."""

    def directional(direction: jax.Array) -> tuple[jax.Array, jax.Array]:
        def slope(x: jax.Array) -> jax.Array:
            return jax.jvp(fn, (x,), (direction,))[1]

        return jax.jvp(slope, (x,), (direction,))

    return jax.vmap(directional)(jnp.eye(x.size, dtype=x.dtype))
