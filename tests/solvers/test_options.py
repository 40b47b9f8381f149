"""Options of `least_squares` beside the method: aux, losses, callbacks, SciPy's keywords."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.residuals import as_vector, cauchy, fixed, huber, tied
from fnopt.solvers import StepInfo
from fnopt.solvers.problem._callback import run_callback

T = np.linspace(0.0, 3.0, 12, dtype=np.float32)


class Named(NamedTuple):
    a: float
    b: float


Y = (2 * np.exp(-0.7 * T) + 0.3 + 0.1 * np.cos(9 * T)).astype(np.float32)
START = jnp.ones(3)


def decay(p):
    return p[0] * jnp.exp(-p[1] * T) + p[2] - Y


# --- What the function returns beside the residuals. ----------------------------------------------


def test_aux_is_that_of_the_solution_and_has_derivatives():
    def pair(p, s):
        r = s * p["a"] * jnp.exp(-T) - Y
        return r, {"sum": jnp.sum(r), "a": p["a"], "kind": 1}

    def fitted(s):
        return fnopt.least_squares(pair, {"a": jnp.ones(())}, args=(s,), has_aux=True)

    end = fitted(jnp.float32(2))
    np.testing.assert_array_equal(end.aux["a"], end.params["a"])
    np.testing.assert_allclose(end.aux["sum"], np.sum(end.residuals), rtol=1e-5)
    slope = jax.grad(lambda s: fitted(s).aux["a"])(jnp.float32(2))  # a is c / s
    np.testing.assert_allclose(slope, -end.params["a"] / 2, rtol=1e-4)


def test_functions_in_a_list_have_aux_in_a_list():
    functions = [lambda p: (p - 1, 2 * p), lambda p: (p + 1, jnp.sum(p))]
    end = fnopt.least_squares(functions, jnp.ones(1), has_aux=True)
    np.testing.assert_allclose(end.params, 0, atol=1e-6)
    assert [np.shape(a) for a in end.aux] == [(1,), ()]
    with pytest.raises(TypeError, match="has_aux = True, but residual_fn returned"):
        fnopt.least_squares(decay, START, has_aux=True)


# --- A loss that is a function. -------------------------------------------------------------------


def with_derivatives(z):
    return jnp.stack([jnp.log1p(z), 1 / (1 + z), -1 / (1 + z) ** 2])


FUNCTIONS = {
    "function": lambda z: jnp.log1p(z),
    "as in SciPy": with_derivatives,
    "three arrays": lambda z: tuple(with_derivatives(z)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_a_loss_with_its_derivatives(name):
    loss = fnopt.residuals.custom_loss(FUNCTIONS[name])
    z = jnp.asarray([0.0, 0.5, 7.0])
    found = fnopt.residuals.robust_slopes(loss, z)
    np.testing.assert_allclose(jnp.stack(found), with_derivatives(z), rtol=1e-5)


def test_a_fit_with_a_function_as_its_loss():
    end = fnopt.least_squares(decay, START, loss=with_derivatives, f_scale=0.05)
    same = fnopt.least_squares(decay, START, loss=cauchy(scale=0.05))
    np.testing.assert_allclose(end.params, same.params, rtol=2e-3)
    np.testing.assert_allclose(end.cost, same.cost, rtol=1e-5)


def test_a_loss_of_another_shape_is_named():
    with pytest.raises(ValueError, match=r"returned shape \(\) for z of shape \(12,\), expected"):
        fnopt.least_squares(decay, START, loss=lambda z: jnp.sum(z))
    with pytest.raises(ValueError, match="expected loss to be a name or a function"):
        fnopt.least_squares(decay, START, loss=huber(), f_scale=0.1)


# --- A callback that stops. -----------------------------------------------------------------------


def at_the_third(info):
    return int(info.step) >= 3


def by_exception(info):
    if info.step >= 3:
        raise StopIteration


@pytest.mark.parametrize("callback", [at_the_third, by_exception])
def test_a_callback_stops_the_fit(callback):
    end = fnopt.least_squares(decay, START, callback=callback)
    assert int(end.status) == Status.STOPPED
    assert end.message == "not converged: the callback stopped the search"
    assert int(end.steps) == 3


def test_a_callback_in_a_batch_and_under_grad():
    starts = jnp.asarray([[1.0, 1, 1], [9.0, 3, 1]])
    ends = jax.vmap(lambda p: fnopt.least_squares(decay, p, callback=at_the_third))(starts)
    assert ends.steps.tolist() == [3, 3]

    def level(shift):
        end = fnopt.least_squares(lambda p: decay(p) - shift, START, callback=lambda info: 7)
        return end.params[2]

    np.testing.assert_allclose(jax.grad(level)(0.0), 1, rtol=1e-3)


def test_a_callback_that_fails_does_not_end_the_fit():
    def fails(info):
        raise OSError("disk full")

    with pytest.warns(UserWarning, match="fails raised OSError: disk full. The search continues"):
        end = fnopt.least_squares(decay, START, callback=fails)
    assert bool(end.converged)


INFO = StepInfo(*(jnp.asarray(v) for v in (3, [1.0, 2.0], 4.0, 0.1, 1.0, True)))


@pytest.mark.parametrize("value", ["cost", "fun"])
def test_callbacks_may_have_a_signature_of_scipys(value):
    seen = []

    def of_params(xk):
        seen.append(xk)

    def of_a_result(*, intermediate_result):
        seen.append(intermediate_result)
        raise StopIteration

    assert not run_callback(of_params, INFO, value)
    assert run_callback(of_a_result, INFO, value)
    np.testing.assert_array_equal(seen[0], [1, 2])
    np.testing.assert_array_equal(seen[1].x, [1, 2])
    assert (int(seen[1].nit), float(getattr(seen[1], value))) == (3, 4.0)
    with pytest.warns(UserWarning, match="no attribute 'x'; write params. The search"):
        assert not run_callback(lambda info: info.x, INFO, value)
    assert not run_callback(print, INFO, value)


# --- SciPy's keywords. ----------------------------------------------------------------------------


def test_scipys_keywords_mean_the_same(capsys):
    end = fnopt.least_squares(
        decay,
        START,
        jac="2-point",
        method="trf",
        bounds=(-np.inf, [np.inf] * 3),
        loss="huber",
        f_scale=0.1,
        xtol=1e-4,
        max_nfev=30,
        x_scale="jac",
        diff_step=1e-3,
        tr_solver="exact",
        tr_options={},
        verbose=1,
    )
    solver = fnopt.levenberg_marquardt(xtol=1e-4)
    same = fnopt.least_squares(decay, START, loss=huber(scale=0.1), max_steps=29, solver=solver)
    np.testing.assert_array_equal(end.params, same.params)
    assert int(end.nfev) == int(same.nfev)
    assert end.at_bound is None
    assert capsys.readouterr().out.startswith("least squares: converged")


def test_arguments_as_in_scipy_and_a_pattern_of_the_jacobian():
    def residuals(p, t, shift):
        return (p - t) * (p + shift)

    def jac(p, t, shift):
        return jnp.diag(2 * p + shift - t)

    start, t = jnp.full(3, 5.0), jnp.arange(1.0, 4.0)
    keywords = {"args": (t,), "kwargs": {"shift": jnp.float32(0.5)}}
    end = fnopt.least_squares(residuals, start, jac_sparsity=np.eye(3), **keywords)
    np.testing.assert_allclose(end.params, t, rtol=1e-5)
    held = fnopt.least_squares(residuals, start, jac, (2.0, 9.0), **keywords)
    np.testing.assert_allclose(held.params, [2, 2, 3], rtol=1e-5)
    named = fnopt.least_squares(residuals, x0=start, **keywords)
    np.testing.assert_allclose(named.params, t, rtol=1e-5)
    with pytest.raises(TypeError, match="least_squares: params is missing, expected an initial"):
        fnopt.least_squares(residuals, **keywords)
    for one in (2.0, [2.0], np.array([2.0])):  # of a number, as SciPy's Bounds have it
        bounded = fnopt.least_squares(lambda p: p * T, 3.0, bounds=(one, np.inf))
        assert float(bounded.params) == 2


WRONG = [
    ({"x0": START}, TypeError, "unexpected keyword 'x0'. Rename it to params, or pass it second."),
    (
        {"jac_sparsity": np.eye(5)},
        ValueError,
        r"pattern has shape \(5, 5\), expected \(12, 3\)",
    ),
    ({"kwargs": 1}, TypeError, "kwargs = 1, expected a dict"),
    ({"verbos": 1}, TypeError, "unexpected keyword 'verbos'. Expected a documented one, or"),
    ({"method": "newton"}, ValueError, "method = 'newton', expected one of"),
    ({"method": "lm", "bounds": (0, 9)}, ValueError, "got bounds with method = 'lm'"),
    ({"verbose": 3}, ValueError, "verbose = 3, expected 0, 1"),
    ({"max_nfev": 0}, ValueError, "max_nfev is 0, expected at least 1"),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG)
def test_wrong_keywords_are_refused_by_name(options, error, text):
    with pytest.raises(error, match=text):
        fnopt.least_squares(decay, START, **options)


def test_scipy_s_lm_refuses_fewer_residuals_than_params():
    with pytest.raises(ValueError, match=r"got 1 residual for 2 params"):
        fnopt.least_squares(lambda p: p[0] * p[1] - 1, jnp.ones(2), method="lm")
    one = fnopt.least_squares(lambda p: p[0] * p[1] - 1, 2 * jnp.ones(2))
    assert bool(one.converged)
    assert "rank 1 of 2" in str(one)


def test_numbers_in_a_row_are_a_vector():
    A = jnp.asarray([[2.0, 1.0], [1.0, 3.0]])
    b = jnp.asarray([1.0, 2.0])
    for start in ([1, 1], (1.0, jnp.float32(1)), jnp.ones(2)):
        end = fnopt.least_squares(lambda x: A @ x - b, start, bounds=([0, None], [9, None]))
        assert end.params.shape == (2,)
        np.testing.assert_allclose(end.params, [0.2, 0.6], atol=1e-6)
    assert fnopt.root(lambda x: [x[0] - 1, x[1] - x[0]], [3, 3]).params.tolist() == [1, 1]
    found = fnopt.fixed_point(lambda x: [0.5 * x[1], x[0] + 1], [0, 0])
    np.testing.assert_allclose(found.params, [1, 2], rtol=1e-6)


@pytest.mark.parametrize("start", [[True, 1.0], [[1.0], [2.0]], [], {"a": 1.0}, Named(1.0, 2.0)])
def test_other_trees_stay_trees(start):
    assert as_vector(start) is start


def test_numbers_with_constraints_stay_leaves():
    def power(p):
        return p[0] * T ** p[1].astype(T.dtype) - 3 * T**2

    def slope(p):
        return [T ** p[1].astype(T.dtype), None]

    end = fnopt.least_squares(power, [1, 2], slope, constraints=[None, fixed()])
    assert type(end.params) is list
    np.testing.assert_allclose(end.params[0], 3, rtol=1e-5)
    assert end.params[1].dtype == jnp.int32


def test_scipys_names_of_results_are_explained():
    end = fnopt.solvers.Solution(*[None] * 10)
    with pytest.raises(AttributeError, match="; write params"):
        _ = end.x
    assert not hasattr(end, "nothing")
    with pytest.raises(AttributeError, match="; write value"):
        _ = fnopt.solvers.Minimum(*[None] * 6).fun
    with pytest.raises(AttributeError, match="; write converged"):
        _ = fnopt.solvers.Root(*[None] * 5).success


# --- Params that are held or tied. ----------------------------------------------------------------


def test_a_held_integer_and_a_chain_of_ties():
    def residuals(p):
        rate = p["rate"] ** p["order"].astype(jnp.float32)
        return p["a"] * jnp.exp(-rate * T) + p["base"] - Y

    start = {"a": 1.0, "rate": 0.9, "base": 0.5, "order": 2}
    ties = {"base": tied(lambda p: p["a"] - 1.7), "a": tied(lambda p: 2.4 * p["rate"])}
    end = fnopt.least_squares(residuals, start, constraints=ties | {"order": fixed()})
    assert bool(end.converged)
    assert end.params["order"].dtype == jnp.int32
    np.testing.assert_allclose(end.params["base"], 2.4 * end.params["rate"] - 1.7, rtol=1e-5)
    errors = fnopt.standard_errors(end)
    assert float(errors["order"]) == 0
    np.testing.assert_allclose(errors["a"], 2.4 * errors["rate"], rtol=1e-4)
    assert [line.split()[-1] for line in str(end).splitlines() if " order" in line] == ["(fixed)"]
    assert int(fnopt.confidence_intervals(end)[0]["order"]) == 2


def squares(p):
    return jnp.stack([p[0] - 3, p[0] * p[1] - 6])


WHOLE = {
    "numbers": [1, 1],
    "a tuple": (1, 1),
    "NumPy's": np.array([1, 1]),
    "JAX's": jnp.array([1, 1]),
}


@pytest.mark.parametrize("solve", [fnopt.least_squares, fnopt.root])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_to_start_from_are_floats(solve, name):
    found = solve(squares, WHOLE[name]).params
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}
    np.testing.assert_allclose(np.asarray(found), [3, 2], rtol=1e-5)


def test_whole_numbers_in_trees_under_vmap_and_those_that_are_held():
    start = {"a": 1, "b": 1, "order": 2}
    ties = {"b": tied(lambda p: p["a"] / 2)}

    def cost(p):
        return (p["a"] * p["b"] - 4.5) ** p["order"].astype(jnp.float32)

    held = fnopt.minimize(cost, start, constraints=ties | {"order": fixed()}).params
    assert held["order"].dtype == jnp.int32
    np.testing.assert_allclose([held["a"], held["b"]], [3, 1.5], rtol=1e-3)
    ends = jax.vmap(lambda x: fnopt.least_squares(lambda p: p**2 - 4, x).params)(jnp.arange(1, 3))
    np.testing.assert_allclose(ends, 2, rtol=1e-5)
    popt, _ = fnopt.curve_fit(lambda x, p: p["a"] * x + p["b"], T, 3 * T + 1, {"a": 1, "b": 0})
    np.testing.assert_allclose([popt["a"], popt["b"]], [3, 1], rtol=1e-4)
    for no_number in (jax.random.PRNGKey(0), True):
        with pytest.raises(TypeError, match="expected a floating array"):
            fnopt.least_squares(lambda p: p * T, no_number)
