"""Normal equations added up chunk by chunk: the same as from the whole Jacobian, in less memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.solvers import gauss_newton
from fnopt.solvers.problem._problem import flatten_problem

M, H = 1500, 8
T = np.linspace(-1.0, 1.0, M)
PARAMS = {
    "first": np.linspace(-2.0, 2.0, 2 * H).reshape(2, H),
    "second": np.cos(np.arange(2.0 * H * H)).reshape(2, H, H),
    "scale": np.linspace(0.5, 1.0, H),
}
BATCH = (T, np.sin(3 * T) + 0.1 * np.cos(50 * T))
SETTINGS = {
    "sigma and constraints": {
        "sigma": 0.5 + T**2,
        "constraints": {"scale": fnopt.positive(), "first": fnopt.fixed()},
    },
    "weights and a loss": {
        "weights": np.where(T > 0.9, 0.0, 1 + T**2),
        "loss": fnopt.residuals.soft_l1(scale=0.3),
    },
}


def example(p, t, y):
    hidden = jnp.tanh(p["first"][0] * t + p["first"][1])
    for matrix in p["second"]:
        hidden = jnp.tanh(hidden @ matrix)
    return hidden @ p["scale"] - y


FN = jax.vmap(example, (None, 0, 0))


def temporary_bytes(compiled):
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", list(SETTINGS))
def test_whatever_is_done_to_rows_and_columns(name, x64):
    def evaluation(chunk_size):
        jac = fnopt.per_example_jacobian(example, chunk_size=chunk_size)
        solver = fnopt.levenberg_marquardt(linear_solver="cholesky")

        @jax.jit
        def evaluate(params, batch):
            setting = flatten_problem(FN, params, batch, jac=jac, **SETTINGS[name])
            problem, x = setting.problem, setting.x
            return solver.model(problem.model).evaluate(x)

        return evaluate.lower(PARAMS, BATCH).compile()

    chunked, whole = evaluation(32), evaluation(None)
    expected = whole(PARAMS, BATCH)
    same = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10)
    jax.tree.map(same, chunked(PARAMS, BATCH), expected)
    jacobian_bytes = 8 * M * expected.x.size
    assert temporary_bytes(chunked) < 0.5 * jacobian_bytes < temporary_bytes(whole)


def test_a_whole_fit_in_less_memory_than_a_jacobian():
    jac = fnopt.per_example_jacobian(example, chunk_size=32)
    options = SETTINGS["weights and a loss"] | {"constraints": {"scale": fnopt.positive()}}

    @jax.jit
    def fit(params, batch):
        solver = gauss_newton(linear_solver="cholesky")
        return fnopt.least_squares(
            FN, params, args=batch, jac=jac, solver=solver, max_steps=9, **options
        )

    single = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (PARAMS, BATCH))
    compiled = fit.lower(*single).compile()
    assert temporary_bytes(compiled) < 4 * M * sum(np.size(p) for p in PARAMS.values())
    assert jax.eval_shape(fit, *single).jacobian is None
