"""Workers that meet every so many steps: the family in closed form, and what they send."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed
from fnopt.distributed._packing import compressed_sum
from tests.distributed import messages
from tests.distributed.test_sharded import collectives

RNG = np.random.RandomState(0)
STEPS = 6
TARGETS = RNG.randn(2, STEPS, 4, 3).astype("f")  # worker, step, example
START = {"w": RNG.randn(3).astype("f")}


def loss(p, targets):
    return jnp.mean(jnp.sum((p["w"] - targets) ** 2, axis=-1)) / 2


def train(tx, targets, average=False, **extras):
    """The path of one worker's params, and its last state."""

    def body(carry, now):
        params, state = carry
        grads = jax.grad(loss)(params, now)
        grads = jax.lax.pmean(grads, "workers") if average else grads
        updates, state = tx.update(grads, state, params, **extras)
        params = fnopt.apply_updates(params, updates)
        return (params, state), params["w"]

    start = jax.tree.map(jnp.asarray, START)
    (_, state), path = jax.lax.scan(body, (start, tx.init(start)), targets)
    return path, state


def on_workers(tx, average=False, **extras):
    return program(tx, average, tuple(extras))(TARGETS, *map(jnp.asarray, extras.values()))


@functools.cache
def program(tx, average, names):
    run = lambda t, *xs: train(tx, t, average, **dict(zip(names, xs, strict=True)))  # noqa: E731
    return jax.jit(jax.vmap(run, axis_name="workers"))


def test_every_step_with_sgd_is_the_synchronous_run():
    local = on_workers(distributed.diloco(fnopt.sgd(0.1), fnopt.sgd(1.0), 1, "workers"))[0]
    synchronous = on_workers(fnopt.sgd(0.1), average=True)[0]
    np.testing.assert_allclose(local, synchronous, rtol=1e-6, atol=1e-6)


def by_hand(every, outer, rate=0.1, mu=0.0, weights=(1.0, 1.0)):
    """The algorithm in NumPy, in float64."""
    common = START["w"].astype(np.float64)
    workers, velocity, path = np.stack([common] * 2), 0.0, []
    share = np.asarray(weights) / max(sum(weights), 1e-30)
    for t in range(STEPS):
        grads = workers - TARGETS[:, t].mean(1)
        workers = workers - rate * (grads + mu * (workers - common))
        if (t + 1) % every == 0 and sum(weights):
            delta = common - share @ workers
            if outer == "mean":
                common = common - delta
            else:  # Nesterov's momentum
                velocity = 0.9 * velocity + delta
                common = common - 0.7 * (delta + 0.9 * velocity)
        if (t + 1) % every == 0:
            workers = np.stack([common] * 2)
        path.append(workers)
    return np.swapaxes(path, 0, 1)


def test_local_sgd_proximal_pull_weights_and_participation():
    near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    mean = distributed.diloco(fnopt.sgd(0.1), None, 3, "workers", proximal=0.5)
    near(on_workers(mean)[0], by_hand(3, "mean", mu=0.5))
    weighted = on_workers(mean, num_examples=[10, 30])[0]
    near(weighted, by_hand(3, "mean", mu=0.5, weights=(10, 30)))
    one = on_workers(mean, participates=[True, False])[0]
    near(one, by_hand(3, "mean", mu=0.5, weights=(1, 0)))
    none = on_workers(mean, participates=[False, False])[0]
    near(none, by_hand(3, "mean", mu=0.5, weights=(0, 0)))


def test_diloco_is_nesterov_on_the_moves():
    outer = fnopt.sgd(0.7, momentum=0.9, nesterov=True)
    path, state = on_workers(distributed.diloco(fnopt.sgd(0.1), outer, 2, "workers"))
    np.testing.assert_allclose(path, by_hand(2, "nesterov"), rtol=1e-5, atol=1e-6)
    anchor = fnopt.slots(state)["anchor"]["w"]
    np.testing.assert_array_equal(anchor[0], anchor[1])
    np.testing.assert_allclose(path[:, -1], anchor, rtol=1e-6)


def test_a_worker_without_a_say_may_have_any_numbers():
    tx = distributed.diloco(fnopt.sgd(0.1), None, 2, "workers")
    targets = np.array(TARGETS)
    targets[1] = np.inf
    run = jax.vmap(lambda t, n: train(tx, t, num_examples=n)[1].anchor["w"], axis_name="workers")
    assert np.isfinite(jax.jit(run)(targets, jnp.asarray([5, 0]))).all()


@pytest.mark.parametrize("block_size", [None, 2])
def test_a_worker_that_is_not_finite_costs_the_others_nothing(block_size):
    outer = fnopt.sgd(0.7, momentum=0.9)
    tx = distributed.diloco(
        fnopt.apply_if_finite(fnopt.sgd(0.1)), outer, 2, "workers", block_size=block_size
    )

    def run(bad, weight):
        state = tx.init(START)
        params = {"w": jnp.where(bad, jnp.nan, START["w"])}
        before = state._replace(count=state.count + 1)
        return tx.update(START, before, params, num_examples=weight)[1]

    run = jax.jit(jax.vmap(run, axis_name="workers"))
    state = run(np.array([False, True]), np.ones(2, "f"))
    alone = run(np.array([False, False]), np.array([1, 0], "f"))
    for x, y in zip(*map(jax.tree.leaves, (state.anchor, alone.anchor)), strict=True):
        np.testing.assert_array_equal(x, y)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.outer_state, state.error)))
    for weight in (-1.0, np.nan, np.inf):
        state = run(np.array([False, False]), np.array([1, weight], "f"))
        np.testing.assert_array_equal(state.anchor["w"], alone.anchor["w"])


@pytest.mark.parametrize(
    ("block_size", "kinds"),
    [(None, {"all-reduce"}), (64, {"all-reduce", "all-to-all", "all-gather"})],
)
def test_one_message_in_every_round(block_size, kinds):
    """Bytes: an all-reduce of the params in a branch that is taken every H-th step."""
    outer = fnopt.sgd(0.7, momentum=0.9)
    tx = distributed.diloco(fnopt.adamw(1e-2), outer, 20, "workers", block_size=block_size)
    mesh = jax.make_mesh((2,), ("workers",), axis_types=(AxisType.Auto,))

    def worker(stacked, state, targets):
        one, inner = jax.tree.map(lambda x: x[0], (stacked, state))
        updates, inner = tx.update(jax.grad(loss)(one, targets[0]), inner, one)
        return jax.tree.map(lambda x: x[None], (fnopt.apply_updates(one, updates), inner))

    spec = P("workers")
    step = jax.shard_map(worker, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), (START, tx.init(START)))
    text = jax.jit(step).lower(*stacked, TARGETS[:, 0]).compile().as_text() or ""
    found = collectives(text)
    assert set(found) == kinds
    if block_size is not None:  # codes; of floats only the sum of the weights
        sent = [(kind, dtype) for kind, dtype, _ in messages.results(text)]
        assert sorted(sent) == [("all-gather", "u8"), ("all-reduce", "f32"), ("all-to-all", "u8")]
        assert [n for kind, _, n in messages.results(text) if kind == "all-reduce"] == [4]
    main = text[text.index("ENTRY") :]
    assert not collectives(main[: main.index("\n}")])  # none outside of the branch


def test_codes_and_what_is_owed_add_up_to_the_sum():
    """Of three kinds of numbers, over two rounds, with sizes that four workers don't divide."""
    rng = np.random.RandomState(1)
    sent = {
        "kernel": rng.randn(4, 2, 7, 5).astype("f") * np.logspace(-4, 3, 5, dtype="f"),
        "scale": rng.randn(4, 2).astype("f"),
        "field": (rng.randn(4, 2, 3) + 1j * rng.randn(4, 2, 3)).astype("c8"),
        "nothing": np.zeros((4, 2, 0), "f"),
    }

    def worker(rounds):
        def body(owed, now):
            i, x = now
            total, owed = compressed_sum(x, owed, ("workers",), 8, i)
            return owed, (total, owed)

        zero = jax.tree.map(lambda x: jnp.zeros_like(x[0]), rounds)
        return jax.lax.scan(body, zero, (jnp.arange(2, dtype=jnp.int32), rounds))[1]

    total, owed = jax.jit(jax.vmap(worker, axis_name="workers"))(sent)
    # A step of the code is 0.9 / 64 of the largest number that shares a scale, of any leaf: four
    # workers round by one at most, and then whoever sums.
    largest = max(float(np.abs(x).max(initial=0)) for x in sent.values())
    for name, x in sent.items():
        np.testing.assert_array_equal(total[name], np.stack([total[name][0]] * 4))
        carried = np.zeros_like(x[0, 0])
        for i in range(2):
            rest = np.asarray(owed[name][:, i]).sum(0)
            size = np.abs(x[:, i]).sum(initial=0) + 1
            apart = total[name][0, i] + rest - x[:, i].sum(0) - carried
            assert (np.abs(apart) <= 1e-6 * size).all(), name
            assert (np.abs(rest) <= 8 * 0.9 / 64 * 1.1 * largest).all(), name
            carried = rest


def test_meetings_by_codes_stay_near_those_by_floats():
    tx = distributed.diloco(fnopt.sgd(0.1), None, 2, "workers", block_size=256)
    near = functools.partial(np.testing.assert_allclose, rtol=0, atol=0.01)
    for weights in ((10, 30), (0, 0)):
        path, state = on_workers(tx, num_examples=list(weights))
        near(path, by_hand(2, "mean", weights=weights))
        np.testing.assert_array_equal(state.anchor["w"][0], state.anchor["w"][1])
        assert (sum(weights) > 0) == bool(np.any(state.error["w"]))


def test_16_bit_params_meet_at_a_wider_point():
    tx = distributed.diloco(fnopt.sgd(0.1), None, 2, "workers")
    params = {"w": jnp.ones(3, jnp.bfloat16)}

    def worker(g):
        state = tx.init(params)
        updates, after = tx.update({"w": g}, state, params)
        return updates, after

    updates, state = jax.eval_shape(jax.vmap(worker, axis_name="workers"), jnp.ones((2, 3)))
    assert state.anchor["w"].dtype == jnp.float32
    assert updates["w"].dtype == jnp.bfloat16


def test_errors():
    with pytest.raises(ValueError, match="every = 0, expected an integer >= 1"):
        distributed.diloco(fnopt.sgd(0.1), None, 0, "workers")
    with pytest.raises(ValueError, match="block_size is 0, expected at least 1"):
        distributed.diloco(fnopt.sgd(0.1), None, 1, "workers", block_size=0)
    tx = distributed.diloco(fnopt.sgd(0.1), None, 2, "workers", block_size=256)
    with pytest.raises(ValueError, match=r"'workers'.* isn't bound here.*distributed\.federated"):
        tx.update(START, tx.init(START), START)
    with pytest.raises(ValueError, match=r"expected one number for this worker"):
        tx.update(START, tx.init(START), START, num_examples=np.ones(2))
    assert fnopt.from_config(fnopt.to_config(tx)) == tx


def test_a_server_in_a_plain_loop():
    server = distributed.federated(fnopt.adam(0.1))
    state = server.init(START)
    clients = [{"w": START["w"] + np.float32(1)}, {"w": START["w"] - np.float32(2)}]
    after = jax.jit(server.update)(state, clients, jnp.asarray([3.0, 1.0]))
    expected = fnopt.adam(0.1)
    updates, _ = expected.update({"w": jnp.full(3, -0.25)}, expected.init(START), START)
    np.testing.assert_allclose(after.params["w"], START["w"] + updates["w"], rtol=1e-5)
    assert int(after.round) == 1
    assert jax.tree.structure(after) == jax.tree.structure(state)
    mean = distributed.federated(None)
    after = mean.update(mean.init(START), clients, [1, 1])
    np.testing.assert_allclose(after.params["w"], START["w"] - 0.5, rtol=1e-6)


def test_a_client_that_is_not_finite_costs_the_server_nothing():
    server = distributed.federated(fnopt.adam(0.1))
    state, lost = server.init(START), {"w": np.full(3, np.nan, "f")}
    client = {"w": START["w"] + np.float32(1)}
    expected = server.update(state, [client])
    for weights in ([5, 5], [5, 0]):
        found = server.update(state, [client, lost], weights)
        for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_array_equal(x, y)
    for invalid in (np.nan, np.inf, -np.inf, -1):  # under jit, a weight excludes only its client
        found = jax.jit(server.update)(state, [client, client, lost], jnp.asarray([5, invalid, 0]))
        for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6)
    after = server.update(state, [lost])
    np.testing.assert_array_equal(after.params["w"], START["w"])
    assert int(after.opt_state[0].count) == 0


def test_clients_send_bytes_and_owe_the_rest():
    codec, server = distributed.quantized_delta(), distributed.federated(None)
    start = {"w": np.zeros(600, "f"), "z": np.zeros((2, 3), "c8"), "s": np.float32(0)}
    goal = {"w": RNG.randn(600).astype("f"), "z": np.full((2, 3), 1 - 2j, "c8"), "s": np.float32(3)}
    state, client = server.init(start), codec.init(start)

    @jax.jit
    def a_round(state, client):
        half = jax.tree.map(lambda p, g: (p + g) / np.asarray(2, p.dtype), state.params, goal)
        message, after = codec.encode(half, state.params, client)
        told = codec.decode(message, state.params)
        # what was told and is owed now is what was meant and was owed before
        pairs = (told, after.error), (half, client.error)
        pairs = [jax.tree.map(jnp.subtract, *pair) for pair in pairs]
        return message, server.update(state, [told]), after, pairs

    message: Any = None
    for _ in range(12):
        message, state, client, pairs = a_round(state, client)
        for x, y in zip(*map(jax.tree.leaves, pairs), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)
    for x, y in zip(*map(jax.tree.leaves, (state.params, goal)), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-3)
    assert message["w"].codes.dtype == np.uint8
    assert {k: x.codes.shape for k, x in message.items()} == {"s": (), "w": (600,), "z": (2, 3, 2)}
    with pytest.raises(ValueError, match=r"leaf 'w': params of the client have shape"):
        codec.encode({**goal, "w": np.zeros(3, "f")}, start, client)
    with pytest.raises(ValueError, match="has 6 arrays, expected 2"):
        codec.decode(message, {"w": start["w"]})
    with pytest.raises(ValueError, match=r"leaf 'w' of the message is uint8 of shape \(600,"):
        codec.decode(message, {**start, "w": np.zeros(3, "f")})


def test_a_server_says_which_client_is_wrong():
    server = distributed.federated(None)
    state = server.init(START)
    with pytest.raises(ValueError, match="without clients"):
        server.update(state, [])
    with pytest.raises(ValueError, match=r"leaf 'w': params of client 1 have shape \(2,\)"):
        server.update(state, [START, {"w": np.ones(2, "f")}])
    with pytest.raises(ValueError, match=r"num_examples has shape \(1,\), expected \(2,\)"):
        server.update(state, [START, START], [3])
    for wrong in (-1, np.inf):
        with pytest.raises(ValueError, match="expected finite numbers >= 0"):
            server.update(state, [START, START], [3, wrong])
    with pytest.raises(ValueError, match="with a positive sum"):
        server.update(state, [START, START], [0, 0])
