"""Reductions of values and cotangents, computed on the way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.numerics import exponents
from fnopt.taps import capture, tap
from fnopt.taps._reductions import REDUCTIONS

W = jax.random.normal(jax.random.key(0), (8, 8)) / 2
X = jax.random.normal(jax.random.key(1), (5, 3, 8))


def recurrent(w, x):
    def step(h, u):
        h = tap("h", jax.nn.relu(u + h @ w))
        return h, tap("y", jnp.tanh(h))

    h, ys = jax.lax.scan(step, jnp.zeros((3, 8)), x)
    return jnp.sum(ys**2) + jnp.sum(tap("last", h) ** 2)


REFERENCES = {
    "mean": np.mean,
    "rms": lambda x: np.sqrt(np.mean(x**2)),
    "max": lambda x: np.max(np.abs(x)),
    "zeros": lambda x: np.mean(x == 0),
    "dead": lambda x: np.mean(np.all(x == 0, axis=0)),
    "nonfinite": lambda x: np.mean(~np.isfinite(x)),
}


@pytest.fixture(scope="module")
def whole():
    return jax.jit(capture(recurrent, cotangents=True, argnums=0))(W, X)


@pytest.mark.parametrize("name", REFERENCES)
def test_against_numpy_on_the_whole_values(name, whole):
    seeing = jax.jit(capture(recurrent, cotangents=True, argnums=0, reduce=name))
    loss, seen = seeing(W, X)
    np.testing.assert_allclose(loss, whole[0], rtol=1e-6)
    np.testing.assert_allclose(seen.grads, whole[1].grads, rtol=1e-5, atol=1e-5)
    for what in ("values", "cotangents"):
        arrays = {k: np.asarray(v, np.float64) for k, v in getattr(whole[1], what).items()}
        stacks = {"h": arrays["h"], "y": arrays["y"], "last": arrays["last"][None]}
        expected = {k: [REFERENCES[name](step) for step in stack] for k, stack in stacks.items()}
        for k, reduced in getattr(seen, what).items():
            assert reduced.shape == (() if k == "last" else (5,))
            np.testing.assert_allclose(
                np.ravel(reduced), expected[k], rtol=1e-5, atol=1e-6, err_msg=f"{what} of {k}"
            )


def test_every_reduction_has_a_reference():
    assert set(REDUCTIONS) == {*REFERENCES, "histogram"}


def test_histogram():
    edges = 2.0 ** np.arange(-40, 22, 2)
    x = np.array([0.0, -0.0, 1e-30, 2.0**-40, 0.5, -1.0, 3.999, 4.0, 1e30, np.inf, np.nan])
    counts = jax.jit(REDUCTIONS["histogram"])(jnp.asarray(x, jnp.float32))
    assert counts.shape == (exponents.BINS,)
    finite = np.abs(x[np.isfinite(x)])
    expected = np.bincount(np.searchsorted(edges, finite, side="right"), minlength=exponents.BINS)
    assert counts.tolist() == expected.tolist()


def test_counts_stay_integers_for_cotangents_too():
    _, seen = jax.jit(capture(recurrent, "h", cotangents=True, reduce="histogram"))(W, X)
    assert seen.values["h"].dtype == seen.cotangents["h"].dtype == jnp.int32
    assert seen.values["h"].sum(axis=1).tolist() == [24] * 5
    assert seen.cotangents["h"].sum(axis=1).tolist() == [24] * 5


def test_several_and_functions():
    reduce = {"rms": "rms", "first": lambda x: x[0, :2], "n": lambda x: {"size": x.size}}
    _, seen = capture(recurrent, "last", cotangents=True, reduce=reduce)(W, X)
    assert seen.values["last"]["first"].shape == (2,)
    assert int(seen.cotangents["last"]["n"]["size"]) == 24
    _, both = capture(recurrent, "last", reduce=("rms", "max"))(W, X)
    assert list(both.values["last"]) == ["max", "rms"] or list(both.values["last"]) == [
        "rms",
        "max",
    ]


@pytest.mark.skipif(
    jax.__version_info__ < (0, 8), reason="that compiler plans more memory for the same program"
)
def test_nothing_big_is_stacked():
    def memory(fn):
        compiled = jax.jit(fn).lower(W, jnp.zeros((500, 3, 8))).compile()
        analysis = compiled.memory_analysis()
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes

    def looking(reduce):
        return memory(capture(recurrent, ("h", "y"), cotangents=True, argnums=0, reduce=reduce))

    plain, whole = memory(jax.grad(recurrent)), 500 * 3 * 8 * 4
    assert looking(None) - plain > 2 * whole  # the measure sees stacks
    assert looking("rms") - plain < whole / 4


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0)])
def test_shapes_and_dtypes_of_all_kinds(shape):
    def fn(x, n):
        return jnp.sum(tap("x", x).astype(jnp.float32)) + jnp.sum(tap("n", n).astype(jnp.float32))

    seeing = jax.jit(capture(fn, cotangents=True, reduce=[*REDUCTIONS]))
    _, seen = seeing(jnp.ones(shape, jnp.bfloat16), jnp.ones(shape, jnp.int32))
    for reduced in (*seen.values.values(), seen.cotangents["x"]):
        assert set(reduced) == set(REDUCTIONS)
        assert all(np.all(np.isfinite(r)) for r in reduced.values())
        assert {r.dtype.name for r in reduced.values()} == {"float32", "int32"}


def test_nan_is_not_hidden():
    x = jnp.array([1.0, jnp.nan])
    for name in ("mean", "rms", "max"):
        assert np.isnan(REDUCTIONS[name](x))
    assert REDUCTIONS["nonfinite"](x) == 0.5


def test_the_rms_of_what_has_no_square_in_float32():
    # A vanishing cotangent is what one looks for; 0 would be said of a dead one.
    for size in (1e-30, 1e-24, 1e22, 1e30):
        x = np.array([3.0, -4.0]) * size
        np.testing.assert_allclose(REDUCTIONS["rms"](jnp.float32(x)), 12.5**0.5 * size, rtol=1e-6)
    assert REDUCTIONS["rms"](jnp.array([1.0, -jnp.inf])) == jnp.inf


def test_several_functions_need_names():
    with pytest.raises(
        TypeError, match=r"capture: reduce is a sequence with a function without a name.*'mine'"
    ):
        capture(recurrent, "last", reduce=("rms", jnp.sum))


def test_the_mean_of_low_precision_is_taken_in_float32():
    x = jnp.ones(3000, jnp.bfloat16)
    assert REDUCTIONS["mean"](x) == 1.0
    assert REDUCTIONS["zeros"](x) == 0.0


def test_unknown_reductions():
    with pytest.raises(ValueError, match=r"capture: reduce is 'rsm', expected one of \['mean'"):
        capture(recurrent, reduce="rsm")
