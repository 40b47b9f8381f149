import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

T = np.linspace(0.0, 3.0, 20)


def data():
    rng = np.random.default_rng(0)
    y = 2 * np.exp(-0.7 * T) + 0.3 + 0.1 * rng.standard_normal(20)
    return jnp.asarray(y), jnp.asarray(rng.standard_normal(20))


def model(p):
    return p["a"] * jnp.exp(-p["b"] * T) + p["c"]


START = {"a": 1.0, "b": 1.0, "c": 0.1}
SETTINGS = {
    "plain": lambda s: {},
    "robust": lambda s: {"loss": fnopt.residuals.huber(scale=s), "weights": 1 + s},
    "bounds": lambda s: {"bounds": (s, {"a": 18 * s, "b": None, "c": None})},
    "constraints": lambda s: {"constraints": {"a": fnopt.positive(), "b": fnopt.fixed()}},
}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_derivatives_are_those_of_the_minimum(name, x64):
    y, along = data()

    @jax.jit
    def fit(y, s):
        solution = fnopt.least_squares(lambda p: model(p) - y, START, **SETTINGS[name](s))
        return jnp.stack([*solution.params.values(), solution.cost])

    @jax.jit
    def derivatives(y, s):
        forward = jax.jvp(fit, (y, s), (along, 0.3))[1]
        pulled = jax.vjp(fit, y, s)[1](jnp.asarray([1.0, 2.0, -1.0, 0.5]))
        return forward, pulled

    forward, (by_y, by_s) = derivatives(y, 0.1)
    h = 1e-4
    central = (fit(y + h * along, 0.1 + h * 0.3) - fit(y - h * along, 0.1 - h * 0.3)) / (2 * h)
    np.testing.assert_allclose(forward, central, rtol=2e-4, atol=1e-5)
    pulled = by_y @ along + 0.3 * by_s
    np.testing.assert_allclose(pulled, jnp.asarray([1.0, 2.0, -1.0, 0.5]) @ forward, rtol=1e-9)


def test_closed_form_under_vmap_by_argument_and_twice():
    # The weighted mean: d mean / d y_i = w_i, and nothing beyond.
    w = jnp.asarray([0.5, 0.3, 0.2])

    def fit(y):
        return fnopt.least_squares(lambda p, y: p - y, 0.0, args=(y,), weights=w).params ** 2

    def gradient(y):
        first = jax.grad(fit)(y)
        return first, first

    y = jnp.asarray([[1.0, 2.0, 3.0], [4.0, 0.0, 1.0]])
    second, first = jax.jit(jax.vmap(jax.jacfwd(gradient, has_aux=True)))(y)
    np.testing.assert_allclose(first, 2 * (y @ w)[:, None] * w, rtol=1e-5)
    for H in second:
        np.testing.assert_allclose(H, 2 * w * w[:, None], rtol=1e-5, atol=1e-7)


def test_the_covariance_has_a_derivative():
    x = jnp.asarray([1.0, 2.0, 4.0])
    y = jnp.asarray([1.0, 2.5, 3.0])

    def variance(s):
        fit = fnopt.least_squares(lambda p: (p * x - y) * s, 0.0)
        return fnopt.covariance(fit, absolute_sigma=True)[0, 0]

    value, slope = jax.value_and_grad(variance)(2.0)
    np.testing.assert_allclose(value, 1 / 84, rtol=1e-5)
    np.testing.assert_allclose(slope, -1 / 84, rtol=1e-5)  # of 1 / (21 s^2)


ROWS = np.stack([np.ones(5), [0.0, 1.0, 2.0, 3.0, 5.0]], axis=1)
Y = np.asarray([0.0, 1.5, 1.0, 2.0, np.nan])  # no datum where there is never weight


def test_a_weight_of_zero_has_the_derivative_of_a_small_one(x64):
    @jax.jit
    def fit(w):
        line = fnopt.least_squares(lambda p: ROWS @ p - Y, jnp.zeros(2), weights=w)
        return jnp.append(line.params, line.cost)

    weights = np.asarray([[1.0, 0.0, 2.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.5, 0.0]])
    for w, got in zip(weights, jax.vmap(jax.jacrev(fit))(weights), strict=True):
        H, known = ROWS.T @ (w[:, None] * ROWS), np.nan_to_num(Y)
        r = ROWS @ np.linalg.solve(H, ROWS.T @ (w * known)) - known
        r[4] = 0
        expected = np.vstack([-np.linalg.solve(H, (ROWS * r[:, None]).T), r**2 / 2])
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_a_weight_of_zero_within_a_robust_loss_and_integers_among_the_data(x64):
    def fit(w, c, order):
        def r(p):
            return (ROWS @ p - Y)[order]

        start, loss = jnp.asarray([0.5, 0.5]), fnopt.residuals.cauchy(scale=c)
        return fnopt.least_squares(r, start, weights=w[order], loss=loss).params

    w, along, c = np.asarray([1.0, 0.0, 2.0, 1.0, 0.0]), np.asarray([0.0, 1.0, -2.0, 0.0, 3.0]), 0.8
    derivative = jax.jit(lambda order: jax.jvp(lambda w, c: fit(w, c, order), (w, c), (along, 0.3)))
    x, got = derivative(jnp.asarray([1, 0, 2, 4, 3]))
    r = np.nan_to_num(ROWS @ x - Y)
    z = w * r**2 / c**2
    moved = (along * r + 0.3 * w * r * 2 * z / c) / (1 + z) ** 2
    H = ROWS.T @ ((w * (1 - z) / (1 + z) ** 2)[:, None] * ROWS)
    np.testing.assert_allclose(got, -np.linalg.solve(H, ROWS.T @ moved), rtol=1e-8)


@pytest.mark.parametrize("batched", [False, True])
def test_float32_derivatives_of_a_polynomial_are_the_pseudo_inverse(batched):
    # In float32, the Hessian J^T J of degree 5 has fewer digits than its condition number of 1e7.
    t = np.linspace(0, 1, 30)
    V = np.polynomial.polynomial.polyvander(t, 5)
    y = jnp.asarray(V @ np.linspace(1, 2, 6), jnp.float32)

    def curve(t, *c):
        return sum(c_k * t**k for k, c_k in enumerate(c))

    def single(y):
        start = jnp.ones(6)
        return fnopt.least_squares(lambda c: curve(t, *c) - y, start, max_steps=9).params

    def batch(y):
        return fnopt.curve_fit_batch(curve, t, y[None], (1.0,) * 6).params[0]

    expected = np.linalg.pinv(V)
    along, back = np.sin(9 * t), np.cos(np.arange(6))
    fit = batch if batched else single
    forward = jax.jit(lambda y: jax.jvp(fit, (y,), (jnp.asarray(along, y.dtype),))[1])(y)
    pulled = jax.jit(jax.grad(lambda y: fit(y) @ jnp.asarray(back, y.dtype)))(y)
    # Higham (2002), section 19.3: the backward error of a QR factorization grows like n eps.
    tolerance = 6 * np.finfo(np.float32).eps * np.linalg.cond(V)
    for computed, exact in ((forward, expected @ along), (pulled, expected.T @ back)):
        error = np.linalg.norm(computed - exact) / np.linalg.norm(exact)
        assert error < tolerance


def test_float32_derivatives_leave_flat_directions_alone():
    # Differences of 100 positions: their sum is undetermined, every difference is determined.
    def spread(d):
        return jnp.ptp(fnopt.least_squares(lambda x: x[1:] - x[:-1] - d, jnp.zeros(100)).params)

    slope = jax.jit(jax.grad(spread))(jnp.linspace(1, 2, 99))
    np.testing.assert_allclose(slope, np.ones(99), atol=1e-4)
