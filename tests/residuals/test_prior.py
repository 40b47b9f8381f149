"""Gaussian priors: against conjugate posteriors, and what doesn't fit is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.manifolds import SE2, SO2, on


def test_a_linear_fit_with_a_prior_has_the_conjugate_posterior(x64):
    rng = np.random.default_rng(0)
    A, y, mean, root = (rng.normal(size=s) for s in ((5, 3), 5, 3, (3, 3)))
    root = np.triu(root) + 2 * np.eye(3)
    known = fnopt.prior(mean, root)
    fit = fnopt.least_squares(lambda x: {"data": A @ x - y, "prior": known(x)}, jnp.zeros(3))
    precision = A.T @ A + root.T @ root
    expected = np.linalg.solve(precision, A.T @ y + root.T @ root @ mean)
    np.testing.assert_allclose(fit.params, expected, atol=1e-12)
    C = fnopt.covariance(fit, absolute_sigma=True)
    np.testing.assert_allclose(C, np.linalg.inv(precision), atol=1e-12)


def test_a_prior_on_one_pose_places_a_graph_and_is_its_covariance(x64):
    root = np.asarray([[4.0, 1.0, 0.5], [0.0, 3.0, -1.0], [0.0, 0.0, 9.0]])
    first = SE2.retract(jnp.eye(3), jnp.asarray([1.0, 2.0, 0.7]))
    step = SE2.retract(jnp.eye(3), jnp.asarray([1.0, 0.0, 0.3]))
    known = fnopt.prior(on(SE2, first), root)

    def residuals(p):
        T = p["T"].value
        return {"step": SE2.local(step, SE2.inverse(T[0]) @ T[1]), "first": known(T[0])}

    start = {"T": on(SE2, jnp.tile(jnp.eye(3), (2, 1, 1)))}
    fit = fnopt.least_squares(residuals, start)
    np.testing.assert_allclose(fit.params["T"].value, [first, first @ step], atol=1e-9)
    C = fnopt.covariance(fit, True, of=lambda p: SE2.local(first, p["T"].value[0]))
    np.testing.assert_allclose(C, np.linalg.inv(root.T @ root), atol=1e-9)


def test_factors_are_numbers_deviations_or_matrices_of_every_point():
    x, mean = jnp.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), np.zeros((3, 2))
    np.testing.assert_array_equal(fnopt.prior(mean, 2)(x), 2 * x)
    np.testing.assert_array_equal(
        fnopt.prior(mean, np.asarray([1, 10]))(x), [[1, 20], [3, 40], [5, 60]]
    )
    each = np.arange(12, dtype="f").reshape(3, 2, 2)
    expected = np.einsum("nij,nj->ni", each, x)
    np.testing.assert_allclose(fnopt.prior(mean, each)(x), expected, rtol=1e-6)
    assert fnopt.prior(1.5, 2.0)(2.0) == 1.0


def test_a_prior_is_a_pytree_with_derivatives_and_the_dtype_of_the_parameter():
    known = fnopt.prior(on(SO2, jnp.eye(2)), jnp.asarray([3.0]))
    turn = on(SO2, SO2.retract(jnp.eye(2), jnp.asarray([0.25])))
    np.testing.assert_allclose(jax.jit(lambda known, x: known(x))(known, turn), [0.75], rtol=1e-6)
    slope = jax.grad(lambda mean: fnopt.prior(mean, 3.0)(jnp.float32(2.0)))(jnp.float32(1.0))
    assert slope == -3
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        assert fnopt.prior(np.ones(2), 2.0)(jnp.ones(2, dtype)).dtype == dtype


@pytest.mark.parametrize(
    ("known", "x", "error", "message"),
    [
        (fnopt.prior(np.zeros(2)), np.zeros(3), ValueError, r"shape \(3,\), expected .*\(2,\)"),
        (fnopt.prior(0.0, np.ones(2)), 1.0, ValueError, r"shape \(2,\), expected \(\)\."),
        (fnopt.prior(np.zeros(2), np.eye(3)), np.zeros(2), ValueError, r"\(3, 3\).*\(2, 2\)"),
        (fnopt.prior(0.0), {"a": 1.0}, TypeError, "parameter is {'a': 1.0}, expected an array"),
        (fnopt.prior(on(SO2, np.eye(2))), on(SE2, np.eye(3)), TypeError, "leaf on .*, or its arr"),
        (fnopt.prior(np.eye(2)), on(SO2, np.eye(2)), TypeError, "expected an array"),
    ],
)
def test_what_does_not_fit_is_refused(known, x, error, message):
    with pytest.raises(error, match=message):
        known(x)


@pytest.mark.parametrize("value", [None, "a", jnp.sin])
def test_a_mean_that_is_not_a_number_is_refused_at_the_call(value):
    with pytest.raises(TypeError, match=r"prior: mean is .*, expected an array or a number"):
        fnopt.prior(value)
    with pytest.raises(TypeError, match=r"prior: sqrt_information is .*, expected an array"):
        fnopt.prior(1.0, value)
