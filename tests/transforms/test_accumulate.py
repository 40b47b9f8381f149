import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.contract.trees import assert_identical, make_tree, signature
from tests.transforms.test_masked import needs_value

SGD = fnopt.sgd(1.0)


class countdown(fnopt.Schedule):
    """3 gradients for the first step, 2 for the second, then 1."""

    def __call__(self, count):
        return jnp.maximum(3.0 - count.astype(jnp.float32), 1.0)


def run(tx, grads, params=None, **extras):
    """Updates and states of all calls, from one compiled step."""
    params = make_tree(0) if params is None else params
    step = jax.jit(lambda g, s: tx.update(g, s, params, **extras))
    state, seen = tx.init(params), []
    for g in grads:
        updates, state = step(g, state)
        seen.append((updates, state))
    return seen


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize(
    "inner", [fnopt.sgd(0.1, momentum=0.9), fnopt.adam(0.1)], ids=["sgd", "adam"]
)
def test_k_small_batches_are_one_big_one(inner, mean):
    k, grads = 3, [make_tree(i) for i in range(1, 7)]
    seen = run(fnopt.accumulate(inner, k, use_grad_mean=mean), grads)
    state = inner.init(make_tree(0))
    for i, (updates, _) in enumerate(seen):
        if (i + 1) % k:
            assert all(not np.any(u) for u in jax.tree.leaves(updates))
            continue
        batch = grads[i + 1 - k : i + 1]
        big = jax.tree.map(lambda *gs: sum(gs[1:], gs[0]) / (k if mean else 1), *batch)
        expected, state = inner.update(big, state, make_tree(0))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5), updates, expected)


@pytest.mark.parametrize("wrap", [lambda step: step, jax.jit], ids=["eager", "jit"])
def test_what_an_inner_freeze_keeps_has_no_sum(wrap):
    params = {"w": jnp.ones(3), "key": jax.random.key(3), "n": jnp.asarray(2), "none": None}
    grads = jax.grad(lambda p: jnp.sum(p["w"] ** 2), allow_int=True)(params)
    frozen = fnopt.by_pattern({"w": False}, default=True)
    tx = fnopt.accumulate(fnopt.freeze(fnopt.sgd(0.5), frozen), k=2)

    @wrap
    def step(params, state):
        updates, state = tx.update(grads, state, params)
        return fnopt.apply_updates(params, updates), state

    state = tx.init(params)
    assert fnopt.slots(state)["acc"]["key"] is None
    new, state = step(params, state)
    new, state = step(new, state)
    assert new["w"].tolist() == [0.0, 0.0, 0.0]
    assert new["n"] == 2
    assert (jax.random.key_data(new["key"]) == jax.random.key_data(params["key"])).all()


def test_gradients_of_whole_numbers_are_named():
    tx = fnopt.accumulate(fnopt.sgd(0.5), k=2)
    with pytest.raises(TypeError, match=r"accumulate: gradients: leaf 'w' is int32\[3\]"):
        tx.update({"w": jnp.ones(3, jnp.int32)}, tx.init({"w": jnp.ones(3)}))


@pytest.mark.parametrize("kind", ["f32", "bf16", "mixed"])
@pytest.mark.parametrize("mean", [True, False])
def test_k_of_one_is_the_inner_transform_bit_for_bit(kind, mean):
    inner, params = fnopt.adam(0.1), make_tree(0, kind)
    grads = [make_tree(i, kind) for i in range(1, 4)]
    grads[1] = jax.tree.map(lambda g: -0.0 * g, grads[1])  # signs of zeros count too
    ours = run(fnopt.accumulate(inner, 1, use_grad_mean=mean), grads, params)
    for (updates, state), (expected, inner_state) in zip(
        ours, run(inner, grads, params), strict=True
    ):
        assert_identical(updates, expected)
        assert_identical(state.inner_state, inner_state)


@pytest.mark.parametrize("mean", [True, False])
def test_agrees_with_its_peer(mean):
    # around the same inner transform
    optax = pytest.importorskip("optax")
    inner, grads = optax.adam(0.1), [make_tree(i) for i in range(1, 8)]
    with jax.numpy_dtype_promotion("standard"):
        ours = run(fnopt.accumulate(inner, 3, use_grad_mean=mean), grads)
        peer = optax.MultiSteps(inner, 3, use_grad_mean=mean)
        theirs = run(peer.gradient_transformation(), grads)
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7)
    for (updates, state), (expected, peer_state) in zip(ours, theirs, strict=True):
        jax.tree.map(close, updates, expected)
        jax.tree.map(close, state.inner_state, peer_state.inner_opt_state)
        assert state.mini_step == peer_state.mini_step
        assert state.gradient_step == peer_state.gradient_step
        assert fnopt.has_updated(state) == peer.has_updated(peer_state)


def test_k_may_be_a_schedule_over_steps():
    seen = run(fnopt.accumulate(fnopt.sgd(1.0), countdown()), [make_tree(1)] * 8)
    emitted = [bool(fnopt.has_updated(state)) for _, state in seen]
    assert emitted == [False, False, True, False, True, True, True, True]
    assert int(seen[-1][1].gradient_step) == 5


def test_k_may_be_traced_and_changed_between_calls():
    traces = 0

    @jax.jit
    def step(k, state):
        nonlocal traces
        traces += 1
        tx = fnopt.accumulate(fnopt.sgd(1.0), k)
        return tx.update(jnp.ones(2), state)

    state = fnopt.accumulate(fnopt.sgd(1.0), 2).init(jnp.ones(2))
    means = []
    for k in (2, 2, 3, 3, 1):
        updates, state = step(jnp.asarray(k, jnp.int32), state)
        means.append(float(updates[0]))
    assert means == [0, -1, 0, 0, -1]  # the mean of as many gradients as came
    assert traces == 1


def test_the_inner_transform_runs_on_emitting_calls_only():
    calls = []

    class spy(fnopt.Transformation):
        def update(self, updates, state, params=None, **extra_args):
            jax.debug.callback(lambda: calls.append(1))
            return updates, state

    run(fnopt.accumulate(spy(), 3), [make_tree(1)] * 7)
    jax.effects_barrier()
    assert len(calls) == 2


def test_schedules_inside_count_steps():
    inner = fnopt.sgd(fnopt.linear_schedule(1.0, 0.0, transition_steps=4))
    tx = fnopt.accumulate(inner, 2)
    seen = run(tx, [{"w": jnp.ones(())}] * 4, {"w": jnp.ones(())})
    assert [float(u["w"]) for u, _ in seen] == [0, -1, 0, -0.75]
    rates = fnopt.hyperparams(tx, seen[-1][1])
    assert (float(rates["learning_rate"]), float(rates["k"])) == (0.5, 2.0)
    scheduled = fnopt.accumulate(inner, countdown())
    assert float(fnopt.hyperparams(scheduled, scheduled.init({"w": jnp.ones(())}))["k"]) == 3.0


def test_sums_of_16_bit_gradients_are_float32():
    # 256 + 1 is 256 in bfloat16, so a sum in bfloat16 would stay where it is
    params = {"w": jnp.ones((), jnp.bfloat16)}
    grads = [{"w": jnp.asarray(g, jnp.bfloat16)} for g in (256.0, *[1.0] * 7)]
    tx = fnopt.accumulate(fnopt.sgd(1.0), 8, use_grad_mean=False)
    seen = run(tx, grads, params)
    assert seen[-1][1].acc["w"].dtype == jnp.float32
    assert float(seen[-1][1].acc["w"]) == 263.0
    assert seen[-1][0]["w"].dtype == jnp.bfloat16
    assert float(seen[-1][0]["w"]) == -264.0  # 263, rounded once


@pytest.mark.parametrize("grads_kind", ["bf16", "f32"])
def test_types_never_change(grads_kind):
    params, grads = make_tree(0, "bf16"), [make_tree(i, grads_kind) for i in range(4)]
    tx = fnopt.accumulate(fnopt.adam(0.1), 2)
    for updates, state in run(tx, grads, params):
        assert signature(state) == signature(tx.init(params))
        assert signature(updates) == signature(params)


def test_a_drifting_foreign_state_keeps_its_types():
    # this peer's moments take the gradients' dtype, float32 where the params are bfloat16
    optax = pytest.importorskip("optax")
    params, grads = make_tree(0, "bf16"), [make_tree(i) for i in range(3)]
    tx = fnopt.accumulate(optax.adam(0.1), 2)
    with jax.numpy_dtype_promotion("standard"):
        for _, state in run(tx, grads, params):
            assert signature(state) == signature(tx.init(params))


@pytest.mark.parametrize("wrap", [lambda tx: fnopt.accumulate(tx, 2), fnopt.apply_if_finite])
def test_a_foreign_state_may_hold_a_key(wrap):
    optax = pytest.importorskip("optax")
    tx, params = wrap(optax.add_noise(0.1, 0.5, jax.random.key(0))), {"w": jnp.ones(2)}
    with jax.numpy_dtype_promotion("standard"):
        seen = run(tx, [params] * 2, params)
    assert np.all(seen[1][0]["w"] != 1.0)


def test_a_bad_sum_does_not_last():
    good, bad = {"w": jnp.ones(2)}, {"w": jnp.full(2, jnp.nan)}
    tx = fnopt.accumulate(fnopt.apply_if_finite(fnopt.sgd(1.0)), 2)
    seen = run(tx, [good, bad, good, good], good)
    assert [float(u["w"][0]) for u, _ in seen] == [0, 0, 0, -1]


def test_extra_arguments_reach_the_inner_transform():
    tx = fnopt.accumulate(needs_value(), 2)
    seen = run(tx, [{"w": jnp.ones(2)}] * 2, {"w": jnp.ones(2)}, value=jnp.asarray(5.0))
    assert float(seen[-1][0]["w"][0]) == 5.0


def test_scan_and_vmap():
    tx, params = fnopt.accumulate(fnopt.adam(0.1), 2), {"w": jnp.ones(3)}
    grads = {"w": jax.random.normal(jax.random.key(0), (6, 3))}

    def train(grads):
        def body(state, g):
            updates, state = tx.update(g, state, params)
            return state, updates

        return jax.lax.scan(body, tx.init(params), grads)[1]

    loop = run(tx, [jax.tree.map(lambda g, i=i: g[i], grads) for i in range(6)], params)
    expected = np.stack([u["w"] for u, _ in loop])
    np.testing.assert_allclose(jax.jit(train)(grads)["w"], expected, rtol=1e-6)
    stacked = jax.jit(jax.vmap(train))(jax.tree.map(lambda g: jnp.stack([g, -g]), grads))
    np.testing.assert_allclose(stacked["w"][0], expected, rtol=1e-6)


def test_memory_is_the_accumulator_and_no_more():
    n, tx = 1 << 16, fnopt.accumulate(fnopt.sgd(0.1, momentum=0.9), 4)
    params = {"w": jnp.ones(n)}

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return fnopt.apply_updates(params, updates), state

    memory = step.lower(params, tx.init(params), params).compile().memory_analysis()
    # the conditional hands its updates over in memory: one temporary of that size, no more
    assert memory.temp_size_in_bytes < 1.1 * 4 * n
    assert len(jax.tree.leaves(fnopt.slots(tx.init(params)))) == 2


def test_names_inside():
    tx = fnopt.chain(fnopt.accumulate(fnopt.adam(0.1), 2), fnopt.identity())
    params = make_tree(0)
    state = tx.init(params)
    assert {"accumulate", "scale_by_adam"} <= set(fnopt.named(tx, state))
    assert fnopt.slot_names(tx, params) == ("acc", "mu", "nu")
    assert not fnopt.has_updated(fnopt.named(tx, state)["accumulate"])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: fnopt.accumulate(fnopt.sgd(1.0), 0),
            ValueError,
            "accumulate: k = 0.0, expected k >= 1",
        ),
        (
            lambda: fnopt.accumulate(fnopt.sgd(1.0), 2.5),
            ValueError,
            "accumulate: k = 2.5, expected an integer",
        ),
        (lambda: fnopt.accumulate(SGD, lambda i: 2), TypeError, "Wrap a function as"),
        (
            lambda: fnopt.accumulate(2, fnopt.sgd(1.0)),
            TypeError,
            "accumulate: inner is 2, expected an",
        ),
        (
            lambda: fnopt.accumulate(fnopt.adam(1.0), 2).init({"n": jnp.ones(2, jnp.int32)}),
            TypeError,
            r"accumulate > .*: params: leaf 'n' is int32\[2\].*freeze",
        ),
        (
            lambda: run(fnopt.accumulate(needs_value(), 2), [make_tree(1)]),
            TypeError,
            "accumulate > needs_value: update needs the extra argument 'value'",
        ),
        (
            lambda: fnopt.accumulate(needs_value(), 2).update(
                jnp.ones(2), fnopt.accumulate(needs_value(), 2).init(jnp.ones(2)), value=1.0
            ),
            ValueError,
            "accumulate > needs_value: update needs the params",
        ),
        (
            lambda: fnopt.has_updated(()),
            TypeError,
            "the state is a tuple, expected AccumulateState",
        ),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


TOKENS = (7, 1, 12)


def token_loss(w, rows):
    """The mean loss over the tokens of a batch."""
    return jnp.mean(jnp.logaddexp(0.0, -rows @ w))


def token_batches():
    rows = jnp.asarray(np.random.default_rng(0).standard_normal((sum(TOKENS), 4)), jnp.float32)
    return rows, jnp.split(rows, np.cumsum(TOKENS)[:-1])


@pytest.mark.parametrize("wrap", [lambda step: step, jax.jit], ids=["eager", "jit"])
def test_weights_make_the_step_of_one_batch_of_all_tokens(wrap):
    rows, batches = token_batches()
    w, inner = jnp.ones(4), fnopt.adam(0.1)
    tx = fnopt.accumulate(inner, len(TOKENS))
    step = wrap(lambda g, s, n: tx.update(g, s, w, weight=n))
    state, plain = tx.init(w), inner.init(w)
    for _ in range(2):
        for n, batch in zip(TOKENS, batches, strict=True):
            updates, state = step(jax.grad(token_loss)(w, batch), state, n)
        expected, plain = inner.update(jax.grad(token_loss)(w, rows), plain, w)
        np.testing.assert_allclose(updates, expected, rtol=1e-5)
    np.testing.assert_allclose(state.inner_state[0].mu, plain[0].mu, rtol=1e-5)


def test_weights_of_sums_of_sums():
    w = jnp.ones(4)
    rows, batches = token_batches()
    tx = fnopt.accumulate(fnopt.accumulate(fnopt.sgd(1.0), 2), 3)
    state = tx.init(w)
    for n, batch in zip(TOKENS * 2, batches * 2, strict=True):
        # The second pass over the batches counts a quarter of the first.
        n = n if int(state.inner_state.mini_step) == 0 else n / 4
        updates, state = tx.update(jax.grad(token_loss)(w, batch), state, w, weight=n)
    np.testing.assert_allclose(updates, -jax.grad(token_loss)(w, rows), rtol=1e-5)
    assert float(state.inner_state.weight) == sum(TOKENS) * 1.25


def test_sums_and_gradients_of_no_weight():
    w = jnp.ones(2)
    tx = fnopt.accumulate(fnopt.sgd(1.0), 2, use_grad_mean=False)
    (_, state) = tx.update(jnp.asarray([1.0, 2.0]), tx.init(w), weight=3)
    updates, _ = tx.update(jnp.full(2, jnp.nan), state, weight=0)  # a mean over no tokens
    assert updates.tolist() == [-3.0, -6.0]
    tx = fnopt.accumulate(fnopt.sgd(1.0), 1)
    assert tx.update(w, tx.init(w), weight=0)[0].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"weight is .*\[2\].*, expected one real number"):
        tx.update(w, tx.init(w), weight=jnp.ones(2))


def overflowing(tx, gradients, scale):
    """The last updates, and the number of steps of SGD."""
    state = tx.init(jnp.ones(2))
    moved = jnp.zeros(2)
    for g in gradients:
        updates, state = tx.update(g * scale(state), state, jnp.ones(2))
        moved = moved + updates
    return moved, state


def test_one_overflow_loses_one_gradient_and_not_the_sum():
    gradients = [jnp.full(2, x, jnp.float32) for x in (1.0, 2.0, jnp.inf, 3.0, 6.0)]
    tx = fnopt.dynamic_loss_scale(fnopt.accumulate(fnopt.sgd(1.0), 4), 8.0)
    moved, state = overflowing(tx, gradients, fnopt.loss_scale)
    # The mean of the four finite ones, though the scale was halved among them.
    assert moved.tolist() == [-3.0, -3.0]
    assert float(state.scale) == 4.0
    assert int(state.total_skipped) == 1
    # The other nesting has lost the four that the infinite one is in.
    tx = fnopt.accumulate(fnopt.dynamic_loss_scale(fnopt.sgd(1.0), 8.0), 4)
    moved, state = overflowing(tx, gradients, fnopt.loss_scale)
    assert moved.tolist() == [0.0, 0.0]
    # apply_if_finite likewise
    tx = fnopt.apply_if_finite(fnopt.accumulate(fnopt.sgd(1.0), 4))
    moved, _ = overflowing(tx, gradients, lambda state: 1.0)
    assert moved.tolist() == [-3.0, -3.0]
