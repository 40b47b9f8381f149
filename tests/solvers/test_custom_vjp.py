"""Functions that only have a derivative in reverse mode: a `jax.custom_vjp`, as odeint's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.jacobians import forward_from_reverse


@jax.custom_vjp
def decay(x):
    return jnp.exp(-x)


# Its reverse mode calls the function itself, so it has no derivative in forward mode, either.
decay.defvjp(lambda x: (decay(x), x), lambda x, g: (-g * decay(x),))


def plain(x):
    return jnp.exp(-x)


X = jnp.linspace(0.0, 2.0, 9)
Y = 2 * jnp.exp(-0.7 * X) + 0.01 * jnp.sin(9 * X)
START = jnp.ones(2)
BOTH = jnp.stack([Y, 2 * Y])


def model(e):
    return lambda x, a, b: a * e(b * x)


def residuals(e, y=Y):
    return lambda p: model(e)(X, *p) - y


def loss(e, y=Y):
    return lambda p: jnp.sum(residuals(e, y)(p) ** 2)


def of_one(e):
    return lambda p, example: p[0] * e(p[1] * example[0]) - example[1]


def stepped(tx, **kwargs):
    return tx.update(None, tx.init(START), START, **kwargs)[0]


WARNS = {
    "root": lambda e: fnopt.root(lambda x: e(x) - 0.5, START).params,
    "fixed_point": lambda e: fnopt.fixed_point(lambda x: e(x), START).params,
    "root by args": lambda e: jax.grad(
        lambda a: fnopt.root(lambda x, a: e(x) - a, 1.0, args=(a,)).params
    )(0.5),
    "root by a closure": lambda e: jax.jit(
        jax.vmap(jax.grad(lambda a: fnopt.root(lambda x: e(x) - a, 1.0).params))
    )(jnp.asarray([0.4, 0.5])),
    "least_squares": lambda e: fnopt.least_squares(residuals(e), START).params,
    "derivatives of least_squares": lambda e: jax.jacrev(
        lambda y: fnopt.least_squares(residuals(e, y), START, bounds=(0, 3)).params
    )(Y),
    "curve_fit_batch": lambda e: fnopt.curve_fit_batch(
        model(e), X, BOTH, START, fallback=False, bounds=(0, 3), loss="huber"
    )[:2],
    "a failed fit of curve_fit_batch": lambda e: (
        fnopt.curve_fit_batch(model(e), X, BOTH, jnp.asarray([1e3, -30.0]), max_steps=2).params
    ),
    "derivatives of curve_fit_batch": lambda e: jax.jacrev(
        lambda y: [
            a[0, 1] for a in fnopt.curve_fit_batch(model(e), X, y, START, fallback=False)[:2]
        ]
    )(BOTH),
    "by example": lambda e: fnopt.least_squares(of_one(e), START, batch=(X, Y)).params,
    "an optimizer": lambda e: stepped(
        fnopt.levenberg_marquardt(geodesic=False), residual_fn=residuals(e)
    ),
}
SILENT = {
    "an optimizer, by example": lambda e: stepped(
        fnopt.gauss_newton(), residual_fn=of_one(e), batch=(X, Y)
    ),
    "per_example_jacobian": lambda e: fnopt.per_example_jacobian(
        lambda p, example: jnp.stack([of_one(e)(p, example)] * 3)
    )(START, (X, Y)),
    "newton_cg": lambda e: fnopt.minimize(loss(e), START, method="newton_cg").params,
    "derivatives of minimize": lambda e: jax.grad(
        lambda y: fnopt.minimize(loss(e, y), START, gtol=1e-6).params[1]
    )(Y),
    "derivatives in a set": lambda e: jax.grad(
        lambda y: fnopt.minimize(loss(e, y), START, projection=lambda p: jnp.clip(p, 0, 3)).params[
            1
        ]
    )(Y),
    "predict_band": lambda e: (
        fnopt.predict_band(
            lambda p: model(e)(X, *p), fnopt.least_squares(residuals(plain), START)
        ).lower
    ),
}


@pytest.mark.parametrize("name", [*WARNS, *SILENT])
def test_gives_what_the_plain_function_does(name):
    call = (WARNS | SILENT)[name]
    expected = call(plain)
    if name in WARNS:
        with pytest.warns(UserWarning, match="contains a custom_vjp") as seen:
            found = call(decay)
        assert len(seen) == 1
    else:
        found = call(decay)
    rtol = 2e-3 if "derivatives" in name else 1e-3
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-4), found, expected
    )


def test_a_solver_that_says_it_by_itself_does_not_warn(recwarn):
    solver = fnopt.levenberg_marquardt(jacobian="reverse", geodesic=False)
    fnopt.least_squares(residuals(decay), START, solver=solver)
    fnopt.root(lambda x: decay(x) - 0.5, START, solver=solver)
    assert not recwarn.list


def test_products_without_a_jacobian_are_refused():
    solver = fnopt.levenberg_marquardt(linear_solver="cg")
    with pytest.raises(TypeError, match=r"contains a custom_vjp.*linear_solver = 'cg'"):
        fnopt.least_squares(residuals(decay), START, solver=solver)


def test_forward_from_reverse_is_the_derivative_by_all_arguments():
    def f(e, x, tree):
        return tree["scale"] * e(x) + tree["n"] * x[0]

    x, tree = jnp.asarray([0.1, 0.5, 2.0]), {"scale": jnp.asarray(3.0), "n": jnp.asarray(2)}
    made = forward_from_reverse(lambda x, tree: f(decay, x, tree))
    np.testing.assert_allclose(made(x, tree), f(plain, x, tree), rtol=1e-6)
    np.testing.assert_allclose(
        jax.jacfwd(made)(x, tree), jax.jacfwd(lambda x: f(plain, x, tree))(x), rtol=1e-6
    )
    by_scale = jax.jacfwd(lambda scale: made(x, tree | {"scale": scale}))(tree["scale"])
    np.testing.assert_allclose(by_scale, plain(x), rtol=1e-6)
    # ... and its reverse mode is still there, under jit and vmap too
    rows = jax.jit(jax.vmap(jax.jacrev(made), (0, None)))(jnp.stack([x, 2 * x]), tree)
    np.testing.assert_allclose(rows[1], jax.jacfwd(lambda x: f(plain, x, tree))(2 * x), rtol=1e-6)
