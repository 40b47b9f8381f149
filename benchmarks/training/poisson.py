"""Poisson's equation in two dimensions, solved by a network with new points in each step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.training.digits import LIKE_GAUSS_NEWTON, LIKE_KFAC, LIKE_OURS
from benchmarks.training.task import Task, layers, perceptron


def _solution(x: jax.Array) -> jax.Array:
    return jnp.prod(jnp.sin(jnp.pi * x))


def _edges(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw points on the four sides of the square."""
    points, side = rng.random((*shape, 2)), rng.integers(0, 4, shape)
    end = (side // 2).astype(points.dtype)[..., None]
    return np.where(np.arange(2) == (side % 2)[..., None], end, points)


def pinn(smoke: bool) -> Task:
    """Create the task; an example has three inner points and one boundary point.

    With these examples, every method can treat the task as a mean of a loss over examples.
    """
    widths = (2, 4, 1) if smoke else (2, 32, 32, 1)
    examples = 4 if smoke else 60

    def net(params: Any, x: jax.Array) -> jax.Array:
        return layers(params, x, (len(params) - 1,))[0]

    def inside(params: Any, x: jax.Array) -> jax.Array:
        laplacian = jnp.trace(jax.hessian(net, argnums=1)(params, x))
        return laplacian + 2 * jnp.pi**2 * _solution(x)

    def model(params: Any, example: Any) -> jax.Array:
        r = jax.vmap(inside, (None, 0))(params, example["inside"])
        edge = jax.vmap(net, (None, 0))(params, example["edge"])
        return jnp.concatenate([r / len(r) ** 0.5, edge / len(edge) ** 0.5])

    def draw(rng: np.random.Generator, steps: int) -> Any:
        shape = (steps, examples)
        return {"inside": rng.random((*shape, 3, 2)), "edge": _edges(rng, (*shape, 1))}

    def fixed(number: int) -> Any:
        points = draw(np.random.default_rng(99), number)
        return jax.tree.map(lambda a: jnp.asarray(a.reshape(-1, *a.shape[2:])), points)

    grid = jnp.linspace(0, 1, 5 if smoke else 41)
    points = jnp.stack(jnp.meshgrid(grid, grid), -1).reshape(-1, 2)
    exact = jax.vmap(_solution)(points)

    def error(params: Any) -> jax.Array:
        values = jax.vmap(net, (None, 0))(params, points)
        return jnp.linalg.norm(values - exact) / jnp.linalg.norm(exact)

    return Task(
        name="pinn",
        title="Poisson 2-D, PINN",
        test_title="relative L2 error",
        init=perceptron(widths),
        draw=draw,
        take=lambda batch: batch,
        model=model,
        criterion=lambda r, example: jnp.sum(r**2) / 2,
        train=fixed(4),
        test=error,
        steps=4 if smoke else 200,
        every=2 if smoke else 4,
        size="2-32-32-1, tanh, float64; 180 points inside and 60 on the boundary in a batch",
        skip=LIKE_KFAC | LIKE_OURS | LIKE_GAUSS_NEWTON,
        residuals=(
            (inside, net),
            lambda batch: (batch["inside"].reshape(-1, 2), batch["edge"].reshape(-1, 2)),
        ),
        full=fixed(4),
        wide=True,
    )
