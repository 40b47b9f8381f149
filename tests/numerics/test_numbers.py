"""Norms over the whole range of a dtype, against float64 NumPy (and exact scaling)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.linear import norm
from fnopt.numerics import floor_power_of_two, joint_norm, safe_norms, sum_of_squares
from fnopt.numerics._norms import _norm_from_ranges

MAGNITUDES = [1e-35, 1e-30, 1e-24, 1e-20, 1e-10, 1.0, 1e10, 1e18, 1e20, 1e30, 1e37]


def numbers(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_norm_of_a_tree_of_any_magnitude(dtype, magnitude):
    a, b = numbers((30, 7)), numbers(11, 1)
    if dtype == "complex64":
        b = b + 1j * numbers(11, 2)
    tree = {"a": jnp.asarray(a * magnitude, dtype), "b": jnp.asarray(b * magnitude, dtype)}
    wide = [np.asarray(x).astype(np.complex128) / magnitude for x in jax.tree.leaves(tree)]
    expected = np.sqrt(sum((np.abs(x) ** 2).sum() for x in wide)) * magnitude
    np.testing.assert_allclose(fnopt.global_norm(tree), expected, rtol=1e-6)


@pytest.mark.parametrize("magnitude", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_norm_of_float64(x64, magnitude):
    x = numbers(50)
    # A float32 leaf beside it is measured in the wider dtype.
    tree = [jnp.asarray(x * magnitude), jnp.zeros(3, jnp.float32)]
    expected = np.linalg.norm(x) * magnitude
    np.testing.assert_allclose(fnopt.global_norm(tree), expected, rtol=1e-14)


@pytest.mark.parametrize("size", [1e-37, 8e37, 9e37, 1.2e38, 2.3e38])
def test_norms_whose_reciprocals_are_subnormal(size):
    # XLA divides by a scalar by its reciprocal, which it takes for zero then.
    x = jnp.asarray([size, -size, 1.0 if size > 1 else 0.0], jnp.float32)
    parts = jnp.abs(x[:2])
    norms = {
        "global": fnopt.global_norm([x[:1], x[1:]]),
        "joint": jax.jit(joint_norm)(parts),
        "linear": jax.jit(norm)(x),
    }
    expected = np.sqrt(2) * np.float64(np.float32(size))
    for name, found in norms.items():
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)
    ball = fnopt.projections.projection_l2_ball(x, min(1.0, size))
    np.testing.assert_allclose(ball[:2] / min(1.0, size), [0.5**0.5, -(0.5**0.5)], rtol=1e-6)


def test_a_few_large_among_many_small_and_the_other_way_round():
    x = np.concatenate([np.full(3, 1e25), np.full(1000, 1e-25)]).astype(np.float32)
    np.testing.assert_allclose(fnopt.global_norm(jnp.asarray(x)), np.sqrt(3) * 1e25, rtol=1e-6)
    y = np.full(2**17, 2e-22, np.float32)  # every square is lost, their sum would not be
    expected = np.sqrt(2**17) * 2e-22
    np.testing.assert_allclose(fnopt.global_norm(jnp.asarray(y)), expected, rtol=1e-5)


@pytest.mark.parametrize("magnitude", [1e-30, 1.0, 1e30])
def test_derivatives_are_the_direction(magnitude):
    x = jnp.asarray([3.0, -4.0]) * magnitude

    def length(x):
        return fnopt.global_norm([x[:1], x[1:]])

    np.testing.assert_allclose(jax.grad(length)(x), [0.6, -0.8], rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(length, (x,), (jnp.ones(2),))[1], -0.2, rtol=1e-6)
    assert jax.grad(length)(jnp.zeros(2)).tolist() == [0, 0]


def test_second_derivatives():
    x = jnp.asarray([1.0, 2.0, 2.0])
    unit = np.asarray(x) / 3
    expected = (np.eye(3) - np.outer(unit, unit)) / 3
    np.testing.assert_allclose(jax.hessian(fnopt.global_norm)(x), expected, atol=1e-6)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_so(bad):
    norm = fnopt.global_norm([jnp.asarray([1.0, bad]), jnp.asarray([1e30])])
    assert np.isnan(norm) if np.isnan(bad) else norm == np.inf


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
def test_norm_from_three_ranges(dtype):
    """What accelerators compute: elements of all magnitudes, of one, and none that is finite."""
    norm = jax.jit(lambda leaves: _norm_from_ranges(leaves, jnp.dtype(jnp.float32)))
    x = numbers(1000) * 10.0 ** np.arange(-37, 38).repeat(14)[:1000]
    for unit in (1.0, 1e-24, 1e20, 1e-30):
        leaves = [jnp.asarray(y, dtype) for y in (numbers(50) * unit, numbers(7, seed=1) * unit)]
        exact = [np.asarray(y.astype(complex if dtype == jnp.complex64 else float)) for y in leaves]
        expected = np.linalg.norm(np.concatenate(exact).astype(np.complex128))
        np.testing.assert_allclose(norm(leaves), expected, rtol=1e-6)
    wide = jnp.asarray(x, dtype)
    expected = np.linalg.norm(np.asarray(wide.astype(complex)).astype(np.complex128))
    np.testing.assert_allclose(norm([wide, wide]), np.sqrt(2) * expected, rtol=1e-6)
    assert norm([jnp.zeros(3, dtype)]) == 0
    assert np.isnan(norm([wide, jnp.asarray([np.nan], dtype)]))
    assert norm([jnp.asarray([1.0, -np.inf], dtype)]) == np.inf


def test_under_vmap_every_norm_is_right():
    x = numbers((4, 6)) * np.asarray([1e-28, 0.0, 1.0, 1e28])[:, None]
    found = jax.jit(jax.vmap(fnopt.global_norm))(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, np.linalg.norm(x, axis=1), rtol=1e-6)


def test_several_norms_at_once():
    x = jnp.asarray(numbers((4, 6)) * np.asarray([1e-28, 0.0, 1.0, 1e28])[:, None], jnp.float32)

    def squares(scale):
        scale = jnp.ones(4) if scale is None else scale
        return jax.vmap(sum_of_squares)(x, scale)

    expected = np.linalg.norm(np.asarray(x, np.float64), axis=1)
    np.testing.assert_allclose(safe_norms(squares), expected, rtol=1e-6)


def test_joint_norm_of_parts():
    parts = [jnp.asarray([3e30, 3e-30, 0.0, jnp.inf, jnp.nan]), jnp.asarray([4e30, 4e-30, 0, 1, 1])]
    expected = [5e30, 5e-30, 0.0, np.inf, np.nan]
    np.testing.assert_allclose(joint_norm(parts), expected, rtol=1e-6)
    slope = jax.grad(lambda a: joint_norm([a, jnp.asarray(4e30)]))(jnp.asarray(3e30))
    np.testing.assert_allclose(slope, 0.6, rtol=1e-6)


def test_no_temporary_of_the_size_of_the_params():
    tree = {name: jnp.ones((256, 256)) for name in "abcdef"}

    def clipped(g):
        tx = fnopt.clip_by_global_norm(1.0)
        return tx.update(g, tx.init(g))[0]

    memory = jax.jit(clipped).lower(tree).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * 256 * 256 / 8


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_of_zeros_that_the_compiler_knows(dtype, x64):
    # XLA squared the scale, which was infinite, and multiplied the zeros by it.
    def norms():
        x = jnp.zeros((3, 8), dtype)

        def squares(scale):
            return jnp.sum(jnp.square(x if scale is None else x * scale[:, None]), 1)

        return safe_norms(squares), fnopt.global_norm({"w": x})

    for found in jax.jit(norms)():
        np.testing.assert_array_equal(found, 0)


def test_a_leaf_without_a_size_is_named():
    with pytest.raises(TypeError, match=r"global_norm: leaf 'f' is .*eqx.is_inexact_array"):
        fnopt.global_norm({"f": jax.nn.relu, "w": jnp.ones(2)})


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_power_of_two_below(dtype, x64):
    info = jnp.finfo(dtype)
    size = jnp.asarray([1.0, 3.9, 0.3, info.tiny, info.max], dtype)
    expected = 2.0 ** (np.frexp(np.asarray(size, float))[1] - 1)
    for found in (floor_power_of_two(size), jax.jit(floor_power_of_two)(size)):
        assert found.dtype == dtype
        np.testing.assert_array_equal(np.asarray(found, float), expected)
    # Something to divide by: a subnormal number was 0 in a compiled program.
    nothing = jnp.asarray([0.0, float(info.tiny) / 4, np.inf, np.nan, -2.0], dtype)
    np.testing.assert_array_equal(np.asarray(jax.jit(floor_power_of_two)(nothing), float), 1)
