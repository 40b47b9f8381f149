import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.residuals import whitened

R = {"a": jnp.asarray([1.0, 2.0]), "b": jnp.asarray([[3.0 + 4j]], jnp.complex64)}


def test_sigma_divides_and_weights_multiply_the_squares():
    by_sigma = whitened(R, sigma={"a": np.asarray([0.5, 2.0]), "b": 2.0})(R)
    by_weight = whitened(R, weights={"a": np.asarray([4.0, 0.25]), "b": 0.25})(R)
    for out in (by_sigma, by_weight):
        np.testing.assert_allclose(out["a"], [2, 1])
        np.testing.assert_allclose(out["b"], [[1.5 + 2j]])
    assert whitened(R)(R) is R


def test_what_has_no_weight_is_left_out_even_if_it_is_nan():
    r = jnp.asarray([2.0, jnp.nan, jnp.inf])
    np.testing.assert_array_equal(whitened(r, weights=np.asarray([4.0, 0.0, 0.0]))(r), [4, 0, 0])


def test_an_infinite_sigma_is_a_weight_of_zero():
    r = {"a": jnp.asarray([2.0, jnp.nan]), "b": jnp.asarray([1j, jnp.inf, 4], jnp.complex64)}
    sigma = {"a": np.asarray([0.5, np.inf]), "b": np.asarray([1, np.inf, 2])}
    weights = {name: 1 / np.square(s) for name, s in sigma.items()}
    by_sigma, by_weight = whitened(r, sigma=sigma), whitened(r, weights=weights)
    jax.tree.map(np.testing.assert_array_equal, by_sigma(r), by_weight(r))
    assert int(by_sigma.excluded) == int(by_weight.excluded) == 3  # real numbers


def test_an_infinite_sigma_has_a_derivative_of_zero():
    r, sigma = jnp.asarray([3.0, 2.0]), jnp.asarray([jnp.inf, 2.0])
    slope = jax.grad(lambda sigma: jnp.sum(whitened(r, sigma=sigma)(r)))(sigma)
    np.testing.assert_array_equal(slope, [0, -0.5])


@pytest.mark.parametrize("what", ["sigma", "weights"])
def test_negative_ones_that_cannot_be_refused_under_jit_give_nan(what):
    given = jnp.asarray([1.0, -1.0, jnp.nan])
    out = jax.jit(lambda given: whitened(given, **{what: given})(jnp.ones(3)))(given)
    np.testing.assert_array_equal(out, [1, jnp.nan, jnp.nan])


def test_numbers_in_a_list_are_those_of_an_array():
    out = whitened(jnp.ones(2), sigma=[0.5, 2])(jnp.asarray([1.0, 2.0]))
    np.testing.assert_array_equal(out, [2, 1])


def test_a_covariance_matrix_whitens():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((3, 3))
    C, r = A @ A.T + np.eye(3), rng.standard_normal(3)
    out = whitened(jnp.ones(3), sigma=C)(jnp.asarray(r, jnp.float32))
    np.testing.assert_allclose(out @ out, r @ np.linalg.solve(C, r), rtol=1e-5)


def test_a_covariance_matrix_may_have_rounding_errors():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((20, 20)).astype(np.float32)
    C = (A * np.linspace(1, 100, 20, dtype=np.float32)) @ A.T + 100 * np.eye(20, dtype=np.float32)
    assert np.any(C != C.T)
    whitened(jnp.ones(20), sigma=C)


BAD = [
    ({"sigma": 1.0, "weights": 1.0}, "got both sigma and weights"),
    ({"sigma": {"a": 0.0, "b": 1.0}}, r"sigma for leaf 'a'\[0\] is 0.0, expected a standard"),
    ({"weights": {"a": -1.0, "b": 1.0}}, r"weights for leaf 'a'\[0\] is -1.0"),
    ({"sigma": {"a": np.ones(3), "b": 1.0}}, r"leaf 'a': got shape \(3,\), expected \(2,\)"),
    ({"sigma": {"a": -np.eye(2), "b": 1.0}}, "leaf 'a' is not positive definite"),
    ({"sigma": {"a": np.diag([1, np.inf]), "b": 1.0}}, r"'a'\[1, 1\] is inf, .* remove the datum"),
    (
        {"sigma": {"a": np.asarray([[1.0, 0.5], [0.0, 1.0]]), "b": 1.0}},
        r"leaf 'a' has the entries 0.5 at \(0, 1\) and 0.0 at \(1, 0\), expected a symmetric",
    ),
    ({"sigma": {"c": 1.0}}, "`sigma` has the leaves"),
]


@pytest.mark.parametrize(("options", "text"), BAD)
def test_bad_weights_are_refused_by_name(options, text):
    with pytest.raises(ValueError, match=text):
        whitened(R, **options)


@pytest.mark.parametrize("name", ["sigma", "weights"])
@pytest.mark.parametrize("value", ["a", 1 + 0j, jnp.ones(2, complex), ["1", "2"], np.eye(2) * 1j])
def test_weights_that_are_not_real_are_refused(name, value):
    with pytest.raises(TypeError, match=f"(?s){name} contains .*, expected real numbers"):
        whitened(jnp.ones(2), **{name: value})
