"""`sparse_rows`: steps of tables that touch only the rows of a batch."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.core import Rows

N, D, K, STEPS = 20, 3, 6, 5
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, N, (STEPS, K)).astype(np.int32)
IDS[:, 1] = IDS[:, 0]  # some twice
VALUES = RNG.standard_normal((STEPS, K, D)).astype(np.float32)
BIAS = RNG.standard_normal((STEPS, D)).astype(np.float32)
START = RNG.standard_normal((N, D)).astype(np.float32)

SAME = {
    "sgd": fnopt.sgd(0.1),
    "adagrad": fnopt.adagrad(0.1),
    "clipped sgd": fnopt.chain(fnopt.clip_by_global_norm(0.5), fnopt.sgd(0.1)),
}
LAZY = {
    "adam": fnopt.adam(0.1),
    "momentum": fnopt.sgd(0.1, momentum=0.9),
    "adamw": fnopt.adamw(0.1, weight_decay=0.3),
}


@functools.lru_cache
def all_runs():
    """Every optimizer on rows, and some on the dense gradient, in one program."""
    txs = {name: fnopt.sparse_rows(tx) for name, tx in (SAME | LAZY).items()}
    txs |= {f"dense {name}": tx for name, tx in SAME.items()}
    params = {"table": jnp.asarray(START), "bias": jnp.zeros(D)}

    def body(carry, batch):
        ids, values, bias = batch
        rows = Rows(ids, values, N)
        new = {}
        for name, tx in txs.items():
            p, s = carry[name]
            g = {"table": rows.dense() if name.startswith("dense") else rows, "bias": bias}
            u, s = tx.update(g, s, p)
            new[name] = fnopt.apply_updates(p, u), s
        return new, None

    carry = {name: (params, tx.init(params)) for name, tx in txs.items()}
    return jax.jit(lambda batch: jax.lax.scan(body, carry, batch)[0])((IDS, VALUES, BIAS))


@pytest.mark.parametrize("name", SAME)
def test_equals_the_dense_step_where_it_should(name):
    ours, dense = all_runs()[name][0], all_runs()[f"dense {name}"][0]
    for leaf in ("table", "bias"):
        np.testing.assert_allclose(ours[leaf], dense[leaf], rtol=1e-6, atol=1e-7)


def reference(name):
    """The lazy method written out, row by row, in float64."""
    p, m, v = START.astype(np.float64), np.zeros((N, D)), np.zeros((N, D))
    for t in range(STEPS):
        for i in set(IDS[t].tolist()):
            g = VALUES[t][IDS[t] == i].astype(np.float64).sum(0)
            if name == "momentum":
                m[i] = 0.9 * m[i] + g
                p[i] -= 0.1 * m[i]
                continue
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g * g
            step = m[i] / (1 - 0.9 ** (t + 1)) / (np.sqrt(v[i] / (1 - 0.999 ** (t + 1))) + 1e-8)
            p[i] -= 0.1 * (step + (0.3 * p[i] if name == "adamw" else 0))
    return p


@pytest.mark.parametrize("name", LAZY)
def test_lazy_methods_written_out(name):
    np.testing.assert_allclose(all_runs()[name][0]["table"], reference(name), rtol=2e-5, atol=1e-6)
    untouched = sorted(set(range(N)) - set(IDS.reshape(-1).tolist()))
    assert untouched
    np.testing.assert_array_equal(
        all_runs()[name][0]["table"][np.array(untouched)], START[untouched]
    )
    slot = next(iter(fnopt.slots(all_runs()[name][1]).values()))
    np.testing.assert_array_equal(slot["table"][np.array(untouched)], 0)


def test_in_place():
    n = 4096
    tx = fnopt.sparse_rows(fnopt.adam(1e-3))
    params = jax.ShapeDtypeStruct((n, 64), jnp.float32)
    rows = Rows(
        jax.ShapeDtypeStruct((8,), jnp.int32), jax.ShapeDtypeStruct((8, 64), jnp.float32), n
    )

    def step(params, state, rows):
        updates, state = tx.update(rows, state, params)
        return fnopt.apply_updates(params, updates), state

    state = jax.eval_shape(tx.init, params)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, rows).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        pytest.skip("this backend does not report memory")
    assert analysis.temp_size_in_bytes < n * 64 * 4 / 10
    assert analysis.alias_size_in_bytes > 3 * n * 64 * 4 - 100


def step_of(tx, params, grads):
    tx = fnopt.sparse_rows(tx)
    return jax.eval_shape(lambda p, g: tx.update(g, tx.init(p), p), params, grads)


def test_types_of_mixed_trees():
    params = {"table": jnp.ones((N, D), jnp.bfloat16), "w": jnp.ones(2, jnp.bfloat16), "n": None}
    grads = {"table": Rows(jnp.arange(2), jnp.ones((2, D)), N), "w": jnp.ones(2), "n": None}
    updates, state = step_of(fnopt.freeze(fnopt.adam(0.1), "w"), params, grads)
    assert updates["w"].dtype == jnp.bfloat16
    assert updates["table"].values.dtype == jnp.float32
    assert fnopt.slots(state)["mu"]["table"].shape == (N, D)
    wide = step_of(fnopt.kahan(fnopt.sgd(0.1)), params, grads)[0]
    assert wide["w"].dtype == jnp.float32


def test_what_has_no_rows_is_refused():
    params = {"table": jnp.ones((N, D))}
    grads = {"table": Rows(jnp.arange(2), jnp.ones((2, D)), N)}
    with pytest.raises(ValueError, match="transform accumulate sums the gradients of several"):
        fnopt.sparse_rows(fnopt.chain(fnopt.accumulate(fnopt.sgd(0.1), 2)))
    with pytest.raises(ValueError, match="so that sparse_rows can select rows"):
        step_of(fnopt.flatten(fnopt.adam(0.1)), params, grads)
    with pytest.raises(ValueError, match=r"one entry per row|select rows"):
        step_of(fnopt.quantized_state(fnopt.adam(0.1), min_size=1), params, grads)
    with pytest.raises(ValueError, match=r"parameter has shape \(20, 2\)"):
        step_of(fnopt.sgd(0.1), {"table": jnp.ones((N, 2))}, grads)
    with pytest.raises(ValueError, match="row-sparse update belongs to a table"):
        fnopt.apply_updates({"table": jnp.ones((N, 2))}, grads)


def test_rows_beyond_the_table_stand_for_nothing():
    # -1 and N - 1 are the same row to NumPy, and would both be stepped
    rows = Rows(jnp.asarray([N + 5, 2, -1, 2, N, N - 1, -N]), jnp.ones((7, D)), N)
    dense = np.asarray(rows.dense())
    np.testing.assert_array_equal(dense[[2, -1]], [[2] * D, [1] * D])
    assert dense.sum() == 3 * D
    np.testing.assert_array_equal(rows.added_to(jnp.zeros((N, D))), dense)
    np.testing.assert_array_equal(rows.of(jnp.ones((N, D)))[:, 0], [0, 1, 0, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("indices", "values", "error", "text"),
    [
        (np.ones(2), np.ones((2, D)), TypeError, "indices are float32 and values are float32"),
        (np.ones(2, bool), np.ones((2, D)), TypeError, "indices are bool"),
        (np.arange(2), np.ones((2, D), int), TypeError, "and values are int32, expected"),
        (np.arange(2)[None], np.ones((1, 2, D)), ValueError, r"ids.reshape\(-1\)"),
        (np.arange(2), np.ones((3, D)), ValueError, r"shape \(2,\) and values \(3, 3\)"),
    ],
)
def test_what_is_no_list_of_rows(indices, values, error, text):
    grads = {"table": Rows(jnp.asarray(indices), jnp.asarray(values), N)}
    with pytest.raises(error, match=f"sparse_rows: Rows: .*{text}"):
        step_of(fnopt.sgd(0.1), {"table": jnp.ones((N, D))}, grads)


@pytest.mark.parametrize("make", [fnopt.kahan, lambda tx: fnopt.chain(fnopt.clip(1.0), tx)])
def test_wrappers_around_it_say_where_it_belongs(make):
    params = {"table": jnp.ones((N, D))}
    grads = {"table": Rows(jnp.arange(2), jnp.ones((2, D)), N)}
    tx = make(fnopt.sparse_rows(fnopt.sgd(0.1)))
    with pytest.raises(ValueError, match=r"contain Rows, expected arrays.*sparse_rows\(chain"):
        tx.update(grads, tx.init(params), params)


def test_strict_and_averages_of_params_may_be_around_it():
    params = {"table": jnp.ones((N, D))}
    grads = {"table": Rows(jnp.arange(2), jnp.ones((2, D)), N)}
    tx = fnopt.strict(fnopt.chain(fnopt.sparse_rows(fnopt.sgd(0.5)), fnopt.params_mean()))
    updates, state = tx.update(grads, tx.init(params), params)
    averaged = fnopt.averaged_params(state, params)["table"]
    np.testing.assert_array_equal(averaged, fnopt.apply_updates(params, updates)["table"])
    assert averaged[:3, 0].tolist() == [0.5, 0.5, 1.0]
