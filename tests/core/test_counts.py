"""A member keeps a step count where it needs one: for its formula, or for a schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import tree

PARAMS = {"w": jnp.ones(2)}
LINE = fnopt.linear_schedule(1.0, 0.0, transition_steps=10)


def after(tx, steps, state=None):
    state = tx.init(PARAMS) if state is None else state
    for _ in range(steps):
        state = tx.update(PARAMS, state, PARAMS)[1]
    return state


@pytest.mark.parametrize(
    ("tx", "counts"),
    [
        (fnopt.sgd(0.1), 0),
        (fnopt.sgd(0.1, momentum=0.9), 0),
        (fnopt.sgd(jnp.float32(0.1)), 0),
        (fnopt.sgd(LINE), 1),
        (fnopt.sgd(fnopt.schedule(lambda count: jnp.where(count < 1, 0.5, 0.25))), 1),
        (fnopt.lion(1e-3), 0),
        (fnopt.rmsprop(1e-3), 0),
        (fnopt.rmsprop(1e-3, bias_correction=True), 1),
        (fnopt.ema(0.9, debias=False), 0),
        (fnopt.fromage(0.1), 0),
        (fnopt.adam(1e-3), 1),
        (fnopt.amsgrad(1e-3, bias_correction_mu=False, bias_correction_nu=False), 0),
        (fnopt.adamw(1e-3), 1),
        (fnopt.adamw(LINE), 2),
        (fnopt.adamw(LINE, weight_decay=LINE), 3),
        (fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adamw(1e-3)), 1),
        (fnopt.precision_policy(fnopt.adam(1e-3), {"mu": "bfloat16"}), 1),
        (fnopt.precision_policy(fnopt.adam(1e-3), {"mu": "bfloat16"}, key=0), 2),
    ],
    ids=str,
)
def test_how_many_counts_a_state_has(tx, counts):
    for state in (tx.init(PARAMS), after(tx, 2)):
        found = tree.get_all_with_path(state, "count")
        assert len(found) == counts
        assert all(count.shape == () and count.dtype == jnp.int32 for _, count in found)
    assert {int(count) for _, count in tree.get_all_with_path(after(tx, 2), "count")} <= {2}


def test_the_count_of_adam_is_found_and_set_by_name():
    state = after(fnopt.adamw(1e-3), 3)
    assert int(tree.get(state, "count")) == 3
    moved = tree.set(state, count=7)
    assert jax.tree.structure(moved) == jax.tree.structure(state)
    assert int(tree.get(moved, "count")) == 7
    with pytest.raises(KeyError, match="got the name 'count', expected"):
        tree.set(fnopt.sgd(0.1).init(PARAMS), count=7)


def test_traced_rates_are_constants():
    def step(rate):
        tx = fnopt.sgd(rate)
        return tx.update(PARAMS, tx.init(PARAMS), PARAMS)

    updates, state = jax.vmap(step)(jnp.asarray([0.5, 0.25]))
    assert not jax.tree.leaves(state)
    np.testing.assert_array_equal(updates["w"], [[-0.5, -0.5], [-0.25, -0.25]])


@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_missing_count_is_refused_with_the_remedy(how):
    tx, state = fnopt.adamw(LINE), fnopt.adamw(0.1).init(PARAMS)
    message = r"chain\[2\] > .*needs a count of steps \(learning_rate follows.*tree.restore"
    with pytest.raises(ValueError, match=message):
        how(lambda s: tx.update(PARAMS, s, PARAMS))(state)
    with pytest.raises(ValueError, match="needs a count of steps"):
        fnopt.hyperparams(tx, state)
    debiased = fnopt.ema(0.9)
    with pytest.raises(ValueError, match="its formula reads the step number"):
        debiased.update(PARAMS, fnopt.ema(0.9, debias=False).init(PARAMS))


def test_from_a_constant_to_a_schedule_and_back():
    constant, scheduled = fnopt.adamw(0.1), fnopt.adamw(LINE)
    state = after(constant, 3)
    state, report = tree.restore(scheduled.init(PARAMS), state)
    assert report.complete
    assert report.counted == {"2/count": "0/count"}
    assert "'2/count' copied from 0/count" in str(report)
    assert float(fnopt.hyperparams(scheduled, state)["learning_rate"]) == pytest.approx(0.7)
    # A count that isn't needed goes on: the schedule may come back.
    state = after(constant, 2, after(scheduled, 1, state))
    assert float(fnopt.hyperparams(scheduled, state)["learning_rate"]) == pytest.approx(0.4)
    # or is dropped, which loses nothing: Adam has it too.
    state, report = tree.restore(constant.init(PARAMS), state)
    assert report.complete
    assert report.dropped == ("2/count",)
    assert "1 count not needed: ['2/count']" in str(report)
    assert jax.tree.structure(state) == jax.tree.structure(constant.init(PARAMS))
    assert int(tree.get(state, "count")) == 6


class SumState(NamedTuple):
    total: fnopt.core.Slot
    count: Any


def test_leafwise_methods_of_users_count_as_before():
    class summed(fnopt.core.Leafwise):
        State = SumState

        def scalars(self, h, t):
            return {"t": t}

        def leaf(self, h, g, total):
            total = total + h.t * g
            return total, total

    np.testing.assert_array_equal(after(summed(), 3).total["w"], [6.0, 6.0])
