"""An equation, its conditions, where they are asked for, and what is known of the solution."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Field = Callable[[jax.Array], jax.Array]


class Problem(NamedTuple):
    """The same for all methods.

    Attributes:
        name: As the command line has it.
        title: For tables and pictures.
        text: The equation in words.
        widths: Of the layers of the network, tanh between them.
        conditions: Functions `fn(u, point)` of a function and a point, zero for the solution; one
            of each kind, the equation first.
        draw: `draw(key, counts) -> batches`, random points for each of them.
        counts: How many points of each kind a batch has.
        points: Where the solution is compared, `[m, d]`; no method sees them.
        exact: Its values there, `[m]`.
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
        """The conditions of the network: `fn(params, point)`."""

        def of(condition: Callable[[Field, jax.Array], jax.Array]) -> Any:
            return lambda params, x: condition(functools.partial(net, params), x)

        return tuple(map(of, self.conditions))

    def init(self, key: jax.Array) -> Any:
        """Weights as Glorot and Bengio draw them, biases of zero."""
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
        """A batch for each kind of residual, or one that is `factor` times as large."""
        return self.draw(key, tuple(round(factor * count) for count in self.counts))

    def loss(self, params: Any, batch: tuple[jax.Array, ...]) -> jax.Array:
        """Half the mean square of each kind, added: what `gauss_newton_descent` minimizes."""
        rows = (
            jax.vmap(r, (None, 0))(params, x) for r, x in zip(self.residuals, batch, strict=True)
        )
        return sum((jnp.mean(r**2) / 2 for r in rows), jnp.zeros(()))

    def error(self, params: Any) -> jax.Array:
        """The relative L2 error at the points that no method sees."""
        found = jax.vmap(net, (None, 0))(params, jnp.asarray(self.points))
        exact = jnp.asarray(self.exact)
        return jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact)


def net(params: Any, x: jax.Array) -> jax.Array:
    """A number for one point."""
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return (x @ params[-1]["w"] + params[-1]["b"])[0]


def second_derivatives(fn: Field, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """All first and all unmixed second derivatives of a function of a point."""

    def along(direction: jax.Array) -> tuple[jax.Array, jax.Array]:
        def slope(x: jax.Array) -> jax.Array:
            return jax.jvp(fn, (x,), (direction,))[1]

        return jax.jvp(slope, (x,), (direction,))

    return jax.vmap(along)(jnp.eye(x.size, dtype=x.dtype))
