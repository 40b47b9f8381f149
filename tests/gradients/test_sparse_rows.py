"""`sparse_value_and_grad`: gradients of tables that never exist as a whole."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.core import Rows
from fnopt.programs import jaxprs

N, D = 50, 3
IDS = jnp.asarray([[4, 7, 4], [-1, 60, -70]], jnp.int32)  # repeated, from the end, beyond the ends


def params(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return {
        "words": jnp.asarray(rng.standard_normal((N, D)), dtype),
        "places": jnp.asarray(rng.standard_normal((5, D)), jnp.float32),
        "out": jnp.asarray(rng.standard_normal(D), jnp.float32),
    }


def loss(p, ids, scale):
    a, b = p["words"][ids].astype(jnp.float32), p["words"].take(ids[0], axis=0)
    rows = a.sum(axis=0) + b.astype(jnp.float32) + p["places"][jnp.arange(3)]
    return scale * jnp.sum(jnp.tanh(rows) @ p["out"]), rows


@functools.lru_cache
def results(dtype):
    """Sparse and dense gradients, in one program."""
    sparse = fnopt.sparse_value_and_grad(loss, ("words", "pl*"), has_aux=True)
    dense = jax.value_and_grad(loss, has_aux=True)
    return jax.jit(lambda p: (sparse(p, IDS, 2.0), dense(p, IDS, 2.0)))(params(dtype))


def test_value_aux_and_gradients_are_those_of_the_dense_gradient():
    ((value, aux), grads), ((expected, rows), dense) = results("float32")
    assert value == expected
    np.testing.assert_array_equal(aux, rows)
    np.testing.assert_allclose(grads["out"], dense["out"], rtol=1e-6)
    for name in ("words", "places"):
        assert isinstance(grads[name], Rows)
        np.testing.assert_allclose(grads[name].dense(), dense[name], rtol=1e-5, atol=1e-6)


def test_rows_are_summed_and_ascend():
    words = results("float32")[0][1]["words"]
    assert words.indices.shape == (9,)
    np.testing.assert_array_equal(words.indices[:3], [4, 7, 49])
    assert (np.diff(words.indices) > 0).all()  # unused places stand behind the table
    assert (words.indices[3:] >= N).all()
    assert words.indices[3] == N  # the two lookups beyond the ends
    np.testing.assert_array_equal(words.values[4:], 0)


def test_sums_of_bfloat16_are_float32():
    (_, grads), (_, dense) = results("bfloat16")
    assert grads["words"].values.dtype == jnp.float32
    dense = np.asarray(dense["words"], np.float32)
    np.testing.assert_allclose(grads["words"].dense(), dense, rtol=0.02, atol=0.02)


def test_nothing_of_the_tables_size_is_made():
    grad = fnopt.sparse_value_and_grad(loss, "words", has_aux=True)
    closed = jax.make_jaxpr(grad)(params(), IDS, 2.0)
    made = {v.aval.shape for eqn in jaxprs.equations(closed.jaxpr) for v in eqn.outvars}
    assert (9, D) in made  # the rows of the nine lookups
    assert (N, D) not in made


def test_a_table_that_is_not_looked_up_has_no_rows():
    grad = fnopt.sparse_value_and_grad(lambda p: jnp.sum(p["out"] ** 2), "words")
    rows = grad(params())[1]["words"]
    assert rows.values.shape == (0, D)
    assert fnopt.apply_updates(params()["words"], rows).shape == (N, D)


def whole(p):
    return jnp.sum(p["words"] ** 2)


def added(p):
    return jnp.sum(jnp.add(p["words"], 1.0))


def columns(p):
    return jnp.sum(p["words"][IDS[0], :2])


def scanned(p):
    return jnp.sum(jax.lax.map(lambda i: p["words"][i], IDS[0]))


def kept(p):
    return jnp.sum(jax.checkpoint(lambda table: table[IDS[0]])(p["words"]))


def given_back(p):
    return jnp.sum(p["words"][IDS[0]]), p["words"]


@pytest.mark.parametrize("fn", [whole, added, columns, scanned, kept])
def test_other_uses_of_a_table_are_errors(fn):
    with pytest.raises(TypeError):
        jax.eval_shape(fnopt.sparse_value_and_grad(fn, "words"), params())


def test_a_table_that_is_returned():
    grad = fnopt.sparse_value_and_grad(given_back, "words", has_aux=True)
    with pytest.raises(TypeError, match="the table 'words' is returned, expected only lookup"):
        jax.eval_shape(grad, params())


def of_flax(ids):
    from flax import linen

    return lambda table: linen.Embed(N, D, dtype=jnp.bfloat16).apply(
        {"params": {"embedding": table}}, ids
    )


def of_equinox(ids):
    import equinox as eqx

    return lambda table: jax.vmap(jax.vmap(eqx.nn.Embedding(weight=table)))(ids)


FORMS = {
    "take": lambda ids: lambda table: jnp.take(table, ids, axis=0),
    "take_clip": lambda ids: lambda table: jnp.take(table, ids, axis=0, mode="clip"),
    "jit": lambda ids: jax.jit(lambda table: table[ids]),
    "vmap": lambda ids: jax.vmap(lambda table, i: table[i], (None, 0), 1),
    "slices": lambda ids: lambda table: jnp.stack([table[:3], table[3:9:2]]),
    "one": lambda ids: lambda table: jnp.stack([table[ids[0, 0]], table[7], table[-1]]),
    "flax": of_flax,
    "equinox": of_equinox,
}
INSIDE = jnp.asarray([[4, 7, 4], [0, 49, 7]], jnp.int32)


def loss_of(name):
    ids = IDS if name == "take_clip" else INSIDE  # beyond the ends too
    look_up = FORMS[name](ids)
    args = (ids,) if name == "vmap" else ()

    def fn(p):
        rows = look_up(p["words"], *args).astype(jnp.float32)
        weights = jnp.arange(rows.size, dtype=jnp.float32).reshape(rows.shape)
        return jnp.sum(jnp.square(rows) * weights)

    return fn


def test_all_ways_to_look_rows_up():
    """They give the dense gradient, without anything of the table's size; in one program."""
    fns = {name: loss_of(name) for name in FORMS}
    sparse = {name: fnopt.sparse_value_and_grad(fn, "words") for name, fn in fns.items()}
    both = jax.jit(lambda p: {n: (sparse[n](p), jax.value_and_grad(fns[n])(p)) for n in FORMS})
    for name, ((value, grads), (expected, dense)) in both(params()).items():
        # A compiler may leave out the rounding of looked-up rows to bfloat16 in one of the two.
        half_unit = 2.0**-9 if name == "flax" else 1e-6
        np.testing.assert_allclose(value, expected, rtol=half_unit, err_msg=name)
        rtol = 0.02 if name == "flax" else 1e-5  # bfloat16: sums of rows are float32 here
        rows = grads["words"].dense()
        np.testing.assert_allclose(rows, dense["words"], rtol=rtol, atol=rtol, err_msg=name)
        program = jax.make_jaxpr(sparse[name])(params()).jaxpr
        made = {v.aval.shape for eqn in jaxprs.equations(program) for v in eqn.outvars}
        assert (N, D) not in made, name


def test_aux_may_hold_anything():
    def fn(p):
        return jnp.sum(p["words"][IDS[0]]), {"name": "a", "n": 3, "none": None, "x": p["out"]}

    (_, aux), _ = fnopt.sparse_value_and_grad(fn, "words", has_aux=True)(params())
    assert aux["name"] == "a"
    assert aux["n"] == 3
    assert aux["none"] is None
    np.testing.assert_array_equal(aux["x"], params()["out"])


def test_a_name_that_fits_nothing():
    with pytest.raises(ValueError, match=r"no leaf of the params is named 'word'.*'words'"):
        fnopt.sparse_value_and_grad(whole, "word")(params())
