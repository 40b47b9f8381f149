from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.transforms import _quantized_state
from fnopt.transforms._block_codes import (
    CODES,
    SIGNED,
    UNSIGNED,
    block_length,
    block_scales,
    decode,
    decode_numbers,
    encode,
    encode_with,
    magnitudes,
    round_to_codes,
)
from tests.contract.trees import assert_identical, signature

STEP = jnp.uint32(3)


CODE = pytest.mark.parametrize("code", CODES.values(), ids=[f"{f}{b}" for f, b in CODES])


def values(code):
    m = magnitudes(code)
    return np.concatenate([m, np.full(code.sign - m.size, np.nan), -m]) if code.signed else m


@functools.lru_cache
def coded(code):
    """Every code's number and back, and numbers of all sizes with their codes."""
    rng = np.random.default_rng(0)
    x = np.clip(rng.standard_normal(4000) * 10.0 ** rng.uniform(-8, 0, 4000), -1, 1)
    x = np.abs(x) if not code.signed else x
    x = np.concatenate([x, [0.0, 1.0]]).astype(np.float32)
    codes = jnp.asarray(np.flatnonzero(np.isfinite(values(code))), jnp.uint8)

    @jax.jit
    def run():
        numbers = decode_numbers(codes, code)
        place = jnp.arange(x.size, dtype=jnp.uint32)
        back = round_to_codes(numbers, place[: codes.size], code, STEP)
        found = round_to_codes(jnp.asarray(x) * (1 - code.bias), place, code, STEP)
        back, found = (c.astype(jnp.uint8) & (2**code.bits - 1) for c in (back, found))
        return numbers / (1 - code.bias), back - codes, found

    return x, *map(np.asarray, run())


@CODE
def test_codes_are_a_neighbor_among_the_magnitudes(code):
    x, numbers, back, found = coded(code)
    table = values(code)
    np.testing.assert_allclose(numbers, table[np.isfinite(table)], rtol=3e-7, atol=1e-12)
    np.testing.assert_array_equal(back[numbers != 0], 0)  # there are two zeros
    ordered = np.unique(table[np.isfinite(table)])
    above = np.clip(np.searchsorted(ordered, x), 1, len(ordered) - 1)
    low, high = ordered[above - 1], ordered[above]
    low = np.where((x > 0) & (low == 0) & (not code.signed), high, low)  # never to zero
    rounded = table[found]
    assert (np.isclose(rounded, low, rtol=1e-6) | np.isclose(rounded, high, rtol=1e-6)).all()
    # Right on average: each error is within a gap, so the mean is near zero.
    inside = high > low
    error = ((rounded - x) / np.where(inside, high - low, 1))[inside]
    assert abs(error.mean()) < 4 * 0.5 / np.sqrt(error.size)


def test_a_mean_square_decays_though_no_step_reaches_the_next_code():
    tx = fnopt.quantized_state(fnopt.scale_by_rms(0.999), {"nu": "unsigned"}, min_size=1)
    start = jnp.linspace(0.5, 1.0, 256)  # of one block; its largest doesn't decay

    def body(_, state):
        nu = jnp.where(jnp.arange(256) == 255, 1.0, 0.0)
        return tx.update(nu, state)[1]

    def run():
        state = tx.init(start)
        inner = state.inner_state._replace(nu=encode(start, UNSIGNED, 256, STEP))
        return jax.lax.fori_loop(0, 300, body, state._replace(inner_state=inner))

    codes, scale = fnopt.slots(jax.jit(run)())["nu"]
    found = np.asarray(decode(codes, scale, UNSIGNED, 256))[:255]
    ratio = found / (np.asarray(start)[:255] * 0.999**300)
    assert abs(ratio.mean() - 1) < 0.02


@CODE
def test_magnitudes_are_floats_with_a_bias(code):
    # Octave n above the bias begins at 2^n of it, and has 2^digits evenly spaced numbers.
    octave, part = np.divmod(np.arange(code.octaves * 2**code.digits + 1), 2**code.digits)
    expected = (2.0**octave * (1 + part / 2**code.digits) - 1) / (2**code.octaves - 1)
    np.testing.assert_allclose(magnitudes(code), expected, rtol=1e-6)
    assert magnitudes(code)[-1] == 1
    assert code.largest < (code.sign if code.signed else 2**code.bits)


@pytest.mark.parametrize("inner", [fnopt.adamw(1e-2), fnopt.lion(1e-2)], ids=["adamw", "lion"])
def test_a_step_computed_twice_is_the_same(inner, monkeypatch):
    params = jax.tree.map(jnp.asarray, PARAMS)
    slots = {name: form for name, form in FORMS.items() if name in fnopt.slot_names(inner, params)}
    tx = fnopt.quantized_state(inner, slots)

    def run(twice):
        monkeypatch.setattr(_quantized_state, "_recomputes_step", lambda: twice)
        state = tx.init(params)
        return jax.jit(lambda g, s, p: tx.update(g, s, p))(params, state, params)

    assert_identical(run(True), run(False))


@pytest.mark.parametrize("shape", [(8, 512), (8, 320), (4000,), (9, 7, 5)])
def test_codes_and_scales_for_accelerators_are_those_for_cpus(shape, monkeypatch):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x[:1], x.ravel()[-1] = 0, np.inf

    def run():
        scales = jax.jit(lambda x: block_scales.__wrapped__(x, 256))(x)
        coded = lambda x, s: encode_with.__wrapped__(x, s, SIGNED, 256, STEP)  # noqa: E731
        return scales, jax.jit(coded)(x, scales)

    expected = run()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert_identical(run(), expected)


FORMS = {"mu": "signed", "nu": "unsigned"}
ODD = {
    "zeros": np.zeros(9, np.float32),
    "tiny": np.linspace(-1e-24, 1e-24, 9, dtype=np.float32),
    "huge": np.linspace(-1e20, 1e20, 9, dtype=np.float32),
    "scalar": np.float32(3.0),
    "two axes": np.linspace(-1, 1, 21, dtype=np.float32).reshape(7, 3),
}


@functools.lru_cache
def round_trips():
    def run():
        return {
            k: decode(*encode(jnp.asarray(x), SIGNED, 4, STEP), SIGNED, 4) for k, x in ODD.items()
        }

    return jax.jit(run)()


@pytest.mark.parametrize("name", ODD)
def test_blocks_that_do_not_fit_and_odd_magnitudes(name):
    x, y = ODD[name], np.asarray(round_trips()[name])
    assert y.shape == x.shape
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, x, atol=np.abs(x).max() / 16)  # the gap of the highest octave


@pytest.mark.parametrize(
    ("shape", "most", "length"),
    [
        ((4, 1024), 256, 256),
        ((4, 320), 256, 320),
        ((4, 1000), 256, 200),
        ((4, 750), 256, 250),
        ((9, 7, 4), 256, 252),
        ((4, 400), 100, 100),
        ((), 256, 256),
    ],
)
def test_blocks_divide_the_last_axis_and_begin_at_vectors(shape, most, length):
    assert block_length(shape, most) == length


def test_what_is_not_finite_spoils_its_own_block_only():
    x = jnp.asarray([1.0, jnp.nan, 1, 1, 1, jnp.inf, 1, 1, 1, 1, 1, 1], jnp.float32)
    y = np.asarray(decode(*encode(x, SIGNED, 4, STEP), SIGNED, 4))
    assert not np.isfinite(y[:8]).any()
    np.testing.assert_array_equal(y[8:], 1)


PARAMS = {"w": np.ones((64, 256), np.float32), "odd": np.ones((70, 71), np.float32)}
LARGE = {**PARAMS, "b": np.ones(256, np.float32)}


def test_an_initial_state_is_computed_when_the_program_runs():
    # Folded by XLA's interpreter, the scales of a million zeros took 9 s of compilation.
    tx = fnopt.quantized_state(fnopt.adamw(1e-3))
    program = jax.jit(tx.init).lower({"w": jnp.ones((8, 1024))}).compile()
    assert "reduce(" in program.as_text()


def test_four_bits_are_kept_in_half_a_byte():
    tx, params = (
        fnopt.quantized_state(fnopt.adamw(1e-3), bits=4, block_size=128),
        {"w": PARAMS["w"]},
    )
    memory: Any = jax.jit(tx.init).lower(params).compile().memory_analysis()
    assert memory.output_size_in_bytes / params["w"].size < 2 * (0.5 + 4 / 128) + 0.01


def test_two_bytes_a_param_for_both_slots():
    state = jax.eval_shape(fnopt.quantized_state(fnopt.adamw(1e-3)).init, PARAMS)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    assert size / sum(x.size for x in PARAMS.values()) < 2.1
    mu = fnopt.slots(state)["mu"]
    assert mu["w"][0].shape == (64, 256)
    large = jax.eval_shape(fnopt.quantized_state(fnopt.adamw(1e-3)).init, LARGE)
    assert fnopt.slots(large)["nu"]["b"].dtype == jnp.float32


def test_no_temporary_in_float32_but_one_leaf():
    params = {f"w{i}": jnp.ones((256, 256)) for i in range(6)}
    tx = fnopt.quantized_state(fnopt.adamw(1e-3))

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return fnopt.apply_updates(params, updates), state

    types = jax.eval_shape(lambda: params)
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(
        types, jax.eval_shape(tx.init, params), types
    )
    analysis = lowered.compile().memory_analysis()
    if analysis is None:
        pytest.skip("this backend does not report memory")
    codes = 2 * 6 * 256 * 256  # which may be copied, because they are written in place
    assert analysis.temp_size_in_bytes < codes + 4 * 256 * 256 * 1.1


SEEDS = 6
BITS = (256, 8), (128, 4)


@functools.lru_cache
def trained_on_digits():
    """Losses and accuracies of several seeds, in float32, with 8-bit and with 4-bit slots."""
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    x, y = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target, jnp.int32)

    def logits(p, x):
        return jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]

    def loss(p, x, y):
        return fnopt.losses.softmax_cross_entropy_with_integer_labels(logits(p, x), y).mean()

    def train(tx, key):
        a, c = jax.random.split(key)
        params = {
            "a": jax.random.normal(a, (64, 32)) / 8,
            "b": jnp.zeros(32),
            "c": jax.random.normal(c, (32, 10)) / 6,
        }

        def body(carry, key):
            params, state = carry
            i = jax.random.randint(key, (64,), 0, 1200)
            updates, state = tx.update(jax.grad(loss)(params, x[i], y[i]), state, params)
            return (fnopt.apply_updates(params, updates), state), None

        keys = jax.random.split(key, 300)
        params = jax.lax.scan(body, (params, tx.init(params)), keys)[0][0]
        right = jnp.argmax(logits(params, x[1200:]), axis=1) == y[1200:]
        return loss(params, x[1200:], y[1200:]), right.mean(dtype=jnp.float32)

    adamw = fnopt.adamw(fnopt.cosine_decay_schedule(1e-2, 300))
    codes = [fnopt.quantized_state(adamw, block_size=b, min_size=1, bits=n) for b, n in BITS]

    @jax.jit
    def run(keys):
        return [jax.vmap(functools.partial(train, tx))(keys) for tx in (adamw, *codes)]

    return jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(0), SEEDS)))


def test_training_is_as_good_as_in_float32_within_noise():
    (plain_loss, plain_right), *others = trained_on_digits()
    assert plain_right.mean() > 0.9
    # The standard error of the mean difference over seeds is what noise is.
    for loss, right in others:
        for ours, theirs in ((loss, plain_loss), (1 - right, 1 - plain_right)):
            noise = np.hypot(ours.std(ddof=1), theirs.std(ddof=1)) / np.sqrt(SEEDS)
            assert ours.mean() < theirs.mean() + 3 * noise


def test_wrong_names_and_forms():
    with pytest.raises(ValueError, match=r"no slot is named 'mu'.*'0/trace'"):
        fnopt.quantized_state(fnopt.sgd(0.1, momentum=0.9)).init(LARGE)
    with pytest.raises(ValueError, match="'signed', 'unsigned'"):
        fnopt.quantized_state(fnopt.adam(0.1), {"mu": "int8"})
    with pytest.raises(ValueError, match="bits is 3, expected one of 8, 4"):
        fnopt.quantized_state(fnopt.adam(0.1), bits=3)
    with pytest.raises(TypeError, match="slots = 'mu', expected a dict"):
        fnopt.quantized_state(fnopt.adam(0.1), "mu")
    with pytest.raises(ValueError, match="no slot is named 'm'"):
        fnopt.precision_policy(fnopt.adam(0.1), {"m": "bfloat16"}).init(LARGE)
    with pytest.raises(ValueError, match="float32 or wider"):
        fnopt.precision_policy(fnopt.adam(0.1), {}, compute_dtype="bfloat16")


@pytest.mark.parametrize(
    ("outer", "slots"), [(fnopt.precision_policy, {"*": "bfloat16"}), (fnopt.quantized_state, None)]
)
def test_slots_in_codes_have_no_second_form(outer, slots):
    inner = fnopt.quantized_state(fnopt.adam(0.1))
    name = outer.__name__
    remedy = "use quantized_state once, as the outermost wrapper"
    with pytest.raises(ValueError, match=f"^{name}: '.*' selects .*/mu', .*{remedy}"):
        (outer(inner, slots) if slots else outer(inner)).init(LARGE)
    inner = fnopt.quantized_state(fnopt.adam(0.1), {"nu": "unsigned"})
    state, _ = types_after(fnopt.precision_policy(inner, {"mu": "bfloat16"}), LARGE)
    slots = state.inner_state.inner_state[0]
    assert slots.mu["w"].dtype == jnp.bfloat16
    assert slots.nu["w"][0].dtype == jnp.uint8


def types_after(tx, params):
    def step(params):
        state = tx.init(params)
        return state, *tx.update(params, state, params)

    state, updates, new = jax.eval_shape(step, params)
    assert signature(state) == signature(new)
    return state, updates


@pytest.mark.parametrize(
    "tx",
    [
        fnopt.accumulate(fnopt.quantized_state(fnopt.adam(1e-3)), 2),
        fnopt.quantized_state(fnopt.accumulate(fnopt.adam(1e-3), 2)),
        fnopt.apply_if_finite(fnopt.quantized_state(fnopt.lion(1e-3), {"mu": "signed"})),
        fnopt.master_copy(fnopt.quantized_state(fnopt.adamw(1e-3))),
        fnopt.quantized_state(fnopt.sgd(0.1, momentum=0.9), {"*trace": "signed"}),
        fnopt.quantized_state(fnopt.freeze(fnopt.adam(1e-3), "b")),
        fnopt.accumulate(fnopt.quantized_state(fnopt.adam(1e-3), bits=4), 2),
    ],
    ids=lambda tx: repr(tx)[:24],
)
def test_composes(tx):
    state, _ = types_after(tx, LARGE)
    codes = [x for x in jax.tree.leaves(state) if x.dtype in (jnp.uint8, jnp.int4)]
    assert {x.shape for x in codes} == {PARAMS["w"].shape, PARAMS["odd"].shape}


def test_optax_inside():
    optax = pytest.importorskip("optax")
    with jax.numpy_dtype_promotion("standard"):
        state, _ = types_after(fnopt.quantized_state(optax.adam(1e-3)), LARGE)
    assert state.inner_state[0].mu["w"][0].dtype == jnp.uint8


def test_policy_of_dtypes():
    params = {"w": jnp.ones(4, jnp.bfloat16), "z": jnp.ones(2, jnp.complex64)}
    policy = {"mu": "bfloat16", "*": "float16"}
    state, updates = types_after(fnopt.precision_policy(fnopt.adamw(1e-3), policy), params)
    mu, nu = (state.inner_state[0]._asdict()[name] for name in ("mu", "nu"))
    assert (mu["w"].dtype, mu["z"].dtype) == (jnp.bfloat16, jnp.complex64)
    assert nu["w"].dtype == nu["z"].dtype == jnp.float16
    assert updates["w"].dtype == jnp.bfloat16


@pytest.mark.parametrize("options", [{"bits": 4}, {"block_size": 64}])
def test_the_state_of_other_options_is_named(options: dict[str, int]):
    state = fnopt.quantized_state(fnopt.adam(0.1)).init(LARGE)
    with pytest.raises(ValueError, match=r"expected u?int\d with .*\. Pass the bits and"):
        fnopt.quantized_state(fnopt.adam(0.1), **options).update(LARGE, state, LARGE)


@pytest.mark.parametrize("dtype", ["float16", "float8_e5m2", "float8_e4m3fn"])
def test_slots_beyond_the_range_of_a_dtype_are_its_largest_number(dtype: str):
    largest = float(jnp.finfo(dtype).max)
    grads = jnp.asarray([1e20, -1e6, 1.0, jnp.nan])
    expected = [largest, -largest, 1.0, np.nan]
    inner = fnopt.trace(0.9)
    policy, random = (fnopt.precision_policy(inner, {"*": dtype}, key=key) for key in (None, 0))
    for tx in (policy, random, fnopt.trace(0.9, accumulator_dtype=dtype)):
        slot = fnopt.slots(tx.update(grads, tx.init(grads))[1])["trace"]
        assert slot.dtype == dtype
        np.testing.assert_array_equal(np.asarray(slot, np.float32), expected)


def test_policy_of_a_complex_dtype_is_that_of_its_parts():
    tx = fnopt.precision_policy(fnopt.trace(0.9), {"trace": "complex64"})
    state = tx.init({"w": jnp.ones(2), "z": jnp.ones(2, jnp.complex64)})
    trace = fnopt.slots(state)["trace"]
    assert (trace["w"].dtype, trace["z"].dtype) == (jnp.float32, jnp.complex64)


def test_policy_of_the_compute_dtype(x64):
    params = {"w": jnp.ones(4, jnp.float32)}
    tx = fnopt.precision_policy(fnopt.adam(1e-3), {"mu": "float32"}, compute_dtype="float64")
    state, updates = types_after(tx, params)
    slots = fnopt.slots(state)
    assert (slots["mu"]["w"].dtype, slots["nu"]["w"].dtype) == (jnp.float32, jnp.float64)
    assert updates["w"].dtype == jnp.float32


def test_a_mean_square_in_bfloat16_decays_if_it_is_rounded_at_random():
    policies = {
        key: fnopt.precision_policy(fnopt.scale_by_rms(0.999), {"nu": "bfloat16"}, key=key)
        for key in (None, 3)
    }

    def decayed(tx):
        state = tx.init(jnp.ones(256))
        state = jax.tree.map(lambda x: jnp.ones_like(x) if x.ndim else x, state)
        step = lambda _, s: tx.update(jnp.zeros(256), s)[1]  # noqa: E731
        return jax.lax.fori_loop(0, 1000, step, state)

    ends = jax.jit(lambda: {str(k): decayed(tx) for k, tx in policies.items()})()
    nu = {k: np.asarray(fnopt.slots(s)["nu"], np.float32) for k, s in ends.items()}
    assert (nu["None"] == 1).all()  # what the key is for
    np.testing.assert_allclose(nu["3"].mean(), 0.999**1000, rtol=0.05)


def test_policy_of_what_is_stored_already_changes_nothing():
    params = {"w": jnp.linspace(-1, 1, 8)}
    plain, wrapped = fnopt.adamw(1e-2), fnopt.precision_policy(fnopt.adamw(1e-2), {"*": "float32"})
    expected = plain.update(params, plain.init(params), params)
    found = wrapped.update(params, wrapped.init(params), params)
    assert_identical(found[0], expected[0])
    assert_identical(found[1].inner_state, expected[1])
