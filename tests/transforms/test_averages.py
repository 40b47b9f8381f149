from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

GRADS = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
START = np.ones(3, np.float32)
PARAMS = START - 0.1 * np.cumsum(GRADS, axis=0)  # after every step


def averages(average):
    """The average after every step, in one program."""
    tx = fnopt.chain(fnopt.sgd(0.1), average)

    @jax.jit
    def run(params, grads):
        def body(carry, g):
            params, state = carry
            updates, state = tx.update({"w": g}, state, params)
            params = fnopt.apply_updates(params, updates)
            return (params, state), fnopt.averaged_params(state, params)["w"]

        return jax.lax.scan(body, (params, tx.init(params)), grads)[1]

    return np.asarray(run({"w": jnp.asarray(START)}, jnp.asarray(GRADS)))


def weighted(decays, every=1, debias=True):
    total, weight = (np.zeros(3), 0.0) if debias else (START.astype(float), 1.0)
    for t, (p, decay) in enumerate(zip(PARAMS, decays, strict=True), start=1):
        if t % every == 0:
            total, weight = decay * total + (1 - decay) * p, decay * weight + 1 - decay
        yield total / weight if weight else p


def test_ema_with_correction_schedule_and_warm_up():
    count = np.arange(12)
    cases = [
        (fnopt.params_ema(0.9), weighted([0.9] * 12)),
        (fnopt.params_ema(0.9, debias=False), weighted([0.9] * 12, debias=False)),
        (fnopt.params_ema(0.9, every=3), weighted([0.9] * 12, every=3)),
        (
            fnopt.params_ema(fnopt.linear_schedule(0.5, 0.9, 4), warmup=True),
            weighted(np.minimum(0.5 + 0.1 * np.minimum(count, 4), (1 + count) / (10 + count))),
        ),
    ]
    for tx, expected in cases:
        np.testing.assert_allclose(averages(tx), list(expected), rtol=2e-5, err_msg=repr(tx))


def test_mean_of_all_of_the_tail_and_of_cycles():
    means = np.cumsum(PARAMS, axis=0) / np.arange(1, 13)[:, None]
    np.testing.assert_allclose(averages(fnopt.params_mean()), means, rtol=2e-5)
    swa = averages(fnopt.params_mean(start=4, every=3))
    np.testing.assert_allclose(swa[:6], PARAMS[:6], rtol=1e-6)
    np.testing.assert_allclose(swa[-1], PARAMS[[6, 9]].mean(axis=0), rtol=2e-5)


def test_params_of_sixteen_bits_are_averaged_in_more():
    tx = fnopt.chain(fnopt.sgd(1.0), fnopt.params_ema(0.999))
    params = {"w": jnp.ones(2, jnp.bfloat16), "n": None}
    state = tx.init(params)
    updates, state = tx.update({"w": jnp.full(2, 0.01, jnp.bfloat16), "n": None}, state, params)
    assert fnopt.slots(state)["average"]["w"].dtype == jnp.float32
    mean = fnopt.averaged_params(state, params)
    assert mean["w"].dtype == jnp.bfloat16
    assert mean["w"].tolist() == fnopt.apply_updates(params, updates)["w"].tolist()


BOTH = {"a": jnp.full(2, 4.0), "b": jnp.full(2, 4.0)}
A_FIRST = fnopt.by_pattern({"a": "first"}, default="second")


def one_step(tx, params=BOTH):
    updates, state = tx.update(params, tx.init(params), params)
    return state, fnopt.apply_updates(params, updates)


@pytest.mark.parametrize(
    "make",
    [
        lambda tx: fnopt.freeze(tx, "b"),
        lambda tx: fnopt.partition({"first": tx, "second": fnopt.sgd(0.25)}, A_FIRST),
        lambda tx: fnopt.partition({"first": tx, "second": tx}, A_FIRST),
    ],
    ids=["freeze", "one", "both"],
)
def test_averages_of_some_leaves_leave_the_others_as_they_are(make):
    mean = fnopt.chain(fnopt.sgd(0.5), fnopt.params_ema(0.5, debias=False))
    state, params = one_step(make(mean))
    averaged = fnopt.averaged_params(state, params)
    assert averaged["a"].tolist() == [3.0, 3.0]  # of 4 and 2
    other = [4.0, 4.0] if make(mean)._place == "freeze" else [3.0, 3.0]
    assert averaged["b"].tolist() == other
    state, params = one_step(make(fnopt.schedule_free_sgd(0.5)))
    found = fnopt.schedule_free_eval_params(state, params)
    assert found["a"].tolist() == [2.0, 2.0]
    state, narrow = one_step(make(fnopt.master_copy(fnopt.sgd(0.5))), jax.tree.map(_narrow, BOTH))
    wide = fnopt.master_params(state, narrow)
    assert (wide["a"].dtype, wide["a"].tolist()) == (jnp.float32, [2.0, 2.0])


def _narrow(x):
    return x.astype(jnp.bfloat16)


def test_an_average_of_a_vector_says_where_it_belongs():
    state, params = one_step(fnopt.flatten(fnopt.chain(fnopt.sgd(0.5), fnopt.params_mean())))
    with pytest.raises(ValueError, match=r"averaged_params: .*params_mean around flatten"):
        fnopt.averaged_params(state, params)


def test_there_must_be_one_average():
    params = {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match="0 states of params_ema"):
        fnopt.averaged_params(fnopt.adam(0.1).init(params), params)
    two = fnopt.chain(fnopt.params_ema(), fnopt.params_mean())
    with pytest.raises(ValueError, match=r"2 states of .* for one leaf"):
        fnopt.averaged_params(two.init(params), params)


def test_schedule_free_is_found_in_a_chain():
    params = {"w": jnp.ones(2)}
    tx = fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.schedule_free_sgd(0.5))
    state = tx.init(params)
    assert fnopt.schedule_free_eval_params(state, params)["w"].tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="0 states of schedule_free"):
        fnopt.schedule_free_eval_params(fnopt.adam(0.1).init(params), params)


def test_schedule_free_continues_with_another_b1():
    """The average x and the iterate z are those of before; only y moves to the new share."""
    params, grads = {"w": jnp.asarray([4.0])}, {"w": jnp.asarray([1.0])}
    tx = fnopt.schedule_free(fnopt.sgd(0.5), 0.5, b1=0.9)
    state = tx.init(params)
    for _ in range(3):
        updates, state = tx.update(grads, state, params)
        params = fnopt.apply_updates(params, updates)
    x = fnopt.schedule_free_eval_params(state, params)["w"]
    new = dataclasses.replace(tx, b1=0.6)
    updates, after = new.update(grads, state, params)
    z = state.z["w"] - 0.5
    share = 0.25  # of the fourth step, all of one learning rate
    expected = x + share * (z - x)
    found = fnopt.schedule_free_eval_params(after, fnopt.apply_updates(params, updates))["w"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
