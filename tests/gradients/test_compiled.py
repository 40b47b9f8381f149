"""Calls outside of `jax.jit` are compiled once, and nothing that they read is stale."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import (
    clipped_grad,
    gradient_similarity,
    gradient_statistics,
    hardest_examples,
    per_example_norms,
)
from fnopt.programs._calls import _cached_program
from fnopt.programs._keys import MAX_PROGRAMS
from fnopt.programs._traced_function import KeyedJaxpr

PARAMS = {"w": jnp.array([0.5, -0.25]), "b": np.float32(2)}
BATCH = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]], np.float32)
OTHER = np.array([[0.5, -1.0], [2.0, 0.75]], np.float32)


def with_other(similarity):
    return lambda *args, **kwargs: similarity(*args, other=OTHER, **kwargs)


FUNCTIONS = {
    "clipped_grad": lambda loss, **options: clipped_grad(loss, 1.0, **options),
    "gradient_statistics": gradient_statistics,
    "hardest_examples": lambda loss, **options: hardest_examples(loss, 2, **options),
    "per_example_norms": per_example_norms,
    "norms by leaf": lambda loss, **options: per_example_norms(loss, groups="leaf", **options),
    "gradient_similarity": gradient_similarity,
    "of two batches": lambda loss, **options: with_other(gradient_similarity(loss, **options)),
}


def check_the_same(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        # An inner product is rounded as the largest of them are.
        np.testing.assert_allclose(
            a, b, rtol=1e-5, atol=1e-6 * max(1, np.max(np.abs(b), initial=0))
        )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_second_call_compiles_nothing(name, caplog):
    def compilations(scale):
        caplog.clear()

        def loss(params, x, power):  # made anew in every call
            return jnp.tanh((scale * x) @ params["w"] + params["b"]) ** power

        with jax.log_compiles():
            FUNCTIONS[name](loss, argnums=0, batch_argnums=1)(PARAMS, BATCH, 2)
        return sum("Finished XLA compilation" in r.getMessage() for r in caplog.records)

    assert compilations(np.array([1.5, 1.0])) > 0
    assert compilations(np.array([2.5, 2.0])) == 0


# One function with every kind of argument: they all call their program in the same way.
OPTIONS = {
    "clipped_grad": {"method": "ghost"},
    "hardest_examples": {"by": "loss"},
    "of two batches": {"method": "vmap"},
}
MASKED = {"clipped_grad", "hardest_examples"}


@pytest.mark.parametrize("name", OPTIONS)
def test_nothing_that_the_loss_reads_is_stale(name):
    table, array = {"scale": 1.0}, np.ones(2, np.float32)

    def loss(params, x, key, shift=0.0, names=()):
        z = jnp.tanh((x * array) @ params["w"]) * params["b"] + shift
        return table["scale"] * z**2 + jax.random.uniform(key) * len(names), {"z": z, "one": 1.0}

    fn = FUNCTIONS[name](loss, has_aux=True, **OPTIONS[name])

    def check(**given):
        given = {"key": jax.random.key(0), **given}
        words = {k: given.pop(k) for k in ("names",) if k in given}
        fresh = jax.jit(lambda given: fn(PARAMS, BATCH, **words, **given))
        check_the_same(fn(PARAMS, BATCH, **words, **given), fresh(given))

    check()
    table["scale"] = 3.0
    check()
    array[0] = -2.0
    if name in MASKED:
        check(where=jnp.array([True, False, True]))
    check(shift=2.0, names=("a", "b"))
    check(key=jax.random.key(1))


def test_limits_are_those_of_the_call():
    def loss(params, x):
        return x @ params["w"] + params["b"] ** 2

    for limits in ({"w": 0.5, "b": 3}, {"w": jnp.inf, "b": 0.1}):
        fn = clipped_grad(loss, limits, reduction="mean")
        check_the_same(fn(PARAMS, BATCH), jax.jit(fn)(PARAMS, BATCH))


def test_other_examples_may_have_another_type():
    def loss(params, x):
        return x.astype(np.float32) @ params["w"] + params["b"] ** 2

    similarity = gradient_similarity(loss)
    got = similarity(PARAMS, BATCH, other=np.array([[1, 2], [0, 3]]))
    check_the_same(got, similarity(PARAMS, BATCH, other=np.array([[1, 2], [0, 3]], np.float32)))


def test_programs_of_other_numbers_are_kept_up_to_a_limit():
    before = sum(type(x) is KeyedJaxpr for x in gc.get_objects())
    # A number of Python that changes in every call makes another program of every call.
    for k in range(2 * MAX_PROGRAMS):
        per_example_norms(lambda w, x, k=k: k * (x @ w), method="vmap")(PARAMS["w"], BATCH)
    assert _cached_program.cache_info().currsize == MAX_PROGRAMS
    gc.collect()
    records = [x for x in gc.get_objects() if type(x) is KeyedJaxpr]
    assert len(records) <= before + MAX_PROGRAMS  # those that went are held by nothing else
