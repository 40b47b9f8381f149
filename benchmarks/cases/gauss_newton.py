"""Count the cost of Gram matrix and products of a batch's Jacobian, relative to a gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.metric import Metric
from benchmarks.timing import Settings
from fnopt.costs import cost
from fnopt.curvature import batch_jacobian

# (widths of the layers, number of examples)
NETWORKS = (
    ((784, 1024, 1024, 1), 512),
    ((784, 2048, 2048, 2048, 1), 256),
    ((784, 512, 512, 10), 128),
)
SMALL = (((8, 16, 1), 4), ((8, 16, 3), 4))


def _net(params: Any, x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def _shapes(widths: tuple[int, ...], n: int) -> tuple[Any, Any]:
    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    params = [{"w": shape(a, b), "b": shape(b)} for a, b in itertools.pairwise(widths)]
    return params, shape(n, widths[0])


def _gradient(params: Any, x: jax.Array) -> Any:
    return jax.grad(lambda p: jnp.mean(jax.vmap(_net, (None, 0))(p, x) ** 2))(params)


def _products(method: str) -> dict[str, Callable[..., Any]]:
    jacobian = batch_jacobian(_net, method=method)

    def step(params: Any, x: jax.Array) -> Any:
        J = jacobian(params, x)
        return J.rmv(J.gram() @ J.vector)

    return {
        "J J^T": lambda p, x: jacobian(p, x).gram(),
        "J v": lambda p, x: jacobian(p, x).mv(p),
        "J J^T and J^T a": step,
    }


def run(settings: Settings) -> Iterator[Metric]:
    """Count FLOPs of matrix products and temporary buffers of compiled programs, without a run."""
    for widths, n in SMALL if settings.smoke else NETWORKS:
        shapes = _shapes(widths, n)
        size = sum(leaf.size for leaf in jax.tree.leaves(shapes[0]))
        jacobian_mb = 4e-6 * size * n * widths[-1]
        plain = _measured(_gradient, shapes)
        for method in ("ghost", "formed"):
            for name, fn in _products(method).items():
                title = f"{'-'.join(map(str, widths))}, {n} examples, {method}, {name}"
                ours = _measured(fn, shapes)
                yield Metric(
                    f"{title}: matrix products",
                    ours[0] / plain[0],
                    "x gradient",
                    tolerance=0.02,
                    detail={"ours_GFLOP": ours[0] / 1e9, "peer_GFLOP": plain[0] / 1e9},
                )
                yield Metric(
                    f"{title}: temporary",
                    ours[1] / max(plain[1], 1),
                    "x gradient",
                    tolerance=0.05,
                    detail={
                        "ours_MB": ours[1] / 1e6,
                        "peer_MB": plain[1] / 1e6,
                        "jacobian_MB": jacobian_mb,
                    },
                )


def _measured(fn: Callable[..., Any], shapes: tuple[Any, Any]) -> tuple[float, int]:
    memory = jax.jit(fn).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    return cost(fn)(*shapes).matmul_flops, memory
