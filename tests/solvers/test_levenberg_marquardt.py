import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (40, 2)).astype(np.float32)
Y = np.sin(2 * X[:, 0]) * X[:, 1]


def loss(residuals):
    return float(0.5 * np.sum(np.square(residuals)))


def test_a_flax_network_in_five_lines():
    nn = pytest.importorskip("flax.linen")
    model = nn.Sequential([nn.Dense(8), nn.tanh, nn.Dense(1)])
    params = model.init(jax.random.key(0), X)
    residuals = lambda p: model.apply(p, X)[:, 0] - Y  # noqa: E731
    solution = fnopt.least_squares(residuals, params, max_steps=60)
    assert loss(solution.residuals) < 1e-2 * loss(residuals(params))


def test_an_nnx_network_in_five_lines():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    graph, params = nnx.split(model)
    residuals = lambda p: nnx.merge(graph, p)(X)[:, 0] - (X @ np.ones(2, np.float32))  # noqa: E731
    solution = fnopt.least_squares(residuals, params)
    nnx.update(model, solution.params)
    np.testing.assert_allclose(model.kernel[...][:, 0], 1, rtol=1e-4)


def test_an_equinox_network_in_five_lines():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 1, 8, 1, activation=jnp.tanh, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    residuals = lambda p: jax.vmap(eqx.combine(p, static))(X)[:, 0] - Y  # noqa: E731
    solution = fnopt.least_squares(residuals, params, max_steps=60)
    assert loss(solution.residuals) < 1e-2 * loss(residuals(params))


def test_minibatches():
    tx = fnopt.levenberg_marquardt()

    def residuals(p, batch):
        x, y = batch
        return jnp.tanh(x @ p["w"] + p["b"]) @ p["v"] - y

    def step(carry, batch):
        params, state = carry
        updates, state = tx.update(None, state, params, residual_fn=lambda p: residuals(p, batch))
        return (fnopt.apply_updates(params, updates), state), state.cost

    params = {
        "w": RNG.standard_normal((2, 6)).astype(np.float32),
        "b": jnp.zeros(6),
        "v": RNG.standard_normal(6).astype(np.float32) / 3,
    }
    batches = (np.tile(X, (20, 1)).reshape(-1, 10, 2), np.tile(Y, 20).reshape(-1, 10))
    before = loss(residuals(params, (X, Y)))
    (params, state), costs = jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), batches))(params)
    assert int(state.count) == len(costs) == 80
    assert np.all(np.isfinite(costs))
    assert loss(residuals(params, (X, Y))) < 0.2 * before


def test_gradients_are_ignored():
    tx, p = fnopt.levenberg_marquardt(), jnp.asarray([2.0])
    one, _ = tx.update(None, tx.init(p), p, residual_fn=lambda p: p**2 - 2)
    two, _ = tx.update(jnp.asarray([7.0]), tx.init(p), p, residual_fn=lambda p: p**2 - 2)
    np.testing.assert_array_equal(one, two)


def test_says_when_it_has_converged():
    tx, p = fnopt.levenberg_marquardt(), jnp.asarray([2.0])
    state = tx.init(p)
    for _ in range(8):
        updates, state = tx.update(None, state, p, residual_fn=lambda p: p - jnp.float32(1))
        p = fnopt.apply_updates(p, updates)
    assert Status(int(state.status)).converged
    assert state.cost == 0


def test_straight_reverse_steps_need_no_forward_derivative():
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))
    solver = fnopt.levenberg_marquardt(geodesic=False, jacobian="reverse")
    solution = fnopt.least_squares(lambda p: square(p) - 2, jnp.asarray([1.0]), solver=solver)
    np.testing.assert_allclose(solution.params, np.sqrt(2), rtol=1e-6)


def test_scale_is_a_slot():
    tx, params = fnopt.levenberg_marquardt(), {"w": jnp.ones(2), "b": jnp.zeros(())}
    assert fnopt.slot_names(tx, params) == ("scale",)
    assert fnopt.slots(tx.init(params))["scale"]["w"].shape == (2,)


def test_units_do_not_matter():
    t = jnp.linspace(0, 2, 9)
    y = 3 * jnp.exp(-t)
    plain = fnopt.least_squares(lambda p: p[0] * jnp.exp(-p[1] * t) - y, jnp.asarray([1.0, 2.0]))
    milli = fnopt.least_squares(
        lambda p: 1024 * (p[0] * 2.0**-10 * jnp.exp(-p[1] * 2.0**8 * t) - y),
        jnp.asarray([1024.0, 2.0**-7]),
    )
    assert int(plain.steps) == int(milli.steps)
    np.testing.assert_allclose(
        milli.params * jnp.asarray([2.0**-10, 2.0**8]), plain.params, rtol=1e-6
    )


BAD = [
    ({"ftol": -1.0}, ValueError, "ftol = -1.0, expected ftol >= 0"),
    ({"radius": 0}, ValueError, "radius = 0.0, expected radius > 0"),
    ({"jacobian": "sideways"}, ValueError, "jacobian = 'sideways', expected one of"),
    ({"gtol": "tight"}, TypeError, "gtol = 'tight'"),
]


@pytest.mark.parametrize(("options", "error", "text"), BAD)
def test_bad_options_are_refused_by_name(options, error, text):
    with pytest.raises(error, match=text):
        fnopt.levenberg_marquardt(**options)


def test_params_of_another_shape_are_refused_by_name():
    tx = fnopt.levenberg_marquardt()
    with pytest.raises(ValueError, match=r"leaf 'w': params have shape \(3,\)"):
        tx.update(
            None, tx.init({"w": jnp.ones(2)}), {"w": jnp.ones(3)}, residual_fn=lambda p: p["w"]
        )


def test_integer_params_are_refused_by_name():
    with pytest.raises(TypeError, match=r"params: leaf 'w' is int32"):
        fnopt.levenberg_marquardt().init({"w": jnp.arange(3)})
