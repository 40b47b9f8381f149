"""First mistakes in a call are told in terms of its arguments, not of JAX or Python."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

X = jnp.ones(2)
BATCH = jnp.ones((3, 2))
T = jnp.linspace(0.0, 1.0, 5)


class Model:
    def __call__(self, p, data):
        return p * data


def with_data(p, data):
    return p * data


def total(p, data):
    return jnp.sum(p * data)


SOLVERS = {
    "least_squares": (fnopt.least_squares, with_data),
    "jit": (fnopt.least_squares, jax.jit(with_data)),
    "object": (fnopt.least_squares, Model()),
    "partial": (fnopt.least_squares, functools.partial(with_data)),
    "minimize": (fnopt.minimize, total),
    "root": (fnopt.root, with_data),
    "fixed_point": (fnopt.fixed_point, with_data),
}


@pytest.mark.parametrize("args", [(), (1.0, 2.0)])
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_function_that_takes_other_arguments(name, args, inside):
    solve, fn = SOLVERS[name]
    run = functools.partial(solve, fn, args=args)
    with pytest.raises(TypeError, match=r"to accept \(params, \*args\).*args=\(data, \.\.\.\)"):
        (jax.jit(run) if inside else run)(X)


def test_functions_of_examples_and_jacobians_too():
    with pytest.raises(TypeError, match=r"params, example, .*args=\(data"):
        fnopt.least_squares(lambda p, x, scale: scale * (p @ x), X, batch=BATCH)
    with pytest.raises(TypeError, match=r"and jac to accept.*args=\(data"):
        fnopt.least_squares(lambda p: p, X, jac=with_data)


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit, lambda fn: jax.vmap(fn, in_axes=0)])
def test_a_mistake_inside_of_the_function_stays_what_it_is(wrap):
    def residuals(p):
        return wrap(with_data)(p)

    with pytest.raises(TypeError, match="data") as found:
        fnopt.least_squares(residuals, X)
    assert "args=(" not in str(found.value)


def value_of(p):
    return jnp.sum(p**2)


WITH_AUX = {
    "least_squares": lambda aux: fnopt.least_squares(lambda p: (p, aux), X, has_aux=True),
    "of examples": lambda aux: fnopt.least_squares(
        lambda p, x: (p @ x, aux), X, batch=BATCH, has_aux=True
    ),
    "minimize": lambda aux: fnopt.minimize(lambda p: (value_of(p), aux), X, has_aux=True),
    "root": lambda aux: fnopt.root(lambda p: (p - 1, aux), X, has_aux=True),
    "fixed_point": lambda aux: fnopt.fixed_point(lambda p: (p / 2, aux), X, has_aux=True),
}


@pytest.mark.parametrize("aux", ["name", {"r": jnp.ones(2), "kind": "name"}, [object()]])
@pytest.mark.parametrize("name", WITH_AUX)
def test_aux_that_is_no_array(name, aux):
    with pytest.raises(TypeError, match="expected an array or a number"):
        WITH_AUX[name](aux)
    if name == "minimize":  # the others look at it while they are traced
        with pytest.raises(TypeError, match="expected an array or a number"):
            jax.jit(lambda: WITH_AUX[name](aux))()


@pytest.mark.parametrize("name", WITH_AUX)
def test_aux_may_be_numbers_arrays_keys_and_nothing(name):
    WITH_AUX[name]({"a": 1, "b": np.ones(2), "c": None, "d": jax.random.key(0), "e": True})


@pytest.mark.parametrize("options", [{}, {"batch": BATCH}])
def test_a_loss_that_is_not_written_for_jax_is_told_apart_from_the_residuals(options):
    def residuals(p, *example):
        return p @ example[0] if example else p

    with pytest.raises(TypeError, match=r"^loss: the function calls np\.log1p; write jnp\.log1p"):
        fnopt.least_squares(residuals, X, loss=lambda z: np.log1p(np.asarray(z)), **options)
    with pytest.raises(TypeError, match=r"^loss: .*called as loss\(z\)"):
        fnopt.least_squares(residuals, X, loss=lambda z, scale: scale * z, **options)
    with pytest.raises(TypeError, match=r"^least_squares: residual_fn calls np\.asarray"):
        fnopt.least_squares(lambda p, *example: np.asarray(p), X, loss=jnp.log1p, **options)


def test_a_jacobian_and_a_tie_that_are_not_written_for_jax_are_told_apart_from_the_residuals():
    def jac(p):
        return np.diag(np.asarray(p))

    with pytest.raises(TypeError, match=r"^least_squares: jac calls np\.diag; write jnp\.diag"):
        fnopt.least_squares(lambda p: p**2, X, jac=jac)
    with pytest.raises(TypeError, match=r"^curve_fit: jac calls np\.diag"):
        fnopt.curve_fit(lambda x, a: a * x, X, X, jac=lambda x, a: jac(a))
    with pytest.raises(TypeError, match=r"^curve_fit_batch: jac calls np\.diag"):
        fnopt.curve_fit_batch(lambda x, a: a * x, X, X[None], 1.0 * X[:1], jac=lambda x, a: jac(a))
    tied = {"b": fnopt.tied(lambda p: np.exp(p["a"]))}
    params = {"a": 1.0, "b": 1.0}
    with pytest.raises(TypeError, match=r"^tied: the function calls np\.exp; write jnp\.exp"):
        fnopt.least_squares(lambda p: p["a"] + p["b"] * X, params, constraints=tied)


def test_a_model_that_selects_by_a_condition_is_told_so():
    with pytest.raises(TypeError, match=r"f indexes with a boolean array, .* jnp\.where") as error:
        fnopt.curve_fit(lambda x, a, b: a * x[x > b], X, X)
    assert not any("p0" in note for note in getattr(error.value, "__notes__", ()))


LINE = {"a": 1.0, "k": 1.0}


@pytest.mark.parametrize(
    ("f", "p0", "message"),
    [
        (
            lambda x, a, b: a * x + b,
            jnp.ones(3),
            "p0 has 3 numbers, expected 2, one for each param",
        ),
        (
            lambda x, a, b: a * x + b,
            jnp.ones(1),
            "p0 has 1 number, expected 2, one for each param",
        ),
        (lambda x, p: p[0] * x + p[1], jnp.ones(2), r".*expected 1, one.*lambda x, \*p: f\(x"),
        (lambda x, a, b: a * x + b, LINE, r"p0 is a dict.*sequence of numbers"),
        (lambda x: x, jnp.ones(2), "p0 has 2 numbers, expected 0, one for each param"),
    ],
)
@pytest.mark.parametrize("fit", [fnopt.curve_fit, fnopt.curve_fit_batch])
def test_a_curve_of_other_params_than_the_start(fit, f, p0, message):
    y = 2 * T if fit is fnopt.curve_fit else jnp.stack([T, 2 * T])
    with pytest.raises(ValueError, match=f"^{fit.__name__}: {message}"):
        fit(f, T, y, p0)
