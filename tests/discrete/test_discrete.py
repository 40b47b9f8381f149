from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt import losses
from fnopt.discrete import Gumbel, Normal, hungarian_algorithm, make_perturbed_fun

SHAPES = [(1, 1), (4, 4), (3, 6), (6, 3)]
solve = jax.jit(hungarian_algorithm)


@functools.cache
def costs(kind, shape):
    rng = np.random.default_rng(len(kind) + shape[0])
    cost = {
        "normal": rng.normal(size=shape),
        "ties": rng.integers(0, 3, size=shape).astype(float),
        "equal": np.ones(shape),
        "scales": 10.0 ** rng.integers(-3, 4, size=shape),
    }[kind]
    return cost.astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "scales"])
def test_assignments_cost_as_little_as_scipys(kind, shape):
    scipy = pytest.importorskip("scipy.optimize")
    cost = costs(kind, shape)
    i, j = (np.asarray(x) for x in solve(cost))
    assert len({*i}) == len({*j}) == min(shape)
    assert list(i) == sorted(i)
    best = cost[scipy.linear_sum_assignment(cost)].sum()
    np.testing.assert_allclose(cost[i, j].sum(), best, rtol=1e-6, atol=1e-6)


def test_forbidden_pairs_are_avoided():
    cost = jnp.asarray([[1.0, jnp.inf, jnp.inf], [1.0, 2.0, jnp.inf], [0.0, 5.0, 9.0]])
    i, j = solve(cost)
    assert float(cost[i, j].sum()) == 12.0
    assert len({*np.asarray(solve(jnp.full((3, 3), jnp.inf))[1])}) == 3
    np.testing.assert_array_equal(solve(jnp.asarray([[jnp.nan, 1.0], [2.0, 9.0]]))[1], [1, 0])
    np.testing.assert_array_equal(solve(jnp.asarray([[1.0, 2.0], [2.0, jnp.nan]]))[1], [1, 0])


def test_many_assignments_at_once():
    cost = jnp.sin(jnp.arange(5.0 * 9) ** 2).reshape(5, 3, 3)
    i, j = jax.vmap(solve)(cost)
    for c, rows, columns in zip(np.asarray(cost), i, j, strict=True):
        best = min(sum(c[k, p[k]] for k in range(3)) for p in itertools.permutations(range(3)))
        np.testing.assert_allclose(c[rows, columns].sum(), best, rtol=1e-5)


def test_costs_that_are_no_matrix_are_refused():
    with pytest.raises(ValueError, match=r"float32\[3\], expected a matrix"):
        hungarian_algorithm(np.ones(3, np.float32))
    assert [x.size for x in hungarian_algorithm(np.ones((0, 3)))] == [0, 0]


def one_hot_argmax(x):
    return jax.nn.one_hot(jnp.argmax(x), x.size)


def test_perturbed_argmax_is_the_softmax_with_its_derivatives():
    """The closed form of Gumbel noise; 4,000 samples, five standard errors."""
    x = jnp.asarray([0.3, -0.2, 0.1])
    soft = make_perturbed_fun(one_hot_argmax, num_samples=4000, sigma=0.5, noise=Gumbel())
    key = jax.random.key(0)
    value, jacobian = jax.jit(lambda x: (soft(key, x), jax.jacobian(soft, argnums=1)(key, x)))(x)
    np.testing.assert_allclose(value, jax.nn.softmax(x / 0.5), atol=0.04)
    np.testing.assert_allclose(jacobian, jax.jacobian(jax.nn.softmax)(x / 0.5) / 0.5, atol=0.25)


@pytest.mark.parametrize("use_baseline", [True, False])
def test_perturbed_values_agree_with_optax_for_one_leaf(use_baseline):
    optax = pytest.importorskip("optax")
    x, key = jnp.asarray([0.3, -0.2]), jax.random.key(1)

    def run(module, noise):
        fun = module.make_perturbed_fun(jnp.square, 50, 0.3, noise, use_baseline)
        return fun(key, x), jax.jacobian(fun, argnums=1)(key, x)

    from fnopt import discrete

    with jax.numpy_dtype_promotion("standard"):
        theirs = run(optax.perturbations, optax.perturbations.Normal())
    ours = run(discrete, Normal())
    # Means over 50 samples from other keys: the derivative 2x of the square, roughly.
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(mine, other, atol=1.5)


def test_a_perturbed_maximum_is_a_fenchel_young_loss():
    soft_max = make_perturbed_fun(jnp.max, num_samples=200, sigma=1.0)
    loss = losses.make_fenchel_young_loss(lambda x: soft_max(jax.random.key(0), x))
    x, y = jnp.asarray([1.0, 0.0, -1.0]), jnp.asarray([0.0, 0.0, 1.0])
    value, slope = jax.value_and_grad(loss)(x, y)
    exact = jax.nn.logsumexp(x) + np.euler_gamma - x @ y
    np.testing.assert_allclose(value, exact, atol=0.4)
    assert float(slope[2]) < -0.5


def test_trees_integers_and_bad_arguments():
    fun = make_perturbed_fun(lambda p: {"n": jnp.argmax(p["w"])}, num_samples=3)
    out = fun(jax.random.key(0), {"w": jnp.ones(2, jnp.bfloat16)})
    assert out["n"].dtype == jnp.float32
    with pytest.raises(ValueError, match="num_samples is 0, expected at least 1"):
        make_perturbed_fun(jnp.max, num_samples=0)
    with pytest.raises(TypeError, match="expected one PRNG key"):
        fun(0, {"w": jnp.ones(2)})
