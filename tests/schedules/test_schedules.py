"""What holds for every schedule."""

from __future__ import annotations

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.programs import jaxprs
from tests.schedules.cases import CASES, PEERS, ours

STEPS = 50
every = pytest.mark.parametrize("name", CASES)


def values(schedule, counts=None):
    counts = jnp.arange(STEPS, dtype=jnp.int32) if counts is None else counts
    return jax.jit(lambda s: jax.vmap(s)(counts))(schedule)


def peer_values(name):
    optax = pytest.importorskip("optax")
    with jax.numpy_dtype_promotion("standard"):
        schedule = CASES[name][0](optax)
        return np.asarray([schedule(jnp.asarray(i)) for i in range(STEPS)], np.float64)


# In float32 the cosine near its end is small next to the numbers that it is a difference of.
@pytest.mark.parametrize("name", PEERS)
def test_agrees_with_optax_at_every_step(name):
    np.testing.assert_allclose(values(ours(name)), peer_values(name), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.usefixtures("x64")
def test_agrees_with_optax_in_float64(name):
    ys = values(ours(name))
    assert ys.dtype == jnp.float64
    np.testing.assert_allclose(ys, peer_values(name), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", [n for n in CASES if n != "function"])  # which is float32's own
@pytest.mark.usefixtures("x64")
def test_known_numbers_and_traced_ones_agree(name):
    schedule, counts = ours(name), jnp.arange(STEPS, dtype=jnp.int32)
    known = jax.jit(jax.vmap(schedule))(counts)
    assert (known.dtype, known.weak_type) == (jnp.float64, False)
    np.testing.assert_allclose(known, values(schedule), rtol=1e-13, atol=1e-15)


SIZES = {
    "linear": lambda m: m.linear_schedule(0.1, 0.0, 10),
    "cosine": lambda m: m.cosine_decay_schedule(0.1, 10),
    "warmup_cosine": lambda m: m.warmup_cosine_decay_schedule(0.0, 0.1, 10, 100),
    "exponential": lambda m: m.exponential_decay(0.1, 10, 0.5),
}


@pytest.mark.parametrize("name", SIZES)
def test_known_numbers_are_no_operations(name):
    optax = pytest.importorskip("optax")
    with jax.numpy_dtype_promotion("standard"):
        mine, theirs = (
            jaxprs.program_size(jax.make_jaxpr(SIZES[name](m))(jnp.int32(3)).jaxpr)
            for m in (fnopt, optax)
        )
    assert mine <= 1.4 * theirs


@every
def test_value_is_a_strongly_typed_scalar(name):
    value = ours(name)(jnp.asarray(3, jnp.int32))
    assert (value.shape, value.dtype, value.weak_type) == ((), jnp.float32, False)


@every
def test_takes_python_and_array_counts_alike(name):
    schedule = ours(name)
    results = [schedule(c) for c in (7, jnp.asarray(7, jnp.int32), np.int64(7), jnp.uint32(7))]
    assert len({float(x) for x in results}) == 1


@every
def test_is_a_value(name):
    schedule = ours(name)
    again = fnopt.from_config(json.loads(json.dumps(fnopt.to_config(schedule))))
    assert schedule == again == pickle.loads(pickle.dumps(schedule)) == ours(name)
    assert hash(schedule) == hash(again)
    assert repr(schedule) == repr(again)


@every
def test_all_numbers_are_differentiable_leaves(name):
    """Also at the first step, at the borders of phases and long after the end."""
    schedule = ours(name)
    assert all(isinstance(leaf, float) for leaf in jax.tree.leaves(schedule))

    @jax.jit
    def slopes(schedule, counts):
        as_arrays = jax.tree.map(jnp.float32, schedule)
        return jax.vmap(lambda c: jax.grad(lambda s: s(c))(as_arrays))(counts)

    counts = jnp.asarray([0, 1, 4, 5, 8, 10, 20, 25, 35, 1000, 2**31 - 1], jnp.int32)
    for leaf in jax.tree.leaves(slopes(schedule, counts)):
        assert bool(jnp.isfinite(leaf).all())


@every
@pytest.mark.usefixtures("x64")
def test_derivatives_match_differences(name):
    schedule, h = ours(name), 1e-6
    leaves, treedef = jax.tree.flatten(schedule)

    def value(leaves):
        return treedef.unflatten(leaves)(13)

    for i, slope in enumerate(jax.grad(value)(leaves)):
        up, down = ([x + d * (i == j) for j, x in enumerate(leaves)] for d in (h, -h))
        difference = (value(up) - value(down)) / (2 * h)
        np.testing.assert_allclose(slope, difference, rtol=1e-6, atol=1e-9)


@every
def test_one_trace_for_all_values(name):
    traces = []

    @jax.jit
    def at(schedule, count):
        traces.append(count)
        return schedule(count)

    schedule = ours(name)
    at(schedule, jnp.asarray(1))
    at(jax.tree.map(lambda x: 1.5 * x, schedule), jnp.asarray(2))
    assert len(traces) == 1


@every
def test_huge_counts(name):
    assert bool(jnp.isfinite(ours(name)(jnp.asarray(2**31 - 1, jnp.int32))))


def test_in_an_optimizer():
    tx = fnopt.sgd(fnopt.linear_schedule(1.0, 0.0, transition_steps=4))
    params = state = {"w": jnp.ones(2)}
    state = tx.init(params)
    rates = []
    for _ in range(5):
        updates, state = tx.update(params, state, params)
        rates.append(-float(updates["w"][0]))
    assert rates == [1.0, 0.75, 0.5, 0.25, 0.0]
