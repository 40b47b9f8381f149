from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fnopt.monitor import health, histogram_edges, record_of

ALL = ("norm", "max", "mean", "rms", "ratio", "zeros", "nonfinite", "histogram")
RTOL = {jnp.float32: 2e-6, jnp.float64: 1e-13, jnp.bfloat16: 2e-6, jnp.float16: 2e-6}


def make(dtype, seed=0, zeros=0.2):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        x = rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 2, shape)
        return jnp.asarray(np.where(rng.uniform(size=shape) < zeros, 0.0, x), dtype)

    return {"enc": {"w": draw(7, 5), "b": draw(5)}, "head": [draw(5, 3), draw()]}


@partial(jax.jit, static_argnames=("stats", "groups"))
def looked(tree, params=None, *, stats=ALL, groups=None):
    return health(tree, params, stats=stats, groups=groups)


def by_hand(x, p):
    """The same in float64, by NumPy, from the values as they were stored."""
    x, p = (np.asarray(a).astype(np.float64).ravel() for a in (x, p))
    edges = np.concatenate([[0], histogram_edges(), [np.inf]])
    return {
        "norm": np.linalg.norm(x),
        "max": np.abs(x).max(),
        "mean": x.mean(),
        "rms": np.sqrt(np.mean(x**2)),
        "ratio": np.linalg.norm(x) / np.linalg.norm(p),
        "zeros": np.mean(x == 0),
        "nonfinite": 0,
        "histogram": np.histogram(np.abs(x), edges)[0],
    }


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_every_statistic_of_every_leaf(dtype):
    grads, params = make(dtype), make(dtype, 1, zeros=0)
    found = looked(grads, params)
    assert found.names == ("enc/b", "enc/w", "head/0", "head/1")
    assert found.sizes == (5, 35, 15, 1)
    for i, (g, p) in enumerate(zip(*map(jax.tree.leaves, (grads, params)), strict=True)):
        for stat, value in by_hand(g, p).items():
            ours = getattr(found, stat)
            assert ours.dtype == jnp.float32
            np.testing.assert_allclose(ours[i], value, rtol=RTOL[dtype], atol=1e-7)


def test_float64(x64):
    grads, params = make(jnp.float64), make(jnp.float64, 1, zeros=0)
    found = looked(grads, params)
    for i, (g, p) in enumerate(zip(*map(jax.tree.leaves, (grads, params)), strict=True)):
        for stat, value in by_hand(g, p).items():
            assert getattr(found, stat).dtype == jnp.float64
            np.testing.assert_allclose(getattr(found, stat)[i], value, rtol=1e-13)


def test_mixed_dtypes_are_summed_in_the_widest(x64):
    tree = {"a": jnp.ones(4, jnp.bfloat16), "b": jnp.ones(9, jnp.float64)}
    assert health(tree).norm.dtype == jnp.float64
    np.testing.assert_array_equal(health(tree).norm, [2, 3])


def test_sixteen_bits_are_summed_in_float32():
    # bfloat16 stops counting at 256, and 300^2 overflows float16
    assert health({"w": jnp.ones(10_000, jnp.bfloat16)}).norm[0] == 100
    assert health({"w": jnp.full(4, 300, jnp.float16)}).norm[0] == 600


def test_complex_leaves():
    found = health({"w": jnp.asarray([3 + 4j, 0])}, stats=("norm", "max", "mean", "zeros"))
    assert found.norm.dtype == jnp.float32
    np.testing.assert_allclose([found.norm[0], found.max[0]], [5, 5])
    np.testing.assert_allclose([found.mean[0], found.zeros[0]], [1.5, 0.5])


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_nonfinite_elements_are_counted_and_not_hidden(bad):
    tree = {"a": jnp.asarray([1.0, bad, bad]), "b": jnp.asarray([3.0, 4.0])}
    found = jax.jit(lambda t: health(t, stats=ALL[:4] + ALL[5:]))(tree)
    np.testing.assert_array_equal(found.nonfinite, [2, 0])
    assert not bool(jnp.isfinite(found.norm[0]))
    assert found.norm[1] == 5
    np.testing.assert_array_equal(jnp.sum(found.histogram, axis=1), [1, 2])


def test_a_norm_that_overflows_is_not_taken_for_bad_elements():
    found = health({"w": jnp.full(3, 3e38)})
    assert jnp.isinf(found.norm[0])
    assert found.nonfinite[0] == 0


def test_norms_whose_squares_are_out_of_range():
    grads = {"a": jnp.full(4, 1e30), "b": jnp.full(4, 1e-30), "c": jnp.ones(4), "d": jnp.zeros(4)}
    params = jax.tree.map(lambda g: g * 10, grads)
    found = looked(grads, params, stats=("norm", "rms", "ratio", "nonfinite"))
    np.testing.assert_allclose(found.norm, [2e30, 2e-30, 2, 0], rtol=1e-6)
    np.testing.assert_allclose(found.rms, [1e30, 1e-30, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(found.ratio, [0.1, 0.1, 0.1, 0], rtol=1e-6)
    np.testing.assert_array_equal(found.nonfinite, 0)


def test_bad_elements_are_looked_for_only_when_a_norm_is_not_finite():
    program = jax.make_jaxpr(lambda t: health(t, stats="nonfinite"))({"w": jnp.ones(3)})
    tests = [e.invars[0].aval.shape for e in program.eqns if e.primitive.name == "is_finite"]
    assert tests == [(1,)]  # of the norms of one group, not of three elements
    branches = [str(e.params["branches"]) for e in program.eqns if e.primitive.name == "cond"]
    assert sum("is_finite" in text for text in branches) == 1


def test_ratio_of_zero_weights():
    grads = {"a": jnp.zeros(2), "b": jnp.ones(2)}
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    found = health(grads, params)
    np.testing.assert_array_equal(found.ratio, [0, jnp.inf])
    record = record_of(0, found)  # a writer can't draw an infinity
    assert record["ratio/a"] == 0
    assert "ratio/b" not in record


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.float32, 20, elements=st.floats(width=32)))
def test_histogram_against_numpy(x):
    found = looked({"w": jnp.asarray(x)}, stats="histogram").histogram[0]
    finite = np.abs(x[np.isfinite(x)]).astype(np.float64)
    expected = np.histogram(finite, np.concatenate([[0], histogram_edges(), [np.inf]]))[0]
    np.testing.assert_array_equal(found, expected)


def test_histogram_of_bfloat16_and_float64(x64):
    x = 2.0 ** np.arange(-60, 60)
    edges = np.concatenate([[0], histogram_edges(), [np.inf]])
    for dtype in (jnp.bfloat16, jnp.float64):
        found = looked({"w": jnp.asarray(x, dtype)}, stats="histogram").histogram[0]
        np.testing.assert_array_equal(found, np.histogram(x, edges)[0])


def test_groups_by_path():
    grads = make(jnp.float32)
    leaves = looked(grads, stats=ALL[:4] + ALL[5:])
    found = looked(grads, stats=ALL[:4] + ALL[5:], groups=1)
    assert found.names == ("enc", "head")
    assert found.sizes == (40, 16)
    np.testing.assert_allclose(found.norm[0], np.hypot(*leaves.norm[:2]), rtol=1e-6)
    np.testing.assert_array_equal(found.max[0], jnp.max(leaves.max[:2]))
    weights = np.asarray([5, 35]) / 40
    np.testing.assert_allclose(found.mean[0], weights @ np.asarray(leaves.mean[:2]), rtol=1e-5)
    np.testing.assert_allclose(found.zeros[0], weights @ np.asarray(leaves.zeros[:2]), rtol=1e-6)
    np.testing.assert_array_equal(found.histogram[0], jnp.sum(leaves.histogram[:2], axis=0))


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (["enc"], ("enc", "other")),
        (["enc/"], ("enc", "other")),
        (["head", "*/w"], ("head", "*/w", "other")),
        ({"matrices": ["enc/w", "head/0"], "rest": "*"}, ("matrices", "rest")),
        (5, ("enc/b", "enc/w", "head/0", "head/1")),
        ((("x", ("enc",)),), ("x", "other")),
    ],
    ids=repr,
)
def test_groups_by_pattern(groups, names):
    found = health(make(jnp.float32), groups=groups)
    assert found.names == names
    assert sum(found.sizes) == 56


def test_integer_and_absent_leaves_are_skipped_and_said_so():
    tree = {"w": jnp.ones(4), "ids": jnp.arange(3), "none": None, "empty": jnp.zeros((0, 3))}
    found = looked(tree, tree)
    assert found.names == ("empty", "w")
    assert found.skipped == ("ids",)
    assert "skipped, because the dtype isn't floating: ['ids']" in found.table()
    assert all(bool(jnp.isfinite(getattr(found, s)).all()) for s in ALL)


def test_a_leaf_without_path():
    assert health(jnp.asarray([3.0, 4.0])).as_dict() == {"norm/": 5, "nonfinite/": 0}


def test_through_vmap_and_scan():
    xs = {"w": jnp.arange(6.0).reshape(3, 2)}
    batched = jax.vmap(lambda t: health(t, t, stats=ALL))(xs)
    _, scanned = jax.lax.scan(lambda c, t: (c, health(t, t, stats=ALL)), 0, xs)
    assert batched.names == scanned.names == ("w",)
    for stat in ALL:
        np.testing.assert_allclose(getattr(batched, stat), getattr(scanned, stat), rtol=1e-6)
    assert batched.norm.shape == (3, 1)
    assert batched.as_dict()["histogram/w"].shape == (3, 32)


def test_table():
    text = health({"w": jnp.asarray([0.5, 0.25])}, stats=("max", "histogram")).table()
    assert text.splitlines()[0].split() == ["max", "exponents"]
    assert text.splitlines()[1].split() == ["w", "0.5", "2^-2..2^0"]


def test_shown_as_its_table_where_the_numbers_of_one_tree_are_known():
    one = health({"w": jnp.ones(4)})
    assert str(one) == one.table()
    for other in (jax.vmap(health)({"w": jnp.ones((2, 4))}), jax.tree.map(lambda _: None, one)):
        assert str(other) == repr(other)
    jax.eval_shape(lambda tree: str(health(tree)) and tree, {"w": jnp.ones(4)})


def test_wrong_use():
    tree = {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match=r"unknown names \['loss'\], expected some of \['norm'"):
        health(tree, stats=("norm", "loss"))
    with pytest.raises(ValueError, match="stats is empty"):
        health(tree, stats=())
    with pytest.raises(ValueError, match="'ratio' needs the params"):
        health(tree, stats="ratio")
    with pytest.raises(ValueError, match="a tree without leaves, expected at least one"):
        health({})
    with pytest.raises(
        ValueError, match=r"of the non-floating leaves \['n'\], expected at least one"
    ):
        health({"n": jnp.arange(2)})
    with pytest.raises(ValueError, match=r"gradients lack \['v'\]"):
        health(tree, {"v": jnp.ones(2)})


@pytest.mark.parametrize(
    ("groups", "error", "text"),
    [
        (0, ValueError, "expected at least 1 part"),
        ([], ValueError, "groups is empty"),
        (
            ["encoder"],
            ValueError,
            r"\['encoder'\] in groups match no leaf, .*match a leaf of \['w'\]",
        ),
        ({"a": []}, ValueError, "the patterns of a group are empty"),
        ({"a": 3}, TypeError, "3 is a int, expected a pattern"),
        ("w", TypeError, "'w' is a str, expected None"),
        (lambda path: path, TypeError, "is a function, expected None"),
    ],
    # Not repr: a function's address differs between the processes that share the tests.
    ids=["zero", "empty", "no match", "no pattern", "a number", "a string", "a function"],
)
def test_wrong_groups(groups, error, text):
    with pytest.raises(error, match=text):
        health({"w": jnp.ones(2)}, groups=groups)
