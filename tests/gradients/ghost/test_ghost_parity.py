"""Norms and sums that are never formed against `jax.vmap(jax.grad)`, on every kind of model."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from parity import ghost_parity

from fnopt.gradients import clipped_grad, gradient_statistics, per_example_norms
from fnopt.gradients.ghost import ghost_report
from tests.contract.test_accelerators import unstated

# These use a param in a way that no rule knows; it is left to vmap, and only it.
LEFT_TO_VMAP = {"branches": {"v", "w"}, "own_derivative": {"w"}, "learned_start": {"h0"}}


@functools.cache
def made(make):
    return make()


@functools.cache
def report_of(make):
    return ghost_report(made(make).loss)(*made(make)[1:])


@pytest.mark.parametrize("make", zoo.MODELS, ids=lambda make: make.__name__)
def test_equals_vmap_of_grad(make):
    problem = made(make)
    parity = jax.jit(ghost_parity(problem.loss, chunk_size=None))(*problem[1:])
    assert parity.norm_error.shape == (zoo.SIZE,)
    assert parity.worst < 1e-6
    report = report_of(make)
    left = {p.name for p in report.params if p.rule == "vmap"}
    assert left == LEFT_TO_VMAP.get(make.__name__, set()), report


@pytest.mark.parametrize("make", zoo.MODELS, ids=lambda make: make.__name__)
def test_products_beside_those_of_the_model_state_their_precision(make):
    problem = made(make)
    for fn in (clipped_grad(problem.loss, 1.0, method="ghost"), gradient_statistics(problem.loss)):
        assert not unstated(jax.make_jaxpr(fn)(*problem[1:]).jaxpr)


@pytest.mark.parametrize(
    "make",
    [zoo.conv_net, zoo.experts, zoo.used_three_times, zoo.transformer, zoo.bag_of_words],
    ids=lambda make: make.__name__,
)
def test_mean_and_variance(make):
    problem = made(make)

    @jax.jit
    def both(*args):
        ways = (gradient_statistics(problem.loss, method=m)(*args) for m in ("ghost", "vmap"))
        return [(found.mean, found.variance) for found in ways]

    (mean, variance), (formed_mean, formed) = both(*problem[1:])
    scale = max(np.abs(x).max() for x in jax.tree.leaves(formed_mean))
    for x, y in zip(jax.tree.leaves(mean), jax.tree.leaves(formed_mean), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-6 * scale)
    # What is common to several leaves that enter together is with the first one.
    np.testing.assert_allclose(*(sum(jax.tree.leaves(v)) for v in (variance, formed)), rtol=1e-5)


def test_nearly_all_params_of_the_zoo_are_covered():
    reports = [report_of(make) for make in zoo.MODELS]
    assert len(reports) >= 25
    numbers = [(p.rule, np.prod(p.shape)) for r in reports for p in r.params]
    assert sum(n for rule, n in numbers if rule != "vmap") >= 0.95 * sum(n for _, n in numbers)


def test_parity_sees_errors(monkeypatch):
    problem = zoo.mlp()
    assert jax.jit(ghost_parity(problem.loss))(*problem[1:]).worst < 1e-6
    wrong = "fnopt.gradients.ghost._tape.squared_norms"
    monkeypatch.setattr(wrong, lambda group, *_: {group.leaves[0]: jnp.ones(zoo.SIZE)})
    assert jax.jit(ghost_parity(problem.loss))(*problem[1:]).norm_error.max() > 1e-2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("make", [zoo.conv_net, zoo.transformer, zoo.rematerialised])
def test_low_precision(make, dtype):
    problem = made(make)

    def cast(x):
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    def loss(params, example):
        example = jax.tree.map(cast, example)
        return problem.loss(jax.tree.map(cast, params), example).astype(jnp.float32)

    parity = jax.jit(ghost_parity(loss, chunk_size=None))(*problem[1:])
    assert parity.worst < (3e-2 if dtype == "bfloat16" else 5e-3)


def test_float64(x64):
    problem = jax.tree.map(
        lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x,
        tuple(zoo.conv_net()[1:]),
    )
    parity = jax.jit(ghost_parity(zoo.conv_net().loss, chunk_size=None))(*problem)
    assert parity.norm_error.dtype == jnp.float64
    assert parity.worst < 1e-14


def test_gradients_that_cancel():
    # Both positions together give exactly nothing; rounding must not make that NaN.
    def loss(w, x):
        y = x @ w
        return jnp.sum(y[0] - y[1])

    x = jnp.broadcast_to(zoo.normal(0, 3, 1, 40), (3, 2, 40))
    w = zoo.normal(1, 40, 50)
    assert ghost_report(loss)(w, x).params[0].rule == "gram"
    norms = per_example_norms(loss, method="ghost")(w, x)
    np.testing.assert_allclose(norms, 0.0, atol=1e-3)
    slope = jax.grad(lambda x: jnp.sum(per_example_norms(loss, method="ghost")(w, x)))(x)
    assert jnp.all(jnp.isfinite(slope))


def test_chunks_and_an_outer_vmap():
    problem = zoo.scanned_layers()
    whole = clipped_grad(problem.loss, 0.5, method="ghost", chunk_size=5)
    chunked = clipped_grad(problem.loss, 0.5, method="ghost", chunk_size=2)
    twice = jax.tree.map(lambda p: jnp.stack([0.5 * p, p]), problem.params)
    expected = jax.jit(whole)(*problem[1:])
    actual = jax.jit(jax.vmap(chunked, (0, None)))(twice, problem.batch)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a[1], e, rtol=2e-5, atol=2e-6)


def test_losses_that_close_over_traced_values():
    problem = zoo.mlp()

    @jax.jit
    def run(params, batch, scale):
        def loss(params, example):
            return scale * problem.loss(params, example)

        return per_example_norms(loss, method="ghost")(params, batch)

    norms = run(*problem[1:], jnp.float32(3.0))
    np.testing.assert_allclose(
        norms, 3 * per_example_norms(problem.loss, method="vmap")(*problem[1:]), rtol=1e-5
    )


def test_keys_and_aux():
    def loss(w, x, *, key):
        kept = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.sum(jnp.tanh(jnp.where(kept, x, jnp.zeros_like(x)) @ w)), kept

    args = zoo.normal(0, 6, 4), zoo.vectors(6)
    both = {}
    for method in ("ghost", "vmap"):
        norms = per_example_norms(loss, has_aux=True, method=method)
        both[method] = norms(*args, key=jax.random.key(1))
    np.testing.assert_array_equal(both["ghost"][1], both["vmap"][1])
    np.testing.assert_allclose(both["ghost"][0], both["vmap"][0], rtol=1e-6)
