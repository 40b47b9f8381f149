"""How many equations the program of a step has, for one leaf and for many."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import fnopt
from fnopt.programs import jaxprs

MAKERS = {
    "sgd": lambda m: m.sgd(1e-3),
    "adam": lambda m: m.adam(1e-3),
    "adamw": lambda m: m.adamw(1e-3),
    "lion": lambda m: m.lion(1e-3),
    "clip + adamw": lambda m: m.chain(m.clip_by_global_norm(1.0), m.adamw(1e-3)),
}


def program(m, make, leaves):
    params = {f"leaf_{i}": jnp.ones((2, 3)) for i in range(leaves)}
    tx = make(m)

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return m.apply_updates(params, updates), state

    return jaxprs.program_size(jax.make_jaxpr(step)(params, tx.init(params), params).jaxpr)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "sgd"])
def test_fewer_equations_than_the_peer(name):
    optax = pytest.importorskip("optax")
    with jax.numpy_dtype_promotion("standard"):
        theirs = program(optax, MAKERS[name], 40)
    assert program(fnopt, MAKERS[name], 40) < 0.6 * theirs


@pytest.mark.parametrize(
    ("name", "equations"), [("sgd", 2), ("adam", 3), ("adamw", 4), ("lion", 4)]
)
def test_a_leaf_is_one_equation_or_the_operations_of_a_short_formula(name, equations):
    # A formula of one operation stands in the step itself; adding the update is one more.
    more = program(fnopt, MAKERS[name], 30) - program(fnopt, MAKERS[name], 20)
    assert more == 10 * equations


ALONE = {"sgd": 2, "adam": 30, "adamw": 32, "lion": 11, "clip + adamw": 50}


@pytest.mark.parametrize("name", ALONE)
def test_the_step_of_a_single_leaf(name):
    assert program(fnopt, MAKERS[name], 1) <= ALONE[name]


@pytest.mark.parametrize("name", ALONE)
def test_known_and_traced_hyper_parameters_give_the_same_step(name):
    tx, params = MAKERS[name](fnopt), {"w": jnp.asarray([1.0, -2.0, 0.5])}
    state = tx.init(params)
    for _ in range(2):
        _, state = tx.update(params, state, params)
    expected = tx.update(params, state, params)
    known = jax.jit(tx.update)(params, state, params)
    traced = jax.jit(lambda tx, *args: tx.update(*args))(tx, params, state, params)
    for got in (known, traced):
        assert jax.tree.structure(got) == jax.tree.structure(expected)
        for x, y in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
            assert (x.dtype, x.weak_type) == (y.dtype, y.weak_type)
            assert jnp.allclose(x, y, rtol=3e-6, atol=0)


def test_scalars_of_a_step_are_not_computed_again_for_every_leaf():
    tx, params = fnopt.adamw(1e-3), [jnp.ones(3)] * 20
    text = str(jax.make_jaxpr(tx.update)(params, tx.init(params), params))
    assert text.count("expm1") == 2  # one bias correction for each average
