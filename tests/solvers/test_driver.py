import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status

T = np.linspace(0.0, 3.0, 12, dtype=np.float32)
Y = 2.0 * np.exp(-0.7 * T) + 0.3


def decay(p, t, y):
    return p["scale"] * jnp.exp(-p["rate"] * t) + p["level"] - y


START = {"scale": 1.0, "rate": 1.0, "level": 0.0}


def check(solution):
    assert bool(solution.converged), solution.message
    got = [float(solution.params[k]) for k in ("scale", "rate", "level")]
    np.testing.assert_allclose(got, [2, 0.7, 0.3], rtol=1e-4)


@pytest.mark.parametrize("loss", [None, "huber"])
def test_one_function_whose_data_change_between_calls(loss):
    data = {}

    def residuals(p):
        return p - data["y"]

    for y in ([1.0, 2.0], [3.0, 4.0], [3.0, 4.0, 5.0]):
        data["y"] = np.asarray(y, np.float32)
        fit = fnopt.least_squares(residuals, 0.0, loss=loss)
        assert fit.residuals.shape == (len(y),)
        np.testing.assert_allclose(fit.params, np.mean(y), rtol=1e-4)


def test_several_functions_and_arguments():
    def early(p, t, y):
        return decay(p, t[:6], y[:6])

    def late(p, t, y):
        return {"late": decay(p, t[6:], y[6:])}

    solution = fnopt.least_squares({"a": early, "b": late}, START, args=(T, Y))
    check(solution)
    assert solution.residuals["b"]["late"].shape == (6,)
    assert solution.jacobian.shape == (12, 3)


def test_a_callback_sees_every_step_and_history_agrees():
    seen = []
    solution = fnopt.least_squares(
        decay, START, args=(T, Y), history=True, callback=seen.append, max_steps=50
    )
    jax.effects_barrier()
    check(solution)
    steps = int(solution.steps)
    seen.sort(key=lambda info: int(info.step))
    assert [int(info.step) for info in seen] == list(range(1, steps + 1))
    for field in ("cost", "gradient_norm", "radius", "accepted"):
        got = [getattr(info, field) for info in seen]
        np.testing.assert_array_equal(got, getattr(solution.history, field)[:steps])
    np.testing.assert_array_equal(seen[-1].params["rate"], solution.params["rate"])
    last = str(seen[-1])
    assert last.startswith(f"step {steps:4d}  cost ")
    assert last.endswith("accepted" if seen[-1].accepted else "rejected")
    assert f"{float(solution.history.radius[steps - 1]):.3g}" in last


def test_without_steps_the_start_is_evaluated():
    end = fnopt.least_squares(decay, START, args=(T, Y), max_steps=0, history=True)
    assert Status(int(end.status)) == Status.MAX_STEPS
    r = decay(START, T, Y)
    np.testing.assert_allclose(end.residuals, r, rtol=1e-5)
    np.testing.assert_allclose(end.cost, np.sum(r**2) / 2, rtol=1e-5)
    assert (int(end.nfev), int(end.steps), int(end.rank)) == (1, 0, 3)
    assert end.history.cost.shape == (0,)


@pytest.mark.parametrize("size", [1.0, 1e-24])
def test_nfev_counts_every_evaluation(size):
    # Squares of 1e-24 underflow in float32, so the fit evaluates the guess again at another scale.
    calls = []

    def residuals(p):
        jax.debug.callback(lambda: calls.append(1))
        return p[0] * jnp.exp(-p[1] * T) - np.float32(size) * Y

    solver = fnopt.levenberg_marquardt(geodesic=False)
    end = fnopt.least_squares(residuals, jnp.asarray([size, 1.0]), solver=solver)
    jax.effects_barrier()
    assert int(end.nfev) == len(calls)


def test_compiles_once_inside_a_jitted_function():
    traces = 0

    @jax.jit
    def fit(params, y):
        nonlocal traces
        traces += 1
        return fnopt.least_squares(decay, params, args=(T, y))

    check(fit(START, Y))
    doubled = fit(START, 2 * Y)
    np.testing.assert_allclose(doubled.params["level"], 0.6, rtol=1e-4)
    assert traces == 1


def test_more_params_than_data_make_no_square_of_their_number():
    n = 2000
    W = np.random.default_rng(0).standard_normal((5, n)).astype(np.float32) / 40

    def solve(w):
        return fnopt.least_squares(lambda w: jnp.tanh(W @ w) - 0.5, w)

    compiled = jax.jit(solve).lower(jnp.zeros(n)).compile()
    assert f"{n},{n}]" not in compiled.as_text()
    solution = compiled(jnp.zeros(n))
    assert bool(solution.converged)
    assert int(solution.rank) == 5
    np.testing.assert_allclose(np.tanh(W @ solution.params), 0.5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_params_end_near_the_solution(dtype):
    solution = fnopt.least_squares(lambda p: 3 * p - 1, jnp.zeros(2, dtype))
    assert solution.params.dtype == dtype
    assert bool(solution.converged)
    np.testing.assert_allclose(solution.params.astype(jnp.float32), 1 / 3, rtol=4e-3)


def test_prints_a_report():
    text = str(fnopt.least_squares(decay, START, args=(T, Y + 0.01 * np.cos(9 * T))))
    assert text.startswith("least squares: converged")
    assert "half the sum of 12 squares" in text
    for name in START:
        assert f"\n  {name}" in text
    assert text.count("±") == 3


def test_says_what_the_data_do_not_determine():
    text = str(
        fnopt.least_squares(lambda p: (p["a"] + p["b"]) * jnp.arange(3.0) - 1, {"a": 1.0, "b": 1.0})
    )
    assert "rank 1 of 2: the data don't determine a, b" in text


def test_prints_a_batch():
    starts = jnp.asarray([1.0, -1.0, 2.0])
    solution = jax.vmap(lambda x: fnopt.least_squares(jnp.log, x))(starts)
    text = str(solution)
    assert text.startswith("least squares: 3 problems")
    assert f"1  {Status.NONFINITE_START.message}" in text


BAD = [
    ({"max_steps": -1}, ValueError, "max_steps is -1, expected at least 0"),
    ({"max_steps": 2.5}, TypeError, "max_steps is 2.5"),
    ({"solver": fnopt.adam(1e-3)}, TypeError, "expected a least-squares solver such as"),
    ({"solver": fnopt.levenberg_marquardt}, TypeError, "Pass an instance of the class"),
]


@pytest.mark.parametrize(
    ("call", "name"), [(fnopt.least_squares, "residual_fn"), (fnopt.minimize, "fun")]
)
def test_swapped_arguments_are_named(call, name):
    with pytest.raises(TypeError, match=f"{name} is .*, expected a function of the params"):
        call(jnp.ones(2), lambda p: p)


@pytest.mark.parametrize(("options", "error", "text"), BAD)
def test_bad_options_are_refused_by_name(options, error, text):
    with pytest.raises(error, match=text):
        fnopt.least_squares(decay, START, args=(T, Y), **options)
