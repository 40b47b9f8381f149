"""Models with many leaves: what is traced grows by one equation a leaf and member."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import fnopt
from fnopt.programs import jaxprs

MAKERS = {
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


@pytest.mark.parametrize("name", MAKERS)
def test_fewer_equations_than_the_peer(name):
    optax = pytest.importorskip("optax")
    with jax.numpy_dtype_promotion("standard"):
        theirs = program(optax, MAKERS[name], 40)
    assert program(fnopt, MAKERS[name], 40) < 0.6 * theirs


@pytest.mark.parametrize("name", ["adam", "adamw", "lion"])
def test_a_leaf_is_one_equation_for_every_member(name):
    tx = MAKERS[name](fnopt)
    more = program(fnopt, MAKERS[name], 30) - program(fnopt, MAKERS[name], 20)
    assert more == 10 * (len(tx.members()) + 1)  # and one that adds the update


def test_scalars_of_a_step_are_not_computed_again_for_every_leaf():
    tx, params = fnopt.adamw(1e-3), [jnp.ones(3)] * 20
    text = str(jax.make_jaxpr(tx.update)(params, tx.init(params), params))
    assert text.count("expm1") == 2  # one bias correction for each average
