"""A state that was saved and restored goes on as if nothing had happened."""

import pickle

import jax
import jax.numpy as jnp
import pytest

import fnopt
from tests.contract.trees import assert_identical, make_tree

OPTIMIZERS = {
    "adam": fnopt.adam(0.1),
    "named chain": fnopt.chain(("clip", fnopt.clip(1.0)), ("adam", fnopt.adam(0.1))),
    "wrappers": fnopt.apply_if_finite(
        fnopt.accumulate(
            fnopt.partition(
                {"a": fnopt.adam(0.1), "b": fnopt.freeze(fnopt.sgd(0.1, 0.9), "blocks/*")},
                fnopt.by_pattern({"dense/*": "a"}, default="b"),
            ),
            2,
        )
    ),
}
every = pytest.mark.parametrize("name", OPTIMIZERS)


def tree(seed):
    whole = make_tree(seed, "mixed")
    del whole["empty"]  # orbax saves no array of size zero
    return whole


update = jax.jit(lambda tx, grads, state, params: tx.update(grads, state, params))


def step(tx, i, state):
    return update(tx, tree(i), state, tree(0))


def trained(name):
    tx = OPTIMIZERS[name]
    state = tx.init(tree(0))
    for i in range(1, 4):
        _, state = step(tx, i, state)
    return tx, state, tx.init(tree(0))


def assert_goes_on(tx, state, restored):
    assert_identical(restored, state)
    assert_identical(step(tx, 4, restored), step(tx, 4, state))


@every
def test_pickle(name):
    tx, state, _ = trained(name)
    tx, restored = pickle.loads(pickle.dumps((tx, state)))
    assert_goes_on(tx, state, restored)


@every
def test_flax_bytes(name):
    serialization = pytest.importorskip("flax.serialization")
    tx, state, fresh = trained(name)
    restored = serialization.from_bytes(fresh, serialization.to_bytes(state))
    assert_goes_on(tx, state, jax.tree.map(jnp.asarray, restored))


@every
def test_flax_state_dict(name):
    serialization = pytest.importorskip("flax.serialization")
    tx, state, fresh = trained(name)
    restored = serialization.from_state_dict(fresh, serialization.to_state_dict(state))
    assert_goes_on(tx, state, restored)


@every
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_orbax(name, tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    tx, state, fresh = trained(name)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", jax.eval_shape(lambda: fresh))
    assert_goes_on(tx, state, restored)


def test_a_constant_and_a_scheduled_rate_restore_into_each_other():
    serialization = pytest.importorskip("flax.serialization")
    params = make_tree(0)
    constant = fnopt.adam(0.1)
    scheduled = fnopt.adam(fnopt.linear_schedule(0.1, 0.0, transition_steps=10))
    _, state = constant.update(params, constant.init(params), params)
    data = serialization.to_bytes(state)
    plain = serialization.msgpack_restore(data)
    restored, report = fnopt.tree.restore(scheduled.init(params), plain)
    assert report.complete
    assert float(fnopt.hyperparams(scheduled, restored)["learning_rate"]) == pytest.approx(0.09)
    back, report = fnopt.tree.restore(constant.init(params), restored)
    assert report.complete
    assert_identical(back, state)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_state_saved_when_every_member_counted(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    tx, params = fnopt.adamw(0.1), {"w": jnp.ones(2)}
    _, state = tx.update(params, tx.init(params), params)
    old = (state[0], *(part._replace(count=state[0].count) for part in state[1:]))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", old)
        checkpointer.wait_until_finished()
        plain = checkpointer.restore(tmp_path / "state")
    restored, report = fnopt.tree.restore(tx.init(params), plain)
    assert report.complete
    assert report.dropped == ("1/count", "2/count")
    assert_goes_on_with(tx, params, state, restored)
    # as it is, it goes on too, and goes on counting
    assert int(tx.update(params, old, params)[1][2].count) == 2


def assert_goes_on_with(tx, params, state, restored):
    assert_identical(restored, state)
    assert_identical(tx.update(params, restored, params), tx.update(params, state, params))


def test_the_state_of_another_optimizer_is_refused():
    _, state, _ = trained("adam")
    with pytest.raises(TypeError, match="the state is a tuple of length 2, expected ApplyIfF"):
        step(OPTIMIZERS["wrappers"], 4, state)
