"""Losses of one example for several kinds of models, and a loop as reference implementation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

SIZE = 7  # a prime: every chunk size between 1 and 7 leaves a remainder


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """Use full precision on accelerators, whose default rounds the operands of products."""
    with jax.default_matmul_precision("highest" if jax.default_backend() != "cpu" else None):
        yield


class Problem(NamedTuple):
    loss: Callable[..., Any]
    params: Any
    batch: Any


def _normal(seed: int, *shape: int) -> jax.Array:
    # NumPy's generator, because JAX's generators compile a program for every shape.
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def _labels(count: int = 3) -> jax.Array:
    return jnp.arange(SIZE, dtype=jnp.int32) % count


def _cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    return -jnp.take(jax.nn.log_softmax(logits), label)


def mlp() -> Problem:
    params = {"hidden": {"w": _normal(0, 4, 5), "b": _normal(1, 5)}, "out": _normal(2, 5, 3)}

    def loss(params, example):
        hidden = jnp.tanh(example["x"] @ params["hidden"]["w"] + params["hidden"]["b"])
        return _cross_entropy(hidden @ params["out"], example["y"])

    return Problem(loss, params, {"x": _normal(3, SIZE, 4), "y": _labels()})


def conv_net() -> Problem:
    params = {"kernel": _normal(0, 3, 3, 2, 3), "scale": _normal(1, 3), "out": _normal(2, 3, 3)}

    def loss(params, example):
        image, label = example
        maps = jax.lax.conv_general_dilated(
            image[None],
            params["kernel"],
            (2, 2),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        features = jnp.mean(jax.nn.gelu(maps[0] * params["scale"]), axis=(0, 1))
        return _cross_entropy(features @ params["out"], label)

    return Problem(loss, params, (_normal(3, SIZE, 6, 6, 2), _labels()))


def lstm() -> Problem:
    params = {"x": _normal(0, 3, 16) / 2, "h": _normal(1, 4, 16) / 2, "b": _normal(2, 16)}

    def loss(params, sequence):
        def step(state, x):
            h, c = state
            i, f, g, o = jnp.split(x @ params["x"] + h @ params["h"] + params["b"], 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros(4, sequence.dtype)
        return jnp.sum(jax.lax.scan(step, (zero, zero), sequence)[1] ** 2)

    return Problem(loss, params, _normal(3, SIZE, 6, 3))


def tied() -> Problem:
    """An autoencoder with an embedding, whose decoder is the transposed embedding."""
    params = {"table": _normal(0, 5, 4), "bias": _normal(1, 4)}

    def loss(params, tokens):
        hidden = jnp.tanh(jnp.mean(params["table"][tokens], axis=0) + params["bias"])
        return _cross_entropy(params["table"] @ hidden, tokens[0])

    tokens = np.random.default_rng(2).integers(0, 5, (SIZE, 3))
    return Problem(loss, params, jnp.asarray(tokens, jnp.int32))


def linen_model() -> Problem:
    nn = pytest.importorskip("flax.linen")
    model = nn.Sequential([nn.Dense(5), nn.LayerNorm(), nn.tanh, nn.Dense(3)])

    def loss(params, example):
        x, label = example
        return _cross_entropy(model.apply(params, x), label)

    x = _normal(3, SIZE, 4)
    return Problem(loss, model.init(jax.random.key(0), x[0]), (x, _labels()))


def nnx_model() -> Problem:
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    graph, params = nnx.split(
        nnx.Sequential(nnx.Linear(4, 5, rngs=rngs), nnx.tanh, nnx.Linear(5, 3, rngs=rngs))
    )

    def loss(params, example):
        x, label = example
        return _cross_entropy(nnx.merge(graph, params)(x), label)

    return Problem(loss, params, (_normal(3, SIZE, 4), _labels()))


def equinox_model() -> Problem:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(4, 3, 5, 2, key=jax.random.key(0))
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss(params, example):
        x, label = example
        return _cross_entropy(eqx.combine(params, rest)(x), label)

    return Problem(loss, params, (_normal(3, SIZE, 4), _labels()))


MODELS = (mlp, conv_net, lstm, tied, linen_model, nnx_model, equinox_model)


@functools.cache
def _create(make: Callable[[], Problem]) -> Problem:
    """Create a problem once, in float32, so that all tests share the compiled programs."""
    with jax.enable_x64(False):
        return make()


@pytest.fixture(params=MODELS, ids=lambda make: make.__name__)
def problem(request) -> Problem:
    return _create(request.param)


@pytest.fixture
def in_dtype() -> Callable[[Any, Any], Any]:
    """Return a function that casts the floating-point leaves of a tree."""

    def cast(tree: Any, dtype: Any) -> Any:
        def one(x):
            return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

        return jax.tree.map(one, tree)

    return cast


@pytest.fixture
def dense() -> Problem:
    return _create(mlp)


@pytest.fixture
def lstm_problem() -> Problem:
    return _create(lstm)


@pytest.fixture
def examples_of() -> Callable[[Any], list[Any]]:
    """Return a function that splits a batch into a list of examples."""

    def cut(batch: Any) -> list[Any]:
        size = jax.tree.leaves(batch)[0].shape[0]
        return [jax.tree.map(lambda x: x[i], batch) for i in range(size)]  # noqa: B023

    return cut


@functools.lru_cache(maxsize=16)
def _value_and_grad(loss: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(jax.value_and_grad(loss))


@pytest.fixture
def naive(examples_of) -> Callable[..., Any]:
    """Return a function that computes losses and stacked gradients by a Python loop."""

    def stack(*leaves: Any) -> jax.Array:
        return jnp.asarray(np.stack(leaves))

    def loop(problem: Problem) -> tuple[jax.Array, Any]:
        one = _value_and_grad(problem.loss)
        batch = jax.tree.map(np.asarray, problem.batch)
        pairs = [one(problem.params, example) for example in examples_of(batch)]
        losses, grads = zip(*pairs, strict=True)
        return stack(*losses), jax.tree.map(stack, *grads)

    return loop


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Return a function that compares trees with a tolerance that depends on the dtype.

    The tolerance is relative to the largest entry of each leaf, and absolute below 1.
    """
    tolerances = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 2e-2, "float16": 3e-3}

    def close(actual: Any, expected: Any) -> None:
        assert jax.tree.structure(actual) == jax.tree.structure(expected)
        for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            assert (a.shape, a.dtype) == (e.shape, e.dtype)
            if not a.size:
                continue
            wide_a, wide_e = np.asarray(a, np.float64), np.asarray(e, np.float64)
            error = np.max(np.abs(wide_a - wide_e))
            assert error <= tolerances[str(e.dtype)] * max(1.0, np.max(np.abs(wide_e)))

    return close
