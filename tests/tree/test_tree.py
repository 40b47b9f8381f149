"""The functions of `fnopt.tree` on plain trees, beside optax's where it has the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import tree

X = {"a": jnp.asarray([[1.0, -2.0], [3.0, 0.5]]), "b": (jnp.asarray(4.0), jnp.asarray([-1.0, 2.0]))}
Y = jax.tree.map(lambda x: 0.5 * x + 1, X)
Z = jax.tree.map(lambda x: jax.lax.complex(x, 2 * x), X)
COUNT = jnp.asarray(3, jnp.int32)

# name -> (module) -> result
CASES = {
    "add": lambda m: m.add(X, Y, X),
    "sub": lambda m: m.sub(X, Y),
    "mul": lambda m: m.mul(X, Y),
    "div": lambda m: m.div(X, Y),
    "scale": lambda m: m.scale(jnp.float32(0.3), X),
    "add_scale": lambda m: m.add_scale(X, jnp.float32(0.3), Y),
    "vdot": lambda m: m.vdot(X, Y),
    "where": lambda m: m.where(jnp.asarray(False), X, Y),
    "clip": lambda m: m.clip(X, -1.5, 2.5),
    "conj": lambda m: m.conj(Z),
    "real": lambda m: m.real(Z),
    "sum": lambda m: m.sum(X),
    "max": lambda m: m.max(X),
    "min": lambda m: m.min(X),
    "size": lambda m: m.size(X),
    "norm": lambda m: m.norm(X),
    "norm_squared": lambda m: m.norm(X, squared=True),
    "norm_1": lambda m: m.norm(X, ord=1, squared=True),
    "norm_inf": lambda m: m.norm(X, ord="inf"),
    "allclose": lambda m: m.allclose(X, Y),
    "zeros_like": lambda m: m.zeros_like(X, jnp.bfloat16),
    "ones_like": lambda m: m.ones_like(X),
    "full_like": lambda m: m.full_like(X, 3.0),
    "batch_shape": lambda m: m.batch_shape(X, (3,)),
    "cast": lambda m: m.cast(X, jnp.float16),
    "cast_like": lambda m: m.cast_like(X, m.cast(X, jnp.float16)),
    "dtype": lambda m: m.dtype(X),
    "random_like": lambda m: m.random_like(jax.random.key(0), X),
    "split_key_like": lambda m: m.unwrap_random_key_data(m.split_key_like(jax.random.key(0), X)),
    "update_moment": lambda m: m.update_moment(X, Y, 0.9, 2),
    "update_infinity_moment": lambda m: m.update_infinity_moment(X, Y, 0.9, 0.1),
    "update_moment_per_elem_norm": lambda m: m.update_moment_per_elem_norm(Z, Y, 0.9, 2),
    "bias_correction": lambda m: m.bias_correction(X, 0.9, COUNT),
}
# test_search.py, test_restore.py
ELSEWHERE = {"NamedTupleKey", "get", "get_all_with_path", "map_params", "set"}
ELSEWHERE |= {"RestoreReport", "restore"}


def test_the_table_has_every_function():
    tested = {n for n in tree.__all__ if n in CASES or n == "unwrap_random_key_data"}
    assert tested == set(tree.__all__) - ELSEWHERE


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_optax(name):
    optax = pytest.importorskip("optax")
    ours = CASES[name](tree)
    with jax.numpy_dtype_promotion("standard"):
        theirs = CASES[name](optax.tree)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if isinstance(mine, jax.Array):
            assert (mine.dtype, mine.weak_type) == (other.dtype, False)
            np.testing.assert_allclose(mine, other, rtol=2e-6)
        else:
            assert mine == other


def test_results_of_half_precision_leaves():
    half = {"w": jnp.full(1000, 0.001, jnp.bfloat16)}
    assert tree.sum(half).dtype == tree.vdot(half, half).dtype == jnp.float32
    np.testing.assert_allclose(tree.sum(half), 1000 * float(jnp.bfloat16(0.001)), rtol=1e-5)
    assert tree.scale(jnp.float32(0.5), half)["w"].dtype == jnp.bfloat16
    assert tree.add_scale(half, jnp.float32(0.5), half)["w"].dtype == jnp.bfloat16
    assert tree.norm({"w": jnp.full(4, 300.0, jnp.float16)}, squared=True) == 360_000


def test_trees_of_several_dtypes_meet_under_strict_promotion():
    a = {"x": jnp.ones(2, jnp.bfloat16), "n": jnp.asarray(7, jnp.int32)}
    b = {"x": jnp.ones(2), "n": jnp.asarray(2, jnp.int32)}
    total = tree.add(a, b)
    assert (total["x"].dtype, total["n"].dtype, int(total["n"])) == (jnp.float32, jnp.int32, 9)
    assert float(tree.div(a, b)["n"]) == 3.5
    assert float(tree.scale(0.5, a)["n"]) == 3.5
    assert float(tree.sum(a)) == 9
    assert float(tree.max(a)) == 7


def test_none_and_empty_trees():
    assert tree.add_scale({"w": None}, 2.0, {"w": jnp.ones(2)}) == {"w": None}
    assert tree.update_moment({"w": None}, {"w": jnp.ones(2)}, 0.9, 1) == {"w": None}
    zero = [tree.sum({}), tree.vdot({}, {}), tree.norm({}), tree.norm({}, ord="inf")]
    assert [float(x) for x in zero] == [0.0] * 4
    assert float(tree.max({})) == -jnp.inf
    assert float(tree.min({"w": jnp.zeros((0, 3))})) == jnp.inf
    assert bool(tree.allclose({}, {}))
    assert tree.split_key_like(jax.random.key(0), {}) == {}


def test_bias_correction_keeps_its_digits():
    decay = np.float32(0.9999)
    exact = 1 - np.float64(decay)
    corrected = tree.bias_correction(jnp.float32(exact), decay, 1)
    np.testing.assert_allclose(corrected, 1.0, rtol=2e-7)


def test_complex_products_conjugate_the_first():
    x, y = {"w": jnp.asarray([1 + 2j])}, {"w": jnp.asarray([3 - 1j])}
    assert complex(tree.vdot(x, y)) == np.vdot([1 + 2j], [3 - 1j])


def test_everything_runs_under_jit_and_vmap():
    def fn(x):
        return tree.norm(tree.add_scale(x, -0.5, tree.clip(x, -1.0, 1.0)), ord=1)

    batch = tree.batch_shape(X, (2,))
    np.testing.assert_allclose(jax.jit(jax.vmap(fn))(batch), [fn(X)] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tree.vdot({"w": np.ones(3)}, {"w": np.ones(2)}), ValueError, r"\(3,\) and \(2,\)"),
        (
            lambda: tree.add({"a": 1.0}, {"a": 1.0}, {"b": 1.0}),
            ValueError,
            "the tree of leaves of argument 1 does not match the tree of leaves of argument 3",
        ),
        (lambda: tree.norm(X, ord=3), ValueError, "ord is 3, expected 1, 2 or infinity"),
        (
            lambda: tree.dtype({"a": np.float32(1), "b": np.int32(1)}),
            ValueError,
            "leaf 'b' has dtype int32 and leaf 'a' has dtype float32, expected equal dtypes",
        ),
        (lambda: tree.dtype(X, "widest"), ValueError, "mixed_dtype_handler is 'widest'"),
        (lambda: tree.random_like(3, X), TypeError, "expected one PRNG key"),
    ],
)
def test_bad_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_norm_is_that_of_the_library():
    assert float(tree.norm(X)) == float(fnopt.global_norm(X))
