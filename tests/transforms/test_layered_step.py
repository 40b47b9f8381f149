"""Layers stepped inside the backward pass are stepped as by the whole gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

LAYERS, WIDTH = 8, 32
# A GPU's fused multiply-adds round differently, and Adam's first steps are g / |g|.
SAME = 0.0 if jax.default_backend() == "cpu" else 1e-5
RNG = np.random.default_rng(0)
X, Y = (jnp.asarray(RNG.normal(size=(2, WIDTH)), jnp.float32) for _ in range(2))
W = jnp.asarray(RNG.normal(size=(LAYERS, WIDTH, WIDTH)), jnp.float32) / WIDTH**0.5
PARAMS = {"scale": jnp.ones(WIDTH)}, {"w": W, "b": jnp.zeros((LAYERS, WIDTH))}


def first(outer: Any, x: Any, y: Any) -> Any:
    return x * outer["scale"]


def layer(p: Any, h: Any, x: Any, y: Any) -> Any:
    return h + jnp.tanh(jnp.matmul(h, p["w"], precision="highest") + p["b"])


def last(outer: Any, h: Any, x: Any, y: Any) -> Any:
    return jnp.mean((h * outer["scale"] - y) ** 2)


layered = functools.partial(fnopt.layered_step, first=first, layer=layer, last=last)


def loss(params: Any, x: Any, y: Any) -> Any:
    outer, layers = params
    kept = jax.checkpoint(layer)
    h, _ = jax.lax.scan(lambda h, p: (kept(p, h, x, y), None), first(outer, x, y), layers)
    return last(outer, h, x, y)


def plain(tx: Any) -> Any:
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = tx.update(grads, state, params)
        return fnopt.apply_updates(params, updates), state, value

    return step


def trained(step: Any, init: Any, steps: int = 3) -> tuple[Any, list[float]]:
    run, params, state, values = jax.jit(step), PARAMS, jax.jit(init)(PARAMS), []
    for _ in range(steps):
        params, state, value = run(params, state, X, Y)
        values.append(float(value))
    return params, values


def assert_close(tree: Any, other: Any, atol: float) -> None:
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "tx", [fnopt.adamw(1e-2), fnopt.offloaded(fnopt.adamw(1e-2))], ids=["adamw", "offloaded"]
)
def test_elementwise_steps_equal_the_plain_ones(tx: Any):
    step = layered(tx)
    params, values = trained(step, step.init)
    expected, others = trained(plain(fnopt.adamw(1e-2)), fnopt.adamw(1e-2).init)
    np.testing.assert_allclose(values, others, rtol=SAME)
    assert_close(params, expected, SAME)


def test_the_exact_norm_clips_as_the_plain_step():
    step = layered(fnopt.adamw(1e-2), max_norm=0.1, exact_norm=True)
    tx = fnopt.chain(fnopt.clip_by_global_norm(0.1), fnopt.adamw(1e-2))
    # Adam's first steps are g / |g|: rounding of small elements counts.
    assert_close(trained(step, step.init)[0], trained(plain(tx), tx.init)[0], 1e-5)


def test_the_previous_norm_clips_the_next_step():
    step = layered(fnopt.sgd(1e-2), max_norm=0.1)
    state = step.init(PARAMS)
    for norm in (0.0, 0.4):
        grads = jax.grad(loss)(PARAMS, X, Y)
        params, new, _ = jax.jit(step)(PARAMS, state._replace(norm=jnp.float32(norm)), X, Y)
        factor = 0.1 / max(norm, 0.1)
        expected = jax.tree.map(lambda p, g, f=factor: p - 1e-2 * f * g, PARAMS, grads)
        assert_close(params, expected, 1e-6)
        np.testing.assert_allclose(new.norm, fnopt.global_norm(grads), rtol=1e-6)
    assert jax.jit(step)(PARAMS, new, X * jnp.nan, Y)[1].norm == new.norm


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other compilers have other temporaries")
def test_the_gradient_of_one_layer_is_in_memory_at_a_time():
    size = sum(x.nbytes for x in jax.tree.leaves(PARAMS))

    def temporaries(step: Any, init: Any) -> float:
        types = jax.eval_shape(init, PARAMS)
        run = jax.jit(step, donate_argnums=(0, 1)).lower(PARAMS, types, X, Y).compile()
        memory: Any = run.memory_analysis()
        return memory.temp_size_in_bytes / size

    tx = fnopt.sgd(1e-2)
    ours, theirs = temporaries(layered(tx), layered(tx).init), temporaries(plain(tx), tx.init)
    assert theirs > 1  # all gradients
    # one layer is read ahead, one gradient, and the inputs of the layers
    inputs = (LAYERS + 1) * X.nbytes / size
    assert ours < 2.5 / LAYERS + inputs


@pytest.mark.parametrize(
    ("changed", "params", "error", "message"),
    [
        ({}, (PARAMS[0], {"w": W, "b": jnp.zeros((3, WIDTH))}), ValueError, "first axes of equal"),
        ({}, {"outer": PARAMS[0], "layers": PARAMS[1]}, ValueError, r"a pair \(outer, layers\)"),
        ({}, (PARAMS[0], jax.tree.map(lambda x: x[:0], PARAMS[1])), ValueError, "one layer"),
        ({"exact_norm": True}, PARAMS, ValueError, "without max_norm"),
        ({"layer": lambda p, h, x, y: h[:1]}, PARAMS, ValueError, "the function `layer` returned"),
        ({"last": lambda o, h, x, y: h}, PARAMS, TypeError, "expected a real scalar"),
        ({"last": lambda o, h, x, y: (h.sum(), h)}, PARAMS, TypeError, "without auxiliary"),
        ({"first": lambda o, x, y: jnp.arange(2)}, PARAMS, TypeError, "expected a floating array"),
    ],
)
def test_what_cannot_be_split_is_named(changed: Any, params: Any, error: type, message: str):
    parts = {"first": first, "layer": layer, "last": last} | changed

    def run() -> Any:
        step = fnopt.layered_step(fnopt.sgd(0.1), **parts)
        return step(params, step.init(params), X, Y)

    with pytest.raises(error, match=message):
        run()


def test_the_state_of_the_optimizer_itself_is_named():
    tx = fnopt.adamw(1e-2)
    with pytest.raises(TypeError, match=r"expected a LayeredState. Make the state with init"):
        layered(tx)(PARAMS, tx.init(PARAMS), X, Y)


def test_the_state_of_other_layers_is_named():
    step = layered(fnopt.adamw(1e-2))
    state = step.init((PARAMS[0], jax.tree.map(lambda x: x[:2], PARAMS[1])))
    with pytest.raises(
        ValueError, match=r"'0/count' .*int32\[2\], expected a first axis of length 8"
    ):
        step(PARAMS, state, X, Y)


def test_float64_steps_equal_the_plain_ones(x64: Any):
    params = jnp.ones(()), jnp.linspace(0.5, 1.0, 6).reshape(2, 3)
    tx, x = fnopt.sgd(0.1), jnp.arange(1.0, 4.0)
    step = fnopt.layered_step(
        tx, lambda o, x: o * x, lambda w, h, x: h * w, lambda o, h, x: jnp.sum(h) * o
    )
    (outer, layers), _, value = step(params, step.init(params), x)
    w, product = params[1], jnp.prod(params[1], 0) * x
    np.testing.assert_allclose(value, jnp.sum(product), rtol=1e-14)
    np.testing.assert_allclose(outer, 1 - 0.2 * jnp.sum(product), rtol=1e-14)
    np.testing.assert_allclose(layers, w - 0.1 * product / w, rtol=1e-14)
