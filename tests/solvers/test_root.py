"""Roots and fixed points, against closed forms and SciPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.solvers._root import read_scipy_options


def coupled(x, a):
    """The same as SciPy's documentation of `root`, with a number to differentiate by."""
    return jnp.stack([x[0] + 0.5 * (x[0] - x[1]) ** 3 - a, 0.5 * (x[1] - x[0]) ** 3 + x[1]])


def solved(a):
    return fnopt.root(coupled, jnp.zeros(2, a.dtype), args=(a,))


@jax.jit
def derived(a):
    """Roots, their derivatives, forward and transposed, and the second ones, in one program."""

    def fit(a):
        end = solved(a)
        return end.params, end.converged

    def one(a):
        x, push, converged = jax.linearize(fit, a, has_aux=True)
        (back,) = jax.linear_transpose(push, a)(jnp.ones_like(x))
        return (x, push(jnp.ones_like(a)), back), converged

    def each(a):
        firsts, (_, second, _), converged = jax.jvp(one, (a,), (jnp.ones_like(a),), has_aux=True)
        return *firsts, converged, second

    return jax.vmap(each)(a)


def test_roots_and_their_derivatives_agree_with_scipy(x64):
    optimize = pytest.importorskip("scipy.optimize")

    def peer(a):
        # The sum of the equations is x + y = a.
        d = optimize.brentq(lambda d: d - 0.5 * (a - 2 * d) ** 3, -5, 5, xtol=1e-15)
        return np.asarray([a - d, d])

    a = np.asarray([0.5, 1.0, 1.5])
    x, slope, back, converged, bend = derived(jnp.asarray(a))
    assert np.all(converged)
    np.testing.assert_allclose(x, np.stack([peer(v) for v in a]), rtol=1e-9)
    h = 1e-4
    up, down = (np.stack([peer(v + step) for v in a]) for step in (h, -h))
    np.testing.assert_allclose(slope, (up - down) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(back, np.sum(slope, axis=1), rtol=1e-9)
    np.testing.assert_allclose(bend, (up + down - 2 * np.asarray(x)) / h**2, rtol=1e-4, atol=1e-5)


# Equations c x^2 + b x + a, a start, and whether there is a root to be found.
PLACES = {
    "singular at the root": ([1, 0, 0], [1.0, 2.0], True),
    "none": ([1, 0, 1], [1.0, 2.0], False),
    "none, from afar": ([1, 0, 1], [1e3, 1e6], False),
    "none, from afar and near": ([1, 0, 1], [1e6, 1.0], False),
    "at zero": ([0, 3, 0], [1.0, -2.0], True),
    "none, from where the slope is zero": ([1, 0, 1], [0.0, 0.0], False),
    "rows of all sizes": ([0, [1e6, 1e-6], [-2e6, -2e-6]], [1.0, 3.0], True),
    "a small one that never holds": ([[0, 1e-6], [1e6, 0], [-2e6, 1e-6]], [1.0, 3.0], False),
    "a param moves nothing at the start": ([1, 0, -4], [0.0, 3.0], True),
    "no param moves anything at the start": ([1, 0, -4], [0.0, 0.0], True),
    "at the start": ([0, 1, -1], [1.0, 1.0], True),
    "no number there": ([0, np.nan, 1], [1.0, 1.0], False),
    "tiny params": ([0, 1e24, -2], [1e-24, 3e-24], True),
    "huge params": ([0, 1e-18, -2], [1e18, 3e18], True),
}


@pytest.mark.parametrize("name", PLACES)
def test_only_a_root_is_called_one(name):
    factors, start, there_is_one = PLACES[name]
    c, b, a = (jnp.full(2, 1.0, jnp.float32) * jnp.asarray(f, jnp.float32) for f in factors)
    end = fnopt.root(lambda x: c * x**2 + b * x + a, jnp.asarray(start, jnp.float32))
    assert bool(end.converged) == there_is_one, (end.message, end.params)
    assert np.all(np.isfinite(end.params))
    assert str(end).startswith("root: ")
    assert str(end).splitlines()[2:] == [f"  x[{i}]  {v:.6g}" for i, v in enumerate(end.params)]
    assert str(jax.tree.map(lambda x: jnp.stack([x, x]), end)).startswith("root: 2 problems\n")
    assert there_is_one or int(end.status) in (Status.STALLED, Status.NONFINITE_START)


def product_and_difference(x):
    return jnp.stack([x[0] * x[1] - 1e-14, x[0] - x[1] - 1e-7])


# Functions of two numbers, a start, and the root.
EQUATIONS = {
    "zero at infinity, exp": (jnp.exp, [0.0, 1.0], None),
    "zero at infinity, 1 / x": (lambda x: 1 / x, [1.0, 2.0], None),
    "zero at infinity, exp(-x**2)": (lambda x: jnp.exp(-(x**2)), [1.0, 2.0], None),
    "a singular one": (lambda x: x**4, [1.0, 2.0], [0.0, 0.0]),
    # An equilibrium: beside the difference the product is nothing in a sum of squares.
    "equations of all sizes": (product_and_difference, [1e-3, 1e-9], [1.618034e-7, 6.18034e-8]),
}


@jax.jit
def root_of_one(which, start):
    functions = [fn for fn, _, _ in EQUATIONS.values()]
    return fnopt.root(lambda x: jax.lax.switch(which, functions, x), start)


@pytest.mark.parametrize("name", EQUATIONS)
def test_what_vanishes_at_infinity_is_no_root_and_small_equations_hold_too(name):
    _, start, root = EQUATIONS[name]
    end = root_of_one(list(EQUATIONS).index(name), jnp.asarray(start, jnp.float32))
    # Where all is zero in the dtype that is computed in, nothing else can be said.
    assert bool(end.converged) == (root is not None or np.all(end.residuals == 0))
    if root is not None:
        np.testing.assert_allclose(
            end.params, root, rtol=1e-5, atol=1e-2 if name == "a singular one" else 0
        )


def test_a_derivative_that_is_infinite_near_the_root_is_not_called_the_start():
    end = fnopt.root(lambda x: jnp.sign(x) * jnp.sqrt(jnp.abs(x)), 1.0)
    assert int(end.steps) > 1
    assert bool(end.converged) or "start" not in end.message


def test_trees_complex_numbers_and_aux():
    def fun(p):
        return {"u": p["z"] ** 2 + 1, "v": p["a"].astype(jnp.float32) - 3}, p["z"] * 2

    start = {"z": jnp.asarray(0.5 + 0.5j, jnp.complex64), "a": jnp.ones(2, jnp.bfloat16)}
    end = fnopt.root(fun, start, has_aux=True)
    assert bool(end.converged), end.message
    assert jax.tree.map(jnp.result_type, end.params) == jax.tree.map(jnp.result_type, start)
    np.testing.assert_allclose(end.params["z"], 1j, atol=1e-5)
    np.testing.assert_allclose(end.aux, 2j, atol=1e-5)


def test_a_fixed_point_that_repetition_runs_away_from():
    def solved(a):
        end = fnopt.fixed_point(lambda x: 4 * jnp.cos(x) - a, jnp.ones_like(a))
        return end.params, end.converged

    a = jnp.float32(0.5)
    x, slope, converged = jax.jit(lambda a: jax.jvp(solved, (a,), (a / a,), has_aux=True))(a)
    assert bool(converged)
    np.testing.assert_allclose(4 * np.cos(x) - 0.5, x, atol=1e-4)
    np.testing.assert_allclose(slope, -1 / (1 + 4 * np.sin(x)), rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: fnopt.root("f", 0.0), TypeError, "root: fun is str, expected a function"),
        (lambda: fnopt.root(lambda x: x[:1], jnp.ones(2)), ValueError, "1 number, expected 2"),
        (lambda: fnopt.root(lambda x: x, jnp.ones(2, bool)), TypeError, "expected a floating"),
        (lambda: fnopt.root(lambda x: x, 0.0, has_aux=True), TypeError, "expected a pair"),
        (lambda: fnopt.root(lambda x: x, 0.0, args=1.0), TypeError, "root: args is float"),
        (
            lambda: fnopt.fixed_point(lambda x: x[:1], jnp.ones(2)),
            ValueError,
            "the shapes of",
        ),
    ],
)
def test_mistakes_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_call_written_for_scipy():
    def equations(x, a):
        return jnp.stack([x[0] * x[1] - a, x[0] - x[1]])

    end = fnopt.root(equations, np.array([1, 2]), (4.0,), method="hybr", jac="2-point", tol=1e-5)
    np.testing.assert_allclose(end.params, 2, rtol=1e-4)
    np.testing.assert_allclose(fnopt.root(lambda x: x**3 - 8, x0=[1]).params, 2, rtol=1e-5)
    np.testing.assert_allclose(fnopt.minimize(lambda x: (x - 2) ** 2, x0=1.0).params, 2, rtol=1e-5)
    assert read_scipy_options("root", {"options": {"maxfev": 40, "xtol": 1e-3}}, None, 1000) == (
        1e-3,
        40,
    )
    assert read_scipy_options("fixed_point", {"xtol": 1e-3, "method": "del2"}, 1e-4, 9) == (1e-4, 9)


@pytest.mark.parametrize(
    ("keywords", "error", "text"),
    [
        ({"method": "krylov"}, ValueError, "method = 'krylov', expected one of .*'hybr'"),
        ({"fprime": len}, TypeError, "Leave it out, because derivatives are exact"),
        ({"jac": True}, TypeError, "returns the equations alone"),
        ({"jac": len}, TypeError, "jax.custom_jvp"),
        ({"x0": 1.0}, TypeError, "Rename it to params"),
        (
            {"bracket": (0, 2)},
            TypeError,
            "Pass the midpoint as params, or use scipy",
        ),
        ({"options": {"fatol": 1}}, TypeError, "unexpected option 'fatol'"),
        ({"tolerance": 1}, TypeError, "SciPy's method, jac, options"),
    ],
)
def test_what_isnt_understood_is_named(keywords, error, text):
    with pytest.raises(error, match=text):
        fnopt.root(lambda x: x, jnp.ones(2), **keywords)


@pytest.mark.parametrize("start", [1e13, 1e20])
def test_what_overflows_at_the_start_is_no_root(start):
    # In float32 the equation and its slope times the start are infinite, and so is any bound.
    end = fnopt.root(lambda x: x**3 - 2 * x - 5, start)
    assert not bool(end.converged), end.message
    assert int(end.status) == fnopt.Status.NONFINITE_START
    end = fnopt.fixed_point(lambda x: x**3 / 2, start)
    assert not bool(end.converged), end.message


def test_a_root_in_any_unit_of_the_params():
    # Squares of the params overflow or vanish, those of what the equations make of them don't.
    units = jnp.asarray([10.0**k for k in range(-30, 31, 10)], jnp.float32)
    solved = jax.jit(jax.vmap(lambda u: fnopt.root(lambda x: (x * u) ** 2 - 2, 1 / u)))(units)
    assert np.all(solved.converged), solved.message
    np.testing.assert_allclose(solved.params * units, 2**0.5, rtol=1e-5)
