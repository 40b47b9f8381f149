"""Losses, weights and constraints of a fit."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

T = np.linspace(0.0, 3.0, 40)
RNG = np.random.default_rng(0)
Y = 2 * np.exp(-0.7 * T) + 0.3 + 0.03 * RNG.standard_normal(40)
Y[::7] += 2


def decay(p, y=Y, exp=jnp.exp):
    return p[0] * exp(-p[1] * T) + p[2] - y


@pytest.mark.parametrize("name", ["soft_l1", "huber", "cauchy"])
def test_robust_fits_agree_with_scipy(name, x64):
    optimize = pytest.importorskip("scipy.optimize")
    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    want = optimize.least_squares(
        lambda p: decay(p, exp=np.exp), [1.0, 1, 0], loss=name, f_scale=0.1, **tight
    )
    loss = getattr(fnopt.residuals, name)(scale=0.1)
    got = fnopt.least_squares(decay, jnp.asarray([1.0, 1, 0]), loss=loss)
    assert bool(got.converged)
    np.testing.assert_allclose(got.cost, want.cost, rtol=1e-12)
    np.testing.assert_allclose(got.params, want.x, rtol=1e-6)
    np.testing.assert_allclose(got.residuals, want.fun, atol=1e-6)
    np.testing.assert_allclose(got.jacobian.T @ got.jacobian, want.jac.T @ want.jac, rtol=1e-4)
    assert int(got.nfev) <= 20


def test_functions_with_losses_of_their_own():
    data = jnp.asarray([1.0, 1.1, 0.9, 50.0])
    both = fnopt.least_squares(
        {"data": lambda p: p - data, "prior": lambda p: 2 * (p - 3.0)},
        jnp.asarray(0.0),
        loss={"data": fnopt.residuals.cauchy(scale=0.1), "prior": None},
        sigma={"data": 1.0, "prior": 1e3},
    )
    assert abs(float(both.params) - 1) < 0.05
    np.testing.assert_allclose(both.residuals["prior"], 2 * (both.params - 3) / 1e3, rtol=1e-4)


def test_what_has_no_weight_does_not_count():
    y = jnp.asarray([1.0, 2.0, 3.0, jnp.nan])
    fit = fnopt.least_squares(lambda p: p - y, 0.0, weights=jnp.asarray([1.0, 1, 1, 0]))
    np.testing.assert_allclose(fit.params, 2, rtol=1e-6)
    assert int(fit.dof) == 2
    np.testing.assert_allclose(fnopt.standard_errors(fit), 1 / np.sqrt(3), rtol=1e-5)


@pytest.mark.parametrize("options", [{"loss": "tukey"}, {"weights": 0.0}], ids=str)
def test_a_fit_in_which_nothing_counts_is_no_success(options):
    fit = fnopt.least_squares(lambda p: p * jnp.ones(3) + 100, 1.0, **options)
    assert fnopt.Status(int(fit.status)).name == "ILL_POSED"
    np.testing.assert_array_equal(fit.params, 1)


def test_constrained_params_and_their_errors():
    x = jnp.linspace(0.0, 2.0, 20)
    y = 3 * x + 1 + 0.1 * jnp.cos(11 * x)
    free = fnopt.least_squares(lambda p: p["a"] * x + p["b"] - y, {"a": 1.0, "b": 0.0})
    same = fnopt.least_squares(
        lambda p: p["a"] * x + p["b"] + p["c"] + p["d"] - y,
        {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.0},
        constraints={
            "a": fnopt.positive(),
            "c": fnopt.fixed(),
            "d": fnopt.tied(lambda p: -p["c"]),
        },
    )
    np.testing.assert_allclose(same.params["a"], free.params["a"], rtol=1e-4)
    np.testing.assert_allclose(same.params["b"], free.params["b"], rtol=1e-3)
    assert float(same.params["c"]) == 0.5
    got, want = fnopt.standard_errors(same), fnopt.standard_errors(free)
    np.testing.assert_allclose([got[k] for k in "abcd"], [want["a"], want["b"], 0, 0], rtol=1e-3)
    text = str(same)
    assert "reduced chi-square" in text
    assert "18 degrees of freedom" in text
    assert text.count("(fixed)") == 2


def test_nothing_is_retraced_or_lost_under_vmap():
    def fit(y):
        return fnopt.least_squares(
            lambda p: p - y,
            jnp.asarray(0.5),
            loss=fnopt.residuals.huber(scale=1.0),
            bounds=(0.0, 1.0),
        ).params

    y = jnp.asarray([[0.1, 0.2], [5.0, 9.0], [-3.0, -4.0]])
    np.testing.assert_allclose(jax.vmap(fit)(y), [0.15, 1, 0], atol=1e-6)


T3 = np.asarray([1.0, 2.0, 3.0], np.float32)


def test_values_that_cannot_be_refused_end_in_a_status():
    @jax.jit
    @jax.vmap
    def fit(lower, upper, unit):
        return fnopt.least_squares(lambda p: (p - 6) * T3 * unit, 1.0, bounds=(lower, upper))

    # Crossed bounds, one that is NaN; squares that would underflow, and nothing wrong.
    lower, upper = jnp.asarray([3.0, -jnp.inf, 0, 0]), jnp.asarray([0.0, jnp.nan, 9, 9])
    end = fit(lower, upper, jnp.asarray([1.0, 1.0, 1e-25, 1e-9]))
    infeasible = fnopt.Status.INFEASIBLE.message
    assert end.message[:2] == [infeasible, infeasible]
    np.testing.assert_allclose(end.params, [1, 1, 6, 6], rtol=1e-6)
    assert end.converged.tolist() == [False, False, True, True]


def writing(p):
    r = np.zeros(3)
    r[0] = p
    return r


CALLS = [
    ({"residual_fn": writing}, r"writes into an array; write x\.at\[i\]\.set.*: `r\[0\] = p`"),
    ({"args": T3}, r"args is ndarray, expected a tuple of arguments. Pass .* as args=\(data"),
    ({"args": (T3, "mode")}, r"args: leaf '1' is 'mode', expected an array"),
    (
        {"params": [1.0, 2.0, 3.0], "constraints": {"1": fnopt.fixed()}},
        "params are a list of numbers, and with constraints each number is a leaf",
    ),
    ({"residual_fn": lambda p: p["b"] * T3, "params": {"a": 1.0}}, r"have the keys \['a'\]"),
    ({"residual_fn": lambda p: np.sin(p) * T3}, r"residual_fn calls np\.sin; write jnp\.sin"),
    ({"residual_fn": lambda p: T3 if p > 0 else p * T3}, r"branches in Python on the value"),
]


@pytest.mark.parametrize(("change", "text"), CALLS)
def test_what_a_first_call_gets_wrong_is_explained(change, text):
    with pytest.raises((TypeError, AttributeError, KeyError)) as caught:
        fnopt.least_squares(**{"residual_fn": lambda p, *args: p * T3, "params": 1.0, **change})
    assert re.search(text, "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])]))
