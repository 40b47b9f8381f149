from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import median_of_means, sign_agreement, trimmed_mean

GRADS = {"w": jax.random.normal(jax.random.key(0), (11, 3, 2)), "b": jnp.arange(11.0)}


@pytest.mark.parametrize("groups", [1, 3, 4, 11])
def test_median_of_means(groups):
    actual = median_of_means(GRADS, groups)
    edges = [np.flatnonzero(np.arange(11) * groups // 11 == k) for k in range(groups)]
    for name, g in GRADS.items():
        g = np.asarray(g, np.float64)
        expected = np.median([g[rows].mean(0) for rows in edges], axis=0)
        np.testing.assert_allclose(actual[name], expected, rtol=1e-6, atol=1e-7)
    assert max(map(len, edges)) - min(map(len, edges)) <= 1


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.3, 0.49])
def test_trimmed_mean(fraction):
    stats = pytest.importorskip("scipy.stats")
    actual = trimmed_mean(GRADS, fraction)
    for name, g in GRADS.items():
        expected = stats.trim_mean(np.asarray(g, np.float64), fraction, axis=0)
        np.testing.assert_allclose(actual[name], expected, rtol=1e-6, atol=1e-7)


def test_trimmed_mean_tolerates_as_many_bad_examples_as_promised():
    # 0.29 * 100 is 28.999999999999996.
    for n, bad in [(100, 29), (44, 15), (50, 7)]:
        g = jnp.zeros(n).at[:bad].set(1e6)
        assert float(trimmed_mean(g, bad / n)) == 0


def test_sign_agreement():
    g = jnp.array([[1.0, 1.0, 1.0], [2.0, 2.0, -1.0], [3.0, -1.0, 3.0], [4.0, 5.0, -2.0]])
    np.testing.assert_array_equal(sign_agreement(g, 1.0), [2.5, 0.0, 0.0])
    np.testing.assert_array_equal(sign_agreement(g, 0.5), [2.5, 1.75, 0.0])
    np.testing.assert_array_equal(sign_agreement(g, 0.0), [2.5, 1.75, 0.25])
    odd = jnp.array([1.0] * 9 + [-1.0])
    assert sign_agreement(odd, 0.8) == jnp.float32(0.8)  # exactly at the threshold


def test_bad_examples_do_not_matter():
    good = 1.0 + 0.1 * jax.random.normal(jax.random.key(1), (20, 4))
    bad = good.at[jnp.array([3, 11])].set(1e6)
    for combine in (lambda g: median_of_means(g, 5), lambda g: trimmed_mean(g, 0.1)):
        np.testing.assert_allclose(combine(bad), 1.0, atol=0.2)


@pytest.mark.parametrize(
    "combine", [lambda g: median_of_means(g, 2), lambda g: trimmed_mean(g, 0.2), sign_agreement]
)
def test_dtypes_and_jit(combine):
    g = {"a": jnp.ones((5, 2), jnp.bfloat16), "b": jnp.ones(5)}
    out = jax.jit(combine)(g)
    assert {k: (x.dtype, x.shape) for k, x in out.items()} == {
        "a": (jnp.bfloat16, (2,)),
        "b": (jnp.float32, ()),
    }


def test_errors():
    with pytest.raises(ValueError, match="groups is 12, expected a number from 1 to 11"):
        median_of_means(GRADS, 12)
    with pytest.raises(ValueError, match=r"fraction is 0\.5, expected 0 <= fraction < 0.5"):
        trimmed_mean(GRADS, 0.5)
    with pytest.raises(ValueError, match="threshold is 2, expected 0 <= threshold <= 1"):
        sign_agreement(GRADS, 2)
    with pytest.raises(ValueError, match="sign_agreement: the leading axes of the batch have"):
        sign_agreement({"a": jnp.ones(2), "b": jnp.ones(3)})
