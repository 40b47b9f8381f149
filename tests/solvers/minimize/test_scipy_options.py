from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import fnopt
from fnopt.solvers.minimize._scipy import (
    METHODS,
    lower_and_upper,
    method_by_name,
    with_scipy_options,
)

DEFAULTS = {
    "method": "auto",
    "ftol": None,
    "xtol": None,
    "gtol": None,
    "max_steps": 1000,
}
# All that SciPy 1.17 has.
HERE = ("CG", "BFGS", "Newton-CG", "L-BFGS-B", "trust-ncg", "trust-krylov", "l-bfgs-b", "bfgs")
HERE += ("LBFGS", "Newton_CG")
ELSEWHERE = {
    "Nelder-Mead": "method with gradients.*'auto'",
    "Powell": "without gradients",
    "TNC": "'lbfgsb'",
    "COBYLA": "constraints=",
    "COBYQA": "constraints=",
    "SLSQP": "constraints=",
    "trust-constr": "projection=",
    "dogleg": "'newton_cg'",
    "trust-exact": "'newton_cg'",
}


@pytest.mark.parametrize("name", HERE)
def test_names_of_methods(name):
    assert method_by_name(name) in METHODS.values()


@pytest.mark.parametrize("name", ELSEWHERE)
def test_names_of_methods_that_arent_here_say_what_is(name):
    with pytest.raises(ValueError, match=ELSEWHERE[name]):
        fnopt.minimize(jnp.sum, jnp.ones(2), method=name)


def test_tolerances_and_options():
    asked = with_scipy_options({"tol": 1e-3, "jac": None, "options": None}, **DEFAULTS)
    assert asked == ("auto", (1e-3, None, 1e-3), 1000, False)
    options = {"gtol": 1e-4, "maxiter": 70, "maxfun": 50, "maxcor": 5, "disp": True}
    asked = with_scipy_options(
        {"tol": 1e-3, "options": options}, **DEFAULTS | {"method": "L-BFGS-B"}
    )
    assert asked == (fnopt.lbfgsb(5), (1e-3, None, 1e-4), 50, True)
    assert with_scipy_options({"tol": 1e-3}, **DEFAULTS | {"gtol": 1e-7})[1] == (1e-3, None, 1e-7)
    asked = with_scipy_options(
        {"options": {"xtol": 1e-5, "eps": 1e-8}}, **DEFAULTS | {"method": None}
    )
    assert asked == ("auto", (None, 1e-5, None), 1000, False)


def test_a_call_written_for_scipy():
    def end(x):
        options = {"maxiter": 40, "ftol": 1e-8, "disp": True}  # nothing to show in here
        return fnopt.minimize(
            lambda x: jnp.sum(x**4), x, method="L-BFGS-B", bounds=(0.0, 3.0), options=options
        )

    assert jax.eval_shape(end, jnp.ones(2)).params.shape == (2,)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"x0": 1.0}, "Rename it to params"),
        ({"hessp": len}, "Leave it out"),
        ({"maxiter": 3}, "Write max_steps"),
        ({"learning_rate": 0.1}, "SciPy's tol, jac, options"),
        ({"jac": True}, "its value alone"),
        ({"jac": len}, "derivatives are exact"),
        ({"options": {"xatol": 1.0}}, "unexpected option 'xatol'"),
        (
            {"constraints": [{"type": "ineq", "fun": len}]},
            r"constraint of .* is .* expected .*tied",
        ),
        ({"options": {"maxcor": 3}, "method": "bfgs"}, "got maxcor with method = 'bfgs', expected"),
    ],
)
def test_what_isnt_understood_is_named(keywords, text):
    with pytest.raises(TypeError, match=text):
        fnopt.minimize(jnp.sum, jnp.ones(2), **keywords)


def test_bounds_as_a_list_of_pairs():
    lower, upper = lower_and_upper([(0.0, None), (None, 2), (-1, 1)])
    assert lower.tolist() == [0.0, -jnp.inf, -1.0]
    assert upper.tolist() == [jnp.inf, 2.0, 1.0]
    for kept in (None, (0.0, 1.0), ([0.0, 1.0], [2.0, 3.0]), [0.0, 1.0], []):
        assert lower_and_upper(kept) is kept
    assert lower_and_upper(((0, None), (0, 2)))[1].tolist() == [jnp.inf, 2.0]
    assert lower_and_upper([[0, 1], [0, 2], [0, 3]])[1].tolist() == [1.0, 2.0, 3.0]
    for either in (((0, 2), (0, 3)), [[0, 2], [0, 3]]):
        text = r"ambiguous, .* Pass \[\(0, 2\), \(0, 3\)\] .* \(\[0, 2\], \[0, 3\]\)"
        with pytest.raises(ValueError, match=text):
            fnopt.minimize(jnp.sum, [1, 1], bounds=either)
    assert float(fnopt.minimize(lambda x: jnp.sum(x**2), [3], bounds=[(1, 9)]).params[0]) == 1
    end = fnopt.minimize(lambda x: jnp.sum((x - 3) ** 2), [1, 1], bounds=[(0, 2), (None, 9)])
    assert end.params.tolist() == pytest.approx([2.0, 3.0], abs=1e-4)


@pytest.mark.parametrize("start", [jnp.ones(3), {"a": jnp.ones(2), "b": jnp.ones(())}])
def test_a_single_pair_bounds_every_param(start):
    def away(params):
        return sum(jnp.sum((leaf - 3) ** 2) for leaf in jax.tree.leaves(params))

    end = fnopt.minimize(away, start, bounds=[(None, 2)])
    assert all(jnp.allclose(leaf, 2.0) for leaf in jax.tree.leaves(end.params))
    assert bool(end.converged)


def test_disp_prints_the_report(capsys):
    fnopt.minimize(lambda x: x**2, 1.0, options={"disp": True}, method="cg")
    assert "minimize: " in capsys.readouterr().out
