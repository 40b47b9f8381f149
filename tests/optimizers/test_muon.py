"""Muon and NorMuon: layers, splits and stacks; what is refused; how large the program is."""

from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import MatrixDimensionNumbers as Numbers
from fnopt.programs import jaxprs


def noise(shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@functools.lru_cache
def first_step(tx, dtype="float32"):
    """The first updates of the tree below, as float64."""
    g = grads()
    run = jax.jit(lambda g: tx.update(g, tx.init(g), g)[0])
    return jax.tree.map(lambda x: np.asarray(x, np.float64), run(fnopt.tree.cast(g, dtype)))


@functools.lru_cache
def grads():
    qkv = noise((6, 12), 1)
    return {
        "conv": noise((3, 2, 4)),
        "stack": noise((2, 4, 6), 2),
        "qkv": qkv,
        "grouped": noise((6, 10), 3),
        "plain": noise((6, 4), 4),
        "tall": noise((6, 2), 5),
        "wide": noise((2, 6), 6),
        "bias": noise((4,), 7),
    }


AXES = {
    "conv": Numbers((0, 1), 2),
    "stack": Numbers(1, -1),
    "qkv": Numbers(0, 1, split=3),
    "grouped": Numbers(0, 1, split=(6, 2, 2)),
    "plain": Numbers(),
    "tall": Numbers(),
    "wide": Numbers(),
    "bias": None,
}


def expected(x):
    """What the first step of `muon(1.0)` makes of one matrix, from its SVD."""
    u, s, v = np.linalg.svd(np.asarray(x, np.float64), full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return -np.sqrt(max(1, x.shape[1] / x.shape[0])) * (u * s) @ v


def parts():
    """Every leaf of the tree in its matrices, and how they are put together."""
    g = {k: np.asarray(v) for k, v in grads().items()}
    return {
        "conv": expected(g["conv"].reshape(6, 4)).reshape(3, 2, 4),
        "stack": np.stack([expected(x) for x in g["stack"]]),
        "qkv": np.concatenate([expected(g["qkv"][:, i : i + 4]) for i in (0, 4, 8)], axis=1),
        "grouped": np.concatenate(
            [expected(g["grouped"][:, a:b]) for a, b in ((0, 6), (6, 8), (8, 10))], axis=1
        ),
        **{name: expected(g[name]) for name in ("plain", "tall", "wide")},
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stacks_splits_and_transposes_are_matrix_by_matrix(dtype):
    out = first_step(fnopt.muon(1.0, weight_dimension_numbers=AXES), dtype)
    # 16 bits: the gradients are rounded, the arithmetic is float32
    tolerance = 2e-4 if dtype == "float32" else 0.1
    for name, x in parts().items():
        np.testing.assert_allclose(out[name], x, atol=tolerance, err_msg=name)
    np.testing.assert_allclose(out["bias"], -1.47368 * np.sign(grads()["bias"]), atol=0.01)


def test_patterns_and_functions_say_which_leaves_are_matrices():
    tx = fnopt.muon(1.0, weight_dimension_numbers=fnopt.by_pattern({"tall": False}, True))
    labels = fnopt.select(tx.labels, grads())
    matrices = {name for name, label in labels.items() if label == "muon"}
    assert matrices == {"qkv", "grouped", "plain", "wide"}
    by_path = fnopt.by_path(lambda path, leaf: Numbers((0, 1), 2) if path == "conv" else False)
    labels = fnopt.select(fnopt.muon(1.0, weight_dimension_numbers=by_path).labels, grads())
    assert [name for name, label in labels.items() if label == "muon"] == ["conv"]
    every = fnopt.select(fnopt.muon(1.0, weight_dimension_numbers=Numbers()).labels, grads())
    assert [name for name, label in every.items() if label == "adam"] == ["bias"]


def test_dimension_numbers_are_plain_configuration():
    for tx in (fnopt.muon(0.1, weight_dimension_numbers=AXES), fnopt.scale_by_soap()):
        config = json.loads(json.dumps(fnopt.to_config(tx)))
        assert fnopt.from_config(config) == tx
        assert hash(fnopt.from_config(config)) == hash(tx)


def test_stacked_optimizers_are_a_sweep():
    rates, g = jnp.asarray([0.1, 0.2]), {"w": noise((2, 3)), "b": noise((2,))}

    def first(tx):
        return tx.update(g, tx.init(g), g)[0]

    together = jax.jit(lambda rates: jax.vmap(first)(jax.vmap(fnopt.muon)(rates)))(rates)
    for x in jax.tree.leaves(together):
        np.testing.assert_allclose(x[1], 2 * x[0], rtol=1e-5)


def test_normuon_is_its_published_step():
    matrices = fnopt.chain(
        fnopt.ema(0.9),
        fnopt.orthogonalize(),
        fnopt.normalize_neurons(0.8),
        fnopt.scale_by_matrix_shape(0.2),
        fnopt.scale_by_learning_rate(0.5),
    )
    tx = fnopt.partition_matrices(matrices, fnopt.adamw(0.5), label="normuon")
    g = {"w": noise((4, 12, 3))}
    mu, nu, theirs = np.zeros((12, 3)), np.zeros(3), []
    for t, x in enumerate(np.asarray(g["w"], np.float64), 1):
        mu = 0.9 * mu + 0.1 * x
        O = -expected(mu)  # noqa: E741 - the paper's letter
        nu = 0.8 * nu + 0.2 * np.mean(O**2, axis=0)
        V = O / (np.sqrt(nu) + 1e-10)
        theirs.append(-0.5 * 0.2 * np.sqrt(12) * V * np.linalg.norm(O) / np.linalg.norm(V))
        assert t  # the correction of mu is a number, which the norm takes out

    def body(state, g):
        updates, state = tx.update(g, state, g)
        return state, updates

    ours = jax.jit(lambda g: jax.lax.scan(body, tx.init({"w": g["w"][0]}), g)[1])(g)["w"]
    np.testing.assert_allclose(ours, np.stack(theirs), atol=2e-4)
    state = tx.init({"w": g["w"][0]})
    assert [x.shape for x in fnopt.slots(state)["normuon/2/nu"]["w"]] == [(1, 3)]


def layers(n, d=4):
    matrix, up, down = jnp.ones((d, d)), jnp.ones((d, 4 * d)), jnp.ones((4 * d, d))
    layer = {"q": matrix, "k": matrix, "v": matrix, "o": matrix, "up": up, "down": down}
    return {f"layer_{i}": {**layer, "bias": jnp.ones(d)} for i in range(n)}


def program(m, tx, params):
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return m.apply_updates(params, updates), state

    state = jax.eval_shape(tx.init, params)
    return jaxprs.program_size(jax.make_jaxpr(step)(params, state, params).jaxpr)


def test_the_program_of_24_layers_is_a_quarter_of_that_leaf_by_leaf():
    optax = pytest.importorskip("optax")
    with jax.numpy_dtype_promotion("standard"):
        theirs = program(optax, optax.contrib.muon(0.1), layers(24))
    assert program(fnopt, fnopt.muon(0.1), layers(24)) < theirs / 4


def test_a_step_that_is_not_finite_is_refused_whole():
    tx, params = fnopt.apply_if_finite(fnopt.muon(0.1)), {"a": noise((2, 3)), "b": noise((2, 3), 1)}
    state = tx.init(params)
    bad = {"a": params["a"], "b": params["b"].at[0, 0].set(jnp.nan)}
    updates, after = jax.jit(tx.update)(bad, state, params)
    assert all((x == 0).all() for x in jax.tree.leaves(updates))
    jax.tree.map(np.testing.assert_array_equal, after.inner_state, state.inner_state)


REFUSED = {
    "no such axis": (Numbers(0, 3), "'w' has shape .2, 3., but output_axis = .3,."),
    "overlap": (Numbers(0, (0, 1)), "overlap"),
    "uneven": (Numbers(0, 1, split=2), "split = 2"),
    "sizes": (Numbers(0, 1, split=(2, 2)), "split = .2, 2."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_that_do_not_fit(name):
    numbers, message = REFUSED[name]
    for make in (fnopt.muon, lambda _, **k: fnopt.orthogonalize(weight_dimension_numbers=numbers)):
        with pytest.raises(ValueError, match=message):
            make(0.1, weight_dimension_numbers=numbers).init({"w": jnp.ones((2, 3))})


def test_what_is_no_matrix():
    with pytest.raises(ValueError, match=r"leaf 'b' has shape \(3,\), which isn't a matrix"):
        fnopt.orthogonalize().init({"w": jnp.ones((2, 3)), "b": jnp.ones(3)})
    with pytest.raises(ValueError, match="expected axes from 0 to 0"):
        fnopt.muon(0.1, weight_dimension_numbers={"b": Numbers()}).init({"b": jnp.ones(3)})
    with pytest.raises(ValueError, match="which the tree lacks"):
        fnopt.muon(0.1, weight_dimension_numbers={"v": Numbers()}).init({"w": jnp.ones((2, 3))})
    tree = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    with pytest.raises(ValueError, match=r"no entry for the leaves \['b'\], expected one for"):
        fnopt.muon(0.1, weight_dimension_numbers={"w": Numbers()}).init(tree)
    with pytest.raises(TypeError, match="by_path"):
        fnopt.muon(0.1, weight_dimension_numbers=lambda params: None)
    with pytest.raises(TypeError, match="expected fnopt"):
        fnopt.muon(0.1, weight_dimension_numbers={"w": 3})
    with pytest.raises(TypeError, match=r"the axis is 0.5, expected an int"):
        Numbers(0.5, 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="split"):
        Numbers(0, 1, split=0)


@pytest.mark.parametrize("make", [fnopt.muon, fnopt.soap, fnopt.shampoo, fnopt.psgd_kron])
def test_a_leaf_without_numbers_is_named(make):
    with pytest.raises(TypeError, match=r"leaf 'act'.*expected a floating array"):
        make(0.1).init({"act": jnp.tanh, "w": jnp.ones((2, 2))})


MOVED = {
    "ns_steps": (fnopt.muon, "orthogonalizer=fnopt.orthogonalize"),
    "adam_b1": (fnopt.soap, "others=fnopt.adamw"),
    "weight_decay_mask": (fnopt.shampoo, "fnopt.add_decayed_weights"),
    "mu_dtype": (fnopt.kl_shampoo, "fnopt.precision_policy"),
    "muon_weight_dimension_numbers": (fnopt.normuon, "weight_dimension_numbers"),
    "random_seed": (fnopt.psgd_kron, "fnopt.partition_matrices"),
}


@pytest.mark.parametrize("name", MOVED)
def test_the_error_says_where_an_argument_moved(name):
    recipe, message = MOVED[name]
    with pytest.raises(TypeError, match=f"unknown argument '{name}'.*Write .*{message}"):
        recipe(0.1, **{name: None})


def test_parts_take_the_axes_of_the_partition():
    inner = fnopt.chain(fnopt.cautious(fnopt.orthogonalize()), fnopt.scale_by_learning_rate(1.0))
    tx = fnopt.partition_matrices(inner, fnopt.sgd(1.0), {"w": Numbers(1, 2), "b": None})
    g = {"w": noise((2, 3, 4)), "b": noise((2,))}
    np.testing.assert_allclose(tx.update(g, tx.init(g), g)[0]["b"], -g["b"])
    assert "reduction_axis=(1,)" in repr(tx.transforms["matrix"])


def test_the_decay_may_be_a_transform():
    decay = fnopt.add_decayed_weights(0.1, {"v": True, "w": False})
    params = {"v": noise((2, 3)), "w": noise((2, 3))}
    plain, masked = fnopt.muon(1.0), fnopt.muon(1.0, weight_decay=decay)
    found, expected = (tx.update(params, tx.init(params), params)[0] for tx in (masked, plain))
    np.testing.assert_allclose(found["w"], expected["w"])
    np.testing.assert_allclose(found["v"], expected["v"] - 0.1 * params["v"], rtol=1e-5)
