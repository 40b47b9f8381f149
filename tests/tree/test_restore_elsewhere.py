"""States that go into an optimizer of another shape: the next step is that of a run with it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import tree

# Params that are called like slots, and like what stands around slots.
PARAMS = {
    "mu": {"w": jnp.ones((2, 2)), "mu": {"w": jnp.full(3, 2.0)}},
    "0": [jnp.full(3, 3.0), jnp.full(3, -1.0)],
    "count": jnp.ones(2),
}
LABELS = {"mu": "a", "0": "b", "count": "a"}
LINE = fnopt.linear_schedule(1e-3, 0.0, transition_steps=100)
STEPS = 7

# All make the steps of Adam with a rate of 1e-3: nothing clips, nothing is skipped.
SHAPES = {
    "adam": lambda: fnopt.adam(1e-3),
    "inner": lambda: fnopt.chain(fnopt.clip_by_global_norm(1e6), fnopt.adam(1e-3)),
    "deep": lambda: fnopt.chain(
        fnopt.clip(1e6), fnopt.chain(fnopt.clip(1e6), fnopt.chain(fnopt.adam(1e-3)))
    ),
    "last": lambda: fnopt.chain(
        fnopt.reduce_on_plateau(0.5, jnp.inf), fnopt.identity(), fnopt.adam(1e-3)
    ),
    "partition": lambda: fnopt.partition({"a": fnopt.adam(1e-3), "b": fnopt.adam(1e-3)}, LABELS),
    "groups": lambda: fnopt.param_groups(fnopt.adam, {"0/*": {"learning_rate": 1e-3}}, 1e-3),
    "finite": lambda: fnopt.apply_if_finite(fnopt.adam(1e-3)),
    "accumulate": lambda: fnopt.chain(fnopt.accumulate(fnopt.adam(1e-3), 1)),
    "flat": lambda: fnopt.chain(fnopt.flatten(fnopt.adam(1e-3))),
}


def gradient(i: int) -> Any:
    return jax.tree.map(lambda p: p * jnp.cos(0.5 * i) + 0.1, PARAMS)


def run(tx: Any, steps: int = STEPS) -> Any:
    @jax.jit
    def step(state, g):
        return tx.update(g, state, PARAMS, value=1.0)[1]

    state = tx.init(PARAMS)
    for i in range(steps):
        state = step(state, gradient(i))
    return state


def plain(node: Any) -> Any:
    """As flax's serialization and orbax without a target give it back: dicts of strings."""
    if hasattr(node, "_fields"):
        node = node._asdict()
    if isinstance(node, (tuple, list)):
        node = {str(i): x for i, x in enumerate(node)}
    if isinstance(node, dict):
        return {str(k): plain(v) for k, v in node.items()}
    return None if node is None else np.asarray(node)


def listed(node: Any) -> Any:
    """As JSON-like stores give it back: lists for tuples."""
    if hasattr(node, "_fields"):
        return {k: listed(v) for k, v in node._asdict().items()}
    if isinstance(node, (tuple, list)):
        return [listed(x) for x in node]
    return {k: listed(v) for k, v in node.items()} if isinstance(node, dict) else node


@pytest.fixture(scope="module")
def states():
    return {name: run(make()) for name, make in SHAPES.items()}


@pytest.mark.parametrize("form", [lambda x: x, plain, listed], ids=["state", "plain", "listed"])
@pytest.mark.parametrize("new", SHAPES)
def test_the_next_step_is_that_of_a_run_in_the_new_shape(new, form, states):
    tx = SHAPES[new]()
    update = jax.jit(lambda state: tx.update(gradient(STEPS), state, PARAMS, value=1.0)[0])
    expected = update(states[new])
    for old in SHAPES:
        if {old, new} >= {"flat"} and {old, new} & {"partition", "groups"}:
            continue  # a vector of all params has no place in a group of some
        back, report = tree.restore(tx.init(PARAMS), form(states[old]))
        assert not report.reshaped, old
        for a, b in zip(*map(jax.tree.leaves, (update(back), expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=f"{old} to {new}")


def test_the_step_of_adam_after_a_thousand_equal_gradients():
    g = jnp.full(3, 0.5)
    old, new = fnopt.adam(1e-3), fnopt.chain(fnopt.clip_by_global_norm(10.0), fnopt.adam(1e-3))
    state, _ = jax.lax.scan(lambda s, _: (old.update(g, s)[1], None), old.init(g), length=1000)
    for saved in (state, plain(state), listed(state)):
        back, report = tree.restore(new.init(g), saved)
        assert report.complete
        # Averages of one gradient, corrected for their start: m / sqrt(v) is its sign.
        np.testing.assert_allclose(new.update(g, back)[0], -0.001, rtol=1e-4)


def test_a_count_without_its_moments_stays_fresh():
    saved = run(fnopt.sgd(LINE))
    back, report = tree.restore(fnopt.adamw(LINE).init(PARAMS), saved)
    assert int(back[0].count) == 0
    assert int(back[2].count) == STEPS
    assert "0/count" in report.fresh
    # neither where a count of the same place was saved, nor where the number is given
    for other, count in ((plain(run(fnopt.adam(1e-3)))["0"] | {"mu": {}, "nu": {}}, None), ({}, 5)):
        back, report = tree.restore(fnopt.adam(1e-3).init(PARAMS), {"0": other}, count=count)
        assert int(back[0].count) == 0
        assert "0/count" in report.fresh


def test_numbers_of_a_state_come_with_its_slots():
    old, new = fnopt.prodigy(), fnopt.chain(fnopt.clip(1e6), fnopt.prodigy())
    for form in (lambda x: x, plain, listed):
        back, report = tree.restore(new.init(PARAMS), form(run(old)))
        assert report.complete
        jax.tree.map(np.testing.assert_array_equal, back, run(new))


def test_two_slots_of_one_name_keep_their_order():
    def make(*more):
        return fnopt.chain(*more, fnopt.trace(0.5), fnopt.trace(0.9))

    new = make(fnopt.clip(1e6))
    for form in (lambda x: x, plain, listed):
        back, report = tree.restore(new.init(PARAMS), form(run(make())))
        assert report.complete
        jax.tree.map(np.testing.assert_array_equal, back, run(new))
        # Which of two is the one that is left isn't known.
        _, report = tree.restore(
            fnopt.chain(fnopt.clip(1e6), fnopt.identity(), fnopt.trace(0.5)).init(PARAMS),
            form(run(make())),
        )
        assert len(report.fresh) == len(jax.tree.leaves(PARAMS))


def test_a_state_inside_of_other_containers():
    saved = run(fnopt.adam(1e-3))
    fresh = fnopt.chain(fnopt.clip(1.0), fnopt.adam(1e-3)).init(PARAMS)
    for form in (lambda x: x, plain):
        for wrap, unwrap in (
            (lambda x: {"params": PARAMS, "opt": [x]}, lambda x: x["opt"][0]),
            (lambda x: [x, PARAMS], lambda x: x[0]),
            (lambda x: (PARAMS, {"opt_state": x}), lambda x: x[1]["opt_state"]),
        ):
            back, report = tree.restore(wrap(fresh), wrap(form(saved)))
            assert report.complete, report
            jax.tree.map(np.testing.assert_array_equal, unwrap(back)[1], saved)


def test_names_that_differ_in_all_places_are_pointed_out():
    fresh = {"encoder": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}}
    saved = {"a": {"b": jnp.ones(3), "k": jnp.ones((2, 3))}}
    _, report = tree.restore(fresh, saved)
    assert report.alike
    assert "jax.tree.unflatten(jax.tree.structure(fresh), jax.tree.leaves(saved))" in str(report)
    for other in ({"a": jnp.ones(3)}, {"a": {"b": jnp.ones((2, 3)), "k": jnp.ones(3)}}):
        _, report = tree.restore(fresh, other)
        assert not report.alike
    assert not tree.restore(fresh, fresh)[1].alike
