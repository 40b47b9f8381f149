"""Fits with a Jacobian that the user brings, against those by differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg
from jax.experimental.sparse import BCOO

import fnopt
from fnopt import Status
from fnopt.residuals import without_operators
from fnopt.solvers import dogleg, gauss_newton
from fnopt.solvers.problem._problem import flatten_problem

T = np.linspace(0.1, 3.0, 12)
Y = 2 * np.exp(-0.7 * T) + 0.3 + 0.02 * np.cos(9 * T)
START = {"a": 1.5, "b": 1.0, "c": 0.2}
COVARIANCE = 0.04 * (np.eye(12) + 0.5 * np.exp(-np.abs(np.subtract.outer(T, T))))


def residuals(p, t):
    return p["a"] * jnp.exp(-p["b"] * t) + p["c"] - jnp.asarray(Y, t.dtype)


def both(p, t):
    return [residuals(p, t), jax.lax.complex(p["a"] * t, p["b"] * p["c"] - p["d"] * t)]


SETTINGS = {
    "matrix": {"sigma": [COVARIANCE, None], "loss": "cauchy"},
    "weights": {
        "weights": [jnp.arange(12.0), 2.0],
        "loss": [fnopt.residuals.huber(0.1), None],
        "constraints": {
            "a": fnopt.positive(),
            "b": fnopt.interval(0.1, 4.0),
            "c": fnopt.tied(lambda p: p["a"] / 5),
            "d": fnopt.fixed(),
        },
    },
}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_it_goes_through_all_that_is_done_to_params_and_residuals(name, x64):
    start = START | {"d": 3.0}
    setting = flatten_problem(
        both, start, (jnp.asarray(T),), jac=jax.jacfwd(both), **SETTINGS[name]
    )
    model, x = setting.problem.model, setting.x + 0.1
    v, w = jnp.arange(1.0, x.size + 1), jnp.cos(jnp.arange(36.0))

    @jax.jit
    def pairs(x):
        given, J = model.derivative, model.derivative.at(x)
        expected = jax.jacfwd(model.r)(x)
        return {
            "matrix": (given.matrix(J), expected),
            "push": (given.push(J, v), expected @ v),
            "pull": (given.pull(J, w), w @ expected),
        }

    for got, want in pairs(x).values():
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)


def opaque(p):
    """Residuals that JAX can't look into."""
    shape = jax.ShapeDtypeStruct((12,), jnp.float32)

    def on_host(a, b, c):
        return np.asarray(a * np.exp(-b * T) + c - Y, np.float32)

    return jax.pure_callback(on_host, shape, p["a"], p["b"], p["c"])


def by_hand(p):
    t = jnp.asarray(T, jnp.result_type(p["b"]))
    e = jnp.exp(-p["b"] * t)
    return {"a": e, "b": -p["a"] * t * e, "c": jnp.ones_like(t)}


STRAIGHT = fnopt.levenberg_marquardt(geodesic=False)


def test_residuals_that_cannot_be_differentiated():
    solver = gauss_newton(linear_solver="cholesky")
    solution = fnopt.least_squares(opaque, START, jac=by_hand, solver=solver, loss="huber")
    assert bool(solution.converged), solution.message
    optimize = pytest.importorskip("scipy.optimize")
    want, _ = optimize.curve_fit(lambda t, a, b, c: a * np.exp(-b * t) + c, T, Y, [1.5, 1, 0.2])
    np.testing.assert_allclose(list(solution.params.values()), want, rtol=2e-3)


def test_within_bounds_and_nothing_is_evaluated_twice(x64):
    calls = []

    def counted(p):
        def on_host(a, b, c):
            calls.append(a)
            return np.asarray(a * np.exp(-b * T) + c - Y, np.float64)

        shape = jax.ShapeDtypeStruct((12,), jnp.float64)
        return jax.pure_callback(on_host, shape, p["a"], p["b"], p["c"])

    solution = fnopt.least_squares(
        counted,
        START,
        jac=by_hand,
        solver=STRAIGHT,
        loss="soft_l1",
        bounds=(0.0, {"a": 1.8, "b": 3, "c": 1}),
    )
    assert bool(solution.converged)
    assert float(solution.params["a"]) == 1.8
    assert int(solution.rank) == 3
    assert len(calls) <= int(solution.nfev) + 1


def test_in_the_update_pair():
    tx = fnopt.chain(fnopt.levenberg_marquardt(geodesic=False))
    params = {name: jnp.float32(value) for name, value in START.items()}
    state = tx.init(params)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(None, state, params, residual_fn=opaque, jac=by_hand)
        return fnopt.apply_updates(params, updates), state

    for _ in range(15):
        params, state = step(params, state)
    assert Status(int(state[0].status)).converged
    np.testing.assert_allclose(jnp.linalg.norm(opaque(params)), 0.0487, rtol=0.05)


def test_the_solution_has_derivatives(x64):
    t, y = jnp.asarray(T), jnp.asarray(Y)

    @jax.jit
    @jax.value_and_grad
    def fit(y):
        def r(p, y):
            return p["a"] * jnp.exp(-p["b"] * t) + p["c"] - y

        options = {"sigma": 0.1 + y[:1] ** 2, "constraints": {"a": fnopt.positive()}}
        solution = fnopt.least_squares(r, START, args=(y,), jac=jax.jacfwd(r), **options)
        return solution.params["b"]

    along = jnp.cos(3 * t)
    ends = [fit(y + h * along)[0] for h in (1e-4, -1e-4)]
    np.testing.assert_allclose(fit(y)[1] @ along, (ends[0] - ends[1]) / 2e-4, rtol=1e-5)


A = np.asarray([[1.0, 2.0, 0.0, -1.0], [0.5, -1.0, 0.0, 2.0]], np.float32)  # wide
METHODS = {
    "dogleg": dogleg(linear_solver="cholesky"),
    "nielsen": fnopt.levenberg_marquardt(damping="nielsen", geodesic=False),
}


@pytest.mark.parametrize("name", list(METHODS))
def test_on_the_wide_side_with_problems_of_all_kinds(name):
    def residuals(p, scale, b):
        return (scale * A) @ jnp.sqrt(p) - b

    def jac(p, scale, b):
        return scale * A / (2 * jnp.sqrt(p))

    @jax.jit
    @jax.vmap
    def fit(p, scale, b):
        return fnopt.least_squares(
            residuals, p, args=(scale, b), jac=jac, solver=METHODS[name], max_steps=200
        )

    # Solvable, no effect at all, rows that depend on each other, NaN data, not finite at the start.
    starts = jnp.ones((5, 4)).at[4].set(-1.0)
    scale = jnp.ones((5, 2, 1)).at[1].set(0).at[2, 1].set(0)
    b = jnp.asarray([[2.0, 1.0], [1.0, 1.0], [2.0, 0.0], [jnp.nan, 1.0], [2.0, 1.0]])
    end = fit(starts, scale, b)
    bad = Status.NONFINITE_START.message
    assert end.converged.tolist() == [True, False, True, False, False]
    assert end.message[1] == Status.ILL_POSED.message
    assert end.message[3:] == [bad, bad]
    assert end.rank[:3].tolist() == [2, 0, 1]
    np.testing.assert_allclose(end.cost[:3], [0, 1, 0], atol=1e-6)
    np.testing.assert_array_equal(
        end.params[jnp.asarray([1, 3, 4])], starts[jnp.asarray([1, 3, 4])]
    )
    np.testing.assert_array_equal(end.params[:, 2], starts[:, 2])  # the one that has no effect


def test_a_shape_that_does_not_fit_is_named():
    with pytest.raises(
        ValueError, match=r"respect to leaf 'b' of the params has shape \(3,\), expected"
    ):
        fnopt.least_squares(
            residuals,
            START,
            args=(jnp.asarray(T, "f4"),),
            jac=lambda p, t: p | {"a": t, "b": t[:3]},
        )


def chain(x):
    return x[1:] - x[:-1] ** 2 - 0.1


class Products:
    """An operator of one's own: nothing but products."""

    def __init__(self, x):
        self.mv = lambda v: jax.jvp(chain, (x,), (v,))[1]


def test_an_operator_as_blocks_of_a_matrix():
    t = jnp.asarray(T, jnp.float32)
    found = without_operators(fnopt.jacobian(residuals, form="operator"))(START, t)
    exact = jax.jacobian(residuals)(START, t)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, exact)


@pytest.mark.parametrize("jac", [Products, lambda x: BCOO.fromdense(jax.jacobian(chain)(x), nse=6)])
def test_the_jacobian_may_be_an_operator_or_sparse(jac):
    end = fnopt.least_squares(chain, jnp.ones(4), jac=jac)
    assert bool(end.converged), end.message
    assert float(end.cost) < 1e-10


MATRIX = scipy.sparse.coo_array(np.eye(6, 4) + np.eye(6, 4, -2))


@pytest.mark.parametrize("form", [scipy.sparse.csr_array, scipy.sparse.linalg.aslinearoperator])
def test_the_constant_jacobian_may_be_one_of_scipys(form):
    A, b = MATRIX.toarray(), np.arange(6.0)
    end = jax.jit(
        lambda x: fnopt.least_squares(
            lambda x: jnp.asarray(A) @ x - b, x, jac=lambda x: form(MATRIX)
        )
    )(jnp.ones(4))
    np.testing.assert_allclose(end.params, np.linalg.lstsq(A, b)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("constraints", [None, {"scale": fnopt.fixed()}])
def test_a_sparse_jacobian_of_another_function_is_refused(constraints):
    start = {"x": jnp.zeros(4), "scale": jnp.float32(2)}
    jac = fnopt.sparse_jacobian(lambda p: p["x"][:3] * p["scale"])
    with pytest.raises(ValueError, match=r"sparse Jacobian of shape \(3, .*expected \(4, "):
        fnopt.least_squares(lambda p: p["x"] * p["scale"], start, jac=jac, constraints=constraints)
