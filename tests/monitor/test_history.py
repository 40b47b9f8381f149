from __future__ import annotations

from pathlib import Path

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.monitor import (
    Flag,
    JsonLines,
    emit,
    emit_health,
    health,
    health_history,
    history_of,
    read_json_lines,
    record_health,
    record_of,
)

PARAMS = {"a": jnp.asarray([3.0, 4.0]), "b": jnp.ones(4)}


def run(tx, steps, params=PARAMS):
    """All steps in one scan; the gradient at step t is the params times t + 1."""

    def body(state, t):
        grads = jax.tree.map(lambda p: p * (t + 1).astype(p.dtype), params)
        updates, state = tx.update(grads, state, params)
        return state, updates

    return jax.jit(lambda: jax.lax.scan(body, tx.init(params), jnp.arange(steps)))()


def outside_cond(fn, *args, inside=False):
    """The operations that run in every step; with `inside` also those under a condition."""

    def names(jaxpr):
        for eqn in jaxpr.eqns:
            yield eqn.primitive.name
            if inside or eqn.primitive.name != "cond":
                for sub in jex.jaxprs_in_params(eqn.params):
                    yield from names(sub)

    return set(names(jax.make_jaxpr(fn)(*args).jaxpr))


def test_updates_pass_unchanged():
    _, updates = run(record_health(size=3), 2)
    np.testing.assert_array_equal(updates["a"], [[3, 4], [6, 8]])


@pytest.mark.parametrize("steps", [0, 2, 4, 7])
def test_ring_holds_the_last_steps(steps):
    tx = record_health(size=4)
    state, _ = run(tx, steps) if steps else (tx.init(PARAMS), None)
    history = health_history(tx, state, PARAMS)
    expected = np.arange(max(0, steps - 4), steps)
    np.testing.assert_array_equal(history.steps, expected)
    np.testing.assert_allclose(history.values["norm"][:, 0], 5.0 * (expected + 1))
    np.testing.assert_allclose(history.values["ratio"], np.outer(expected + 1, [1, 1]))


def test_every():
    tx = record_health(size=3, every=5, stats=("norm", "histogram"))
    state, _ = run(tx, 22)
    history = health_history(tx, state, PARAMS)
    np.testing.assert_array_equal(history.steps, [10, 15, 20])
    np.testing.assert_allclose(history.values["norm"][:, 0], [55, 80, 105])
    assert history.values["histogram"].shape == (3, 2, 32)


def test_between_its_turns_nothing_is_measured():
    def always(every):
        tx = record_health(every=every, stats="norm")
        return outside_cond(tx.update, PARAMS, tx.init(PARAMS), PARAMS)

    assert "sqrt" in always(1)
    assert not {"sqrt", "reduce_sum"} & always(10)


def test_flags_are_recorded():
    params = {"a": jnp.ones(2), "b": jnp.zeros(2), "c": jnp.ones(3)}
    tx = fnopt.chain(record_health(size=8), fnopt.sgd(0.1))
    state, _ = run(tx, 5, params)
    history = health_history(tx, state, params)
    assert history.report().dead == ("b",)
    np.testing.assert_array_equal(history.values["flag"][:, 1], [0, 0, Flag.DEAD] + [Flag.DEAD] * 2)


def test_several_recorders_are_told_apart():
    tx = fnopt.chain(
        ("before", record_health()), ("sgd", fnopt.sgd(0.5)), ("after", record_health())
    )
    state, _ = run(tx, 2)
    norms = [health_history(tx, state, PARAMS, name=n).values["norm"] for n in ("before", "after")]
    np.testing.assert_allclose(norms[1], 0.5 * norms[0])
    with pytest.raises(ValueError, match=r"several recorders, .*one of \['before', 'after'\]"):
        health_history(tx, state, PARAMS)
    with pytest.raises(ValueError, match=r"no recorder 'x', .*\['before', 'after'\]"):
        health_history(tx, state, PARAMS, name="x")


def test_under_vmap():
    tx = record_health(size=2, every=2)

    def train(scale):
        params = jax.tree.map(lambda p: p * scale, PARAMS)
        return tx.update(params, tx.init(params), params)[1]

    state = jax.vmap(train)(jnp.asarray([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"batch of shape \(2,\)"):
        health_history(tx, state, PARAMS)
    second = jax.tree.map(lambda x: x[1], state)
    assert health_history(tx, second, PARAMS).values["norm"][0, 0] == 10


def test_float32_updates_of_bfloat16_params_keep_the_state():
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    tx = record_health()
    state = tx.init(params)
    _, after = tx.update({"w": jnp.ones(3)}, state, params)
    assert jax.tree.map(jnp.result_type, after) == jax.tree.map(jnp.result_type, state)


def test_what_is_recorded_is_no_slot_of_the_optimizer():
    tx = fnopt.chain(record_health(stats=("norm", "histogram")), fnopt.adam(0.1))
    assert fnopt.slot_names(tx, PARAMS) == ("mu", "nu")


@pytest.mark.parametrize("spec", [("data",), (None, "data"), ()], ids=str)
def test_sharded_updates(spec):
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    params = {"w": jax.device_put(jnp.arange(8.0).reshape(4, 2), sharding)}
    tx = record_health(size=2, stats=("norm", "max", "ratio", "nonfinite", "histogram"))
    _, state = jax.jit(tx.update)(params, tx.init(params), params)
    values = health_history(tx, state, params).values
    np.testing.assert_allclose(values["norm"], [[np.sqrt(140)]], rtol=1e-6)
    assert values["histogram"].sum() == 8


def test_wrong_use():
    with pytest.raises(ValueError, match="every = 0, expected an integer >= 1"):
        record_health(every=0)
    with pytest.raises(TypeError, match=r"size = 1\.5, expected an integer"):
        record_health(size=1.5)
    tx = record_health()
    with pytest.raises(ValueError, match="record_health: params is None"):
        tx.update(PARAMS, tx.init(PARAMS))
    with pytest.raises(ValueError, match="have 1 group, expected 2 as in the state"):
        tx.update({"a": jnp.ones(2)}, tx.init(PARAMS), {"a": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"params have 1 group, expected 2 .* with None"):
        health_history(tx, tx.init(PARAMS), {"a": PARAMS["a"]})
    with pytest.raises(ValueError, match="expected an optimizer that contains record_health"):
        health_history(fnopt.sgd(0.1), fnopt.sgd(0.1).init(PARAMS), PARAMS)
    with pytest.raises(
        ValueError, match=r"record_health: the patterns \['c'\] in groups match no leaf, expected"
    ):
        record_health(groups=["c"]).init(PARAMS)


def test_records_and_history_are_inverse():
    tx = record_health(size=4, stats=("norm", "histogram"))
    history = health_history(tx, run(tx, 3)[0], PARAMS)
    again = history_of(reversed(list(history.records())))
    assert again.names == history.names
    np.testing.assert_array_equal(again.steps, history.steps)
    for stat, values in history.values.items():
        np.testing.assert_array_equal(again.values[stat], values)


def test_history_of_a_log(tmp_path):
    with JsonLines(tmp_path / "log.jsonl") as write:
        for step in range(3):
            grads = {"w": jnp.full(2, jnp.inf if step == 1 else 1.0)}
            write(
                record_of(step, {"loss": 1.0, "grads": health(grads, stats=("max", "histogram"))})
            )
    history = history_of(read_json_lines(tmp_path / "log.jsonl"), prefix="grads")
    np.testing.assert_array_equal(history.values["max"][:, 0], [1, np.nan, 1])
    np.testing.assert_array_equal(history.values["histogram"].sum(axis=2)[:, 0], [2, 0, 2])
    with pytest.raises(
        ValueError, match=r"got 1 record .*, expected entries such as 'norm/\.\.\.'"
    ):
        history_of([{"step": 0, "loss": 1.0}])


# -- emit


def emitted(fn, *args):
    records = []
    jax.block_until_ready(jax.jit(lambda *a: fn(records.append, *a))(*args))
    jax.effects_barrier()
    return sorted(records, key=lambda r: r["step"])


def test_emit_at_a_cadence():
    def loop(sink):
        def body(i, x):
            emit(sink, i, lambda: {"x": x, "g": health({"w": x[None]}, stats="norm")}, every=3)
            return x + 1

        return jax.lax.fori_loop(0, 8, body, jnp.float32(0))

    expected = [{"step": i, "x": float(i), "g/norm/w": float(i)} for i in (0, 3, 6)]
    assert emitted(loop) == expected


def test_between_its_turns_nothing_is_sent_or_computed():
    def step(i, x):
        emit(print, i, lambda: {"x": jnp.sin(x)}, every=10)
        return x

    assert not {"sin", "debug_callback"} & outside_cond(step, 3, 1.0)
    assert {"sin", "debug_callback"} <= outside_cond(lambda x: step(0, x), 1.0, inside=True)


def test_emit_under_vmap_keeps_the_cadence():
    def members(sink):
        return jax.vmap(lambda i: emit(sink, i, lambda: {"i": i}, every=2))(jnp.arange(5))

    assert [r["step"] for r in emitted(members)] == [0, 2, 4]


def test_emit_outside_jit():
    records = []
    emit(records.append, 4, lambda: {"loss": jnp.float32(0.5)}, every=2)
    emit(records.append, 5, lambda: {"loss": jnp.float32(0.5)}, every=2)
    jax.effects_barrier()
    assert records == [{"step": 4, "loss": 0.5}]


def test_emit_refuses_what_it_cannot_send():
    with pytest.raises(
        TypeError, match="`metrics` is a dict, expected a function without arguments"
    ):
        emit(print, 0, {"loss": 1.0})
    with pytest.raises(TypeError, match=r"`step` is float32\[\], expected an integer scalar"):
        emit(print, 0.5, dict)
    with pytest.raises(ValueError, match="emit: every is 0, expected at least 1"):
        emit(print, 0, dict, every=0)


def test_emit_health():
    def loop(sink):
        tx = fnopt.chain(fnopt.sgd(1.0), emit_health(sink, every=4, groups=1))
        return run(tx, 9)[1]

    records = emitted(loop)
    assert [r["step"] for r in records] == [0, 4, 8]
    assert [r["norm/a"] for r in records] == [5, 25, 45]
    np.testing.assert_allclose([r["ratio/b"] for r in records], [1, 5, 9])


def test_record_of_nested_metrics():
    record = record_of(np.int32(3), {"a": {"b": jnp.float32(1)}, "n": 2, "v": np.ones(2)})
    assert record.pop("v").tolist() == [1, 1]
    assert record == {"step": 3, "a/b": 1.0, "n": 2}
    assert type(record["step"]) is int


def test_a_sink_that_raises_does_not_end_the_program():
    records = []

    def sink(record):
        if record["step"] < 2:
            raise OSError("no space left on device")
        records.append(record["step"])

    @jax.jit
    def run(x):
        def body(i, x):
            emit(sink, i, lambda: {"x": x})
            return x + 1

        return jax.lax.fori_loop(0, 4, body, x)

    def whole():
        assert run(jnp.float32(0)) == 4
        jax.effects_barrier()

    with pytest.warns(UserWarning, match="sink raised OSError: no space left on device") as seen:
        whole()
    assert len(seen) == 1
    assert sorted(records) == [2, 3]


@pytest.mark.filterwarnings("always")
def test_a_sink_that_raises_outside_of_jit_warns_once(recwarn):
    class Log:
        __slots__ = ()
        __hash__ = None

        def write(self, record):
            raise OSError("no space left on device")

        __call__ = write

    for sink in (Log().write, Log(), [].index):
        before = len(recwarn.list)
        for step in range(3):
            emit(sink, step, lambda: {"x": 1.0})
        assert len(recwarn.list) == before + 1


@pytest.mark.filterwarnings("error")
def test_a_sink_that_raises_where_warnings_are_errors_is_printed(capsys):
    def sink(record):
        raise OSError("no space left on device")

    @jax.jit
    def run(x):
        emit(sink, 3, lambda: {"x": x})
        return x + 1

    assert run(jnp.float32(0)) == 1
    jax.effects_barrier()
    assert "raised OSError: no space left on device at step 3" in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device without space")
def test_the_end_of_json_lines_where_warnings_are_errors(capsys):
    def run():
        with JsonLines("/dev/full") as write:
            emit(write, 0, lambda: {"x": 1.0})
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run()
    assert "the last records of /dev/full are lost" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device without space")
def test_json_lines_on_a_full_disk_do_not_end_the_program():
    def whole():
        with JsonLines("/dev/full") as write:
            for step in range(3):
                emit(write, step, lambda: {"x": 1.0})
            jax.effects_barrier()

    with pytest.warns(UserWarning, match="[Nn]o space left on device") as seen:
        whole()
    texts = [str(warning.message) for warning in seen]
    assert len(texts) == 2
    assert "the sink JsonLines raised OSError" in texts[0]
    assert "the last records of /dev/full are lost" in texts[1]
