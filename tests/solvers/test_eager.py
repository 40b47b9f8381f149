"""Fits that run at once, not under jit: compiled once, whatever is new, and never stale."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.manifolds import SE2, on
from fnopt.solvers._fit import fit

T = np.linspace(0.0, 3.0, 12, dtype=np.float32)
Y = np.asarray(2.0 * np.exp(-0.7 * T) + 0.3, np.float32)
START = {"scale": 1.0, "rate": 1.0, "level": 0.0}
COMPILED: list[str] = []


def _count(event: str, *_: object, **__: object) -> None:
    if event.endswith("backend_compile_duration"):
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)


def decay(p, t, y):
    return p["scale"] * jnp.exp(-p["rate"] * t) + p["level"] - y


def plain(shift, **options):
    """A new function, with new data, in every call."""
    return fnopt.least_squares(lambda p: decay(p, T, Y + shift), START, **options).params["level"]


def jitted(shift):
    inner = jax.jit(lambda p: decay(p, T, Y + shift))
    return fnopt.least_squares(inner, START).params["level"]


def arguments(shift):
    return fnopt.least_squares(decay, START, args=(T, Y + shift)).params["level"]


def softplus(shift):
    def residuals(p):
        return jax.nn.softplus(p["scale"]) * jnp.exp(-p["rate"] * T) + p["level"] - (Y + shift)

    return fnopt.least_squares(residuals, START).params["level"]


def jacobian(shift):
    def jac(p):
        return jax.jacfwd(lambda p: decay(p, T, Y + shift))(p)

    return fnopt.least_squares(lambda p: decay(p, T, Y + shift), START, jac=jac).params["level"]


def several(shift):
    functions = [lambda p: decay(p, T[:6], Y[:6] + shift), lambda p: decay(p, T[6:], Y[6:] + shift)]
    fit = fnopt.least_squares(functions, START, loss=[None, fnopt.residuals.huber()])
    return fit.params["level"]


def from_scipy(shift):
    popt, _ = fnopt.curve_fit(
        lambda t, a, b, c: a * jnp.exp(-b * t) + c, T, Y + np.float32(shift), p0=(1.0, 1.0, 0.0)
    )
    return popt[2]


def batch(shift):
    scale = jnp.float32(1)
    fit = fnopt.curve_fit_batch(
        lambda t, a, b, c: scale * a * jnp.exp(-b * t) + c,
        T,
        np.stack([Y, Y + np.float32(shift)]),
        p0=(1.0, 1.0, 0.0),
    )
    return fit.params[1, 2]


FITS = {
    "plain": plain,
    "under jit": jitted,
    "arguments": arguments,
    "custom derivative": softplus,
    "jac": jacobian,
    "several": several,
    "curve_fit": from_scipy,
    "batch": batch,
    "loss": lambda shift: plain(shift, loss=lambda z: jnp.log1p(z)),
    "sigma": lambda shift: plain(shift, sigma=0.1 * (1 + abs(shift)) * np.ones_like(T)),
    "bounds": lambda shift: plain(shift, bounds=(-5.0 - shift, 5.0)),
    "constraints": lambda shift: plain(shift, constraints={"rate": fnopt.positive()}),
    "solver": lambda shift: plain(
        shift, solver=fnopt.levenberg_marquardt(ftol=1e-7 * (1 + abs(shift)))
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_new_data_need_no_compilation(name):
    fit = FITS[name]
    for shift in (0.0, 0.25):  # the first call, and what the arithmetic around it compiles
        fit(shift)
    before = len(COMPILED)
    for shift in (-1.0, 1.0):
        np.testing.assert_allclose(fit(shift), 0.3 + shift, atol=1e-3)
    assert len(COMPILED) == before


def test_a_fit_looks_at_the_function_once():
    seen = []

    def residuals(p):
        seen.append(p)
        return decay(p, T, Y)

    fnopt.least_squares(residuals, START)
    seen.clear()
    fnopt.least_squares(residuals, START)
    assert len(seen) == 1


def test_jitted_functions_are_traced_once():
    seen = []

    @jax.jit
    def residuals(p, y):
        seen.append("residuals")
        return decay(p, T, y)

    @jax.jit
    def model(t, a, b, c):
        seen.append("model")
        return a * jnp.exp(-b * t) + c

    for shift in (0.0, 1.0):
        y = Y + np.float32(shift)
        fit = fnopt.least_squares(residuals, START, args=(y,))
        popt, _ = fnopt.curve_fit(model, T, y, p0=(1.0, 1.0, 0.0))
        np.testing.assert_allclose([fit.params["level"], popt[2]], 0.3 + shift, atol=1e-4)
    assert sorted(seen) == ["model", "residuals"]


def test_a_number_of_a_closure_is_not_stale():
    shift = {}

    def residuals(p):
        return decay(p, T, Y + shift["now"])

    for value in (0.0, 1.0):
        shift["now"] = value
        fit = fnopt.least_squares(residuals, START)
        np.testing.assert_allclose(fit.params["level"], 0.3 + value, atol=1e-4)


def test_the_function_of_a_tied_param_is_not_stale():
    factor = {}
    tied = fnopt.tied(lambda p: factor["now"] * p["level"])
    for value in (2.0, 3.0):
        factor["now"] = value
        fit = fnopt.least_squares(
            lambda p: decay(p, T, Y), START, constraints={"scale": tied}, max_steps=20
        )
        np.testing.assert_allclose(fit.params["scale"], value * fit.params["level"], rtol=1e-5)


def test_a_jacobian_is_not_stale():
    factor = {}

    def jac(p):
        return jax.tree.map(lambda J: factor["now"] * J, jax.jacfwd(lambda p: decay(p, T, Y))(p))

    got = []
    for value in (1.0, 0.5):
        factor["now"] = value
        fit = fnopt.least_squares(lambda p: decay(p, T, Y), START, jac=jac, max_steps=1)
        got.append(float(fit.params["level"]))
    assert got[0] != got[1]


def test_a_sparse_fit_on_a_manifold_is_set_up_once_for_every_pattern(monkeypatch):
    traced, tree = [], {}

    def counted(*args, **kwargs):
        traced.append(kwargs)
        return fit(*args, **kwargs)

    monkeypatch.setattr("fnopt.solvers._driver.fit", counted)

    def residuals(p):
        T = jnp.concatenate([p["root"].value[None], p["rest"].value])
        return SE2.local(tree["step"], SE2.inverse(T[tree["parent"]]) @ T[1:])

    start = {"root": on(SE2, jnp.eye(3)), "rest": on(SE2, jnp.tile(jnp.eye(3), (4, 1, 1)))}
    for turn, parent, count in [(0.1, [0, 1, 2, 3], 1), (0.3, [0, 1, 2, 3], 1), (0.3, [0] * 4, 2)]:
        step = SE2.retract(jnp.eye(3), jnp.asarray([1.0, 0.0, turn]))
        tree |= {"step": step, "parent": np.asarray(parent)}
        found = fnopt.least_squares(
            residuals,
            start,
            jac=fnopt.sparse_jacobian(residuals),
            constraints={"root": fnopt.fixed()},
        )
        last = np.linalg.matrix_power(np.asarray(step), 4 if parent[-1] else 1)
        np.testing.assert_allclose(found.params["rest"].value[-1], last, atol=1e-5)
        assert len(traced) == count


def test_models_of_a_batch_are_not_stale():
    factor = {}

    def f(t, a):
        return factor["now"] * a * t

    for value in (1.0, 2.0):
        factor["now"] = value
        fit = fnopt.curve_fit_batch(f, T, np.stack([6 * T, 2 * T]), p0=(1.0,))
        np.testing.assert_allclose(fit.params[:, 0], [6 / value, 2 / value], rtol=1e-5)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, functools.partial(jax.jacfwd)])
def test_inside_of_transformations(transform):
    def level(shift):
        return fnopt.least_squares(lambda p: decay(p, T, Y + shift), START).params["level"]

    shifts = jnp.asarray([0.0, 1.0]) if transform is jax.vmap else jnp.float32(1)
    expected = 1.0 if transform not in (jax.jit, jax.vmap) else 0.3 + shifts
    np.testing.assert_allclose(transform(level)(shifts), expected, atol=2e-3)
