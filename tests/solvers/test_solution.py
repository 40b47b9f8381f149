import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.solvers.result._covariance import residual_deviation
from fnopt.solvers.result._values import value_lines


def exact(tangent):
    one, zero = jnp.ones((), jnp.int32), jnp.float32(0)
    return fnopt.solvers.Solution(
        params={"a": jnp.float32(2), "b": jnp.float32(3)},
        cost=zero,
        residuals=jnp.zeros(4),
        jacobian=jnp.eye(4)[:, : 2 if tangent is None else tangent.shape[1]],
        gradient_norm=zero,
        rank=one,
        steps=one,
        nfev=one,
        njev=one,
        status=Status.CONVERGED_GRADIENT.array,
        tangent=tangent,
        dof=2 * one,
    )


def test_what_fits_without_any_error_is_not_called_fixed():
    assert "fixed" not in str(exact(None))
    assert str(exact(None)).count("± 0") == 2


def test_what_does_not_move_is_called_fixed():
    lines = str(exact(jnp.asarray([[1.0], [0.0]]))).splitlines()
    assert lines[-2].endswith("± 0")
    assert lines[-1].endswith("3   (fixed)")


def made(J, values, cost=2.0, residuals=None, **fields):
    """A solution with this Jacobian at its end."""
    J = jnp.asarray(J, jnp.float32)
    one = jnp.ones((), jnp.int32)
    r = jnp.full(J.shape[0], np.sqrt(2 * cost / J.shape[0]), jnp.float32)
    return fnopt.solvers.Solution(
        params={name: jnp.asarray(v, jnp.float32) for name, v in values.items()},
        cost=jnp.float32(cost),
        residuals=r if residuals is None else residuals,
        jacobian=J,
        gradient_norm=jnp.float32(0),
        rank=jnp.asarray(np.linalg.matrix_rank(J), jnp.int32),
        steps=one,
        nfev=one,
        njev=one,
        status=Status.CONVERGED_COST.array,
        **{"dof": jnp.asarray(J.shape[0] - np.linalg.matrix_rank(J), jnp.int32), **fields},
    )


X = np.linspace(0.0, 1.0, 12)


def test_one_undetermined_param_does_not_make_all_errors_infinite():
    J = np.stack([np.ones(12), X, X, np.zeros(12)], axis=1)  # b and c only as a sum, d not at all
    fit = made(J, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
    C = np.asarray(fnopt.curves.covariance(fit))
    plain = 4 / 10 * np.linalg.inv(J[:, :2].T @ J[:, :2])  # ten degrees of freedom
    np.testing.assert_allclose(C[0, 0], plain[0, 0], rtol=1e-4)
    assert np.all(np.isinf(C[1:]))
    assert np.all(np.isinf(C[:, 1:]))
    # What is determined can be predicted, whatever it is made of.
    band = fnopt.curves.predict_band(
        lambda p: jnp.stack([p["a"] + p["b"] + p["c"], p["b"], p["d"], p["a"]]), fit
    )
    both = plain[0, 0] + plain[1, 1] + 2 * plain[0, 1]
    np.testing.assert_allclose(
        band.error, [np.sqrt(both), np.inf, np.inf, np.sqrt(plain[0, 0])], rtol=1e-4
    )
    text = str(fit)
    assert "rank 2 of 4: the data don't determine b, c, d" in text
    assert text.count("(not determined)") == 3
    assert text.count("±") == 1


def test_as_many_equations_as_params_determine_them_without_errors():
    text = str(made(np.diag([1.0, 2.0]), {"a": 1.0, "b": 2.0}, cost=0.0))
    assert "no degrees of freedom, so no standard errors" in text
    assert "not determined" not in text
    assert "±" not in text


def test_one_residual_is_asked_about():
    s = fnopt.least_squares(lambda p: jnp.sum(p**2) + 1, jnp.ones(3), max_steps=2)
    assert "one residual; for a scalar loss use fnopt.minimize" in str(s)


def test_params_that_are_nearly_the_same_are_not_given_absurd_errors():
    J = np.stack([np.ones(12), X, X + 1e-4 * np.cos(9 * X)], axis=1)
    lines = str(made(J, {"V": 1.0, "k10": 2.0, "k12": 3.0}, cost=0.5)).splitlines()
    assert "  jointly undetermined: k10, k12 (correlation 1.000)" in lines
    assert [line.endswith("(jointly undetermined)") for line in lines[-3:]] == [False, True, True]


def test_values_are_rounded_to_their_errors():
    J = np.stack([np.ones(12), 1000 * X], axis=1)
    lines = str(made(J, {"a": 12.3456, "b": -1.23456e-2}, cost=0.02)).splitlines()
    assert lines[-2].split() == ["a", "12.346", "±", "0.034"]
    assert lines[-1].split() == ["b", "-0.012346", "±", "0.000058"]
    # Less than their errors, and far from 1.
    J = np.stack([np.ones(12), 1e5 * X], axis=1)
    lines = str(made(J, {"a": 0.0123456, "b": -1.23456e-5}, cost=0.02)).splitlines()
    assert lines[-2].split() == ["a", "0.012", "±", "0.034"]
    assert lines[-1].split() == ["b", "-1.235e-05", "±", "5.8e-07"]


def test_a_fit_in_float64_has_the_same_report():
    J, values = np.stack([np.ones(12), 1000 * X], axis=1), {"a": 12.3456, "b": -1.23456e-2}
    want = str(made(J, values, cost=0.02))
    with jax.enable_x64(True):
        single = made(J, values, cost=0.02)
        double = jax.tree.map(
            lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, single
        )
        assert str(double) == want


def test_values_far_below_their_errors_are_rounded_too():
    lines = str(made(np.ones((12, 1)), {"a": -1.3e-9}, cost=0.02)).splitlines()
    assert lines[-1].split() == ["a", "0.000", "±", "0.017"]
    lines = str(made(np.ones((12, 1)), {"a": 0.0}, cost=2e-14)).splitlines()
    assert lines[-1].split() == ["a", "0", "±", "1.7e-08"]


def test_a_tied_param_is_not_one_that_cannot_be_told_apart():
    J = np.ones((12, 1))
    tangent = jnp.asarray([[3.0], [1.0], [2.0], [0.0]])
    values = {"a": 0.03, "b": 0.01, "c": 0.02, "d": 4.0}
    fit = made(J, values, tangent=tangent)
    text = str(fit)  # an error of 0.17 is larger than any of the first three
    assert "jointly" not in text
    assert text.count("±") == 3
    J = np.stack([np.ones(12), 1 + 1e-5 * X], axis=1)
    tangent = jnp.asarray([[1.0, 1.0], [1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    text = str(made(J, values | {"d": 0.04}, tangent=tangent))
    assert "jointly undetermined: b, d (" in text


def test_of_many_params_the_worst_determined_are_shown():
    J = np.diag(np.arange(1.0, 61.0))
    J = np.concatenate([J, J])
    text = str(made(J, {"k": np.ones(60)}))
    assert "60 parameters, the 40 worst determined ones:" in text
    assert "k[39]" in text
    assert "k[40]" not in text


def test_without_standard_errors_no_param_is_called_badly_determined():
    # The first param is the best determined one.
    w = jnp.linspace(100.0, 1e-3, 300)

    def residuals(x):
        return jnp.concatenate([w * (x - 1) + 0.01, w * (x - 1) - 0.02])

    jac = fnopt.sparse_jacobian(residuals)
    text = str(fnopt.least_squares(residuals, jnp.zeros(300), jac=jac))
    assert "300 parameters, the first 40:" in text
    assert "x[39]" in text
    J = np.tile(np.eye(60), (2, 1))
    assert "60 parameters, the first 40:" in str(made(J[:60], {"k": np.ones(60)}))


def test_jointly_undetermined_params_are_among_the_worst():
    J = np.diag(np.arange(1.0, 61.0))
    J[:, 59] = J[:, 58] + 1e-5 * J[:, 59]
    text = str(made(np.concatenate([J, J]), {"k": np.full(60, 1e-3)}))
    assert "k[58]" in text.split("worst determined ones:")[1]


def test_a_param_at_its_bound_is_said_to_be():
    def residuals(p):
        return p["a"] * X + p["b"] - (2 * X + 1)

    with jax.numpy_dtype_promotion("standard"):
        fit = fnopt.least_squares(
            residuals, {"a": 0.5, "b": 0.5}, bounds=(-1.0, {"a": 1.0, "b": None})
        )
    assert fit.at_bound.tolist() == [1, 0]
    lines = str(fit).splitlines()
    assert lines[-2].endswith("(at its upper bound)")
    assert "±" in lines[-1]


def test_the_values_of_few_params_are_shown():
    params = {"a": jnp.asarray([1.5, -2.0]), "z": 1j, "key": jax.random.key(0), "mode": "x"}
    assert value_lines(params) == ["  a[0]  1.5", "  a[1]  -2", "  z     0+1j"]
    assert value_lines({"w": jnp.ones((9, 9)), "b": jnp.bfloat16(1)}) == ["  82 params in 2 leaves"]


@pytest.mark.parametrize("unit", [1.0, 1e-30, 1e30])
def test_the_spread_of_residuals_and_its_derivative_in_any_unit(unit):
    def spread(unit):
        r = unit * jnp.asarray([3.0, 4.0, -5.0])
        return residual_deviation(jnp.sum(jnp.square(r)) / 2, r, 3, jnp.asarray(2))

    found, slope = jax.value_and_grad(spread)(jnp.float32(unit))
    np.testing.assert_allclose(found, 5 * np.float32(unit), rtol=1e-6)
    np.testing.assert_allclose(slope, 5, rtol=1e-6)
