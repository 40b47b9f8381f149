import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status


def rosenbrock(p):
    x, y = p["x"], p["y"]
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


START = {"x": -1.2, "y": 1.0}
METHODS = ["lbfgsb", "bfgs", "cg", "newton_cg"]  # gradients alone take far too long


def never_worse(fun, start, end):
    assert float(fun(end.params)) <= float(fun(start)) * (1 + 1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_minimum(method):
    end = fnopt.minimize(rosenbrock, START, method=method)
    assert bool(end.converged), end.message
    np.testing.assert_allclose([end.params["x"], end.params["y"]], [1, 1], atol=5e-3)
    assert float(end.gradient_norm) <= 0.05
    np.testing.assert_allclose(end.value, rosenbrock(end.params), atol=1e-6)


@pytest.mark.parametrize("tx", [fnopt.adam(0.05), fnopt.lbfgs()], ids=["adam", "lbfgs"])
def test_any_optimizer_is_a_method(tx):
    def fun(p):
        return jnp.sum(jnp.cosh(p["a"] - 1)) + jnp.sum(p["b"] ** 2)

    start = {"a": jnp.zeros(2), "b": jnp.asarray(3.0)}
    end = fnopt.minimize(fun, start, method=tx, max_steps=800)
    assert bool(end.converged), end.message
    np.testing.assert_allclose(end.params["a"], [1, 1], atol=1e-2)


def test_a_line_search_of_optax_is_a_method():
    optax = pytest.importorskip("optax")
    end = fnopt.minimize(lambda x: jnp.sum(jnp.cosh(x - 1)), jnp.zeros(2), method=optax.lbfgs())
    assert bool(end.converged), end.message
    np.testing.assert_allclose(end.params, [1, 1], atol=1e-2)


def test_the_best_params_come_back_from_an_optimizer_that_climbs():
    end = fnopt.minimize(lambda x: x**2, 1.0, method=fnopt.sgd(1.5), max_steps=5)
    np.testing.assert_array_equal(end.params, 1.0)
    assert Status(int(end.status)) is Status.MAX_STEPS


def test_an_optimizer_that_runs_away_says_so():
    end = fnopt.minimize(lambda x: x**4, 2.0, method=fnopt.sgd(1.0))
    assert Status(int(end.status)) is Status.NONFINITE_STEP
    np.testing.assert_array_equal(end.params, 2.0)


def quadratic(x):
    A = jnp.asarray([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 3.0]], x.dtype)
    return jnp.sum(x * jnp.sum(A * x, axis=1)) / 2 - jnp.sum(x)


BOUNDS = ([-1.0, 0.0, 0.3], [0.2, jnp.inf, 1.0])


def test_bounds_agree_with_scipy_and_are_reached_exactly(x64):
    optimize = pytest.importorskip("scipy.optimize")
    slope = jax.jit(jax.value_and_grad(quadratic))
    start = np.asarray([0.0, 0.5, 0.5])
    peer = optimize.minimize(
        lambda x: tuple(map(np.asarray, slope(x))),
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(*BOUNDS, strict=True)),
        tol=1e-12,
    )
    for method in ("lbfgsb", "projected_gradient"):
        end = fnopt.minimize(quadratic, jnp.asarray(start), method=method, bounds=BOUNDS)
        assert bool(end.converged), end.message
        np.testing.assert_allclose(end.params, peer.x, atol=2e-5)
        assert float(end.params[0]) == 0.2


def test_equal_bounds_hold_a_param():
    # SciPy's L-BFGS-B takes them too.
    @jax.jit
    def end(lower, upper):
        start = jnp.asarray([0.0, 0.5, 0.5])
        return fnopt.minimize(quadratic, start, bounds=(lower, upper))

    lower, upper = jnp.asarray([-9.0, 0.5, -9.0]), jnp.asarray([9.0, 0.5, 9.0])
    found = end(lower, upper)
    assert bool(found.converged)
    # The minimum over the others, where x[1] = 0.5: 2 x = 1 - 0.25, 3 z = 1 - 0.15.
    np.testing.assert_allclose(found.params, [0.375, 0.5, 0.85 / 3], atol=1e-3)
    assert float(found.params[1]) == 0.5
    start = jnp.asarray([0.0, 0.5, 0.5])  # bounds that are known are checked
    jax.eval_shape(lambda x: fnopt.minimize(quadratic, x, bounds=(lower, upper)).params, start)
    crossed = end(upper, lower)
    assert Status(int(crossed.status)) is Status.INFEASIBLE
    still = end(found.params, found.params)
    assert bool(still.converged)
    np.testing.assert_array_equal(still.params, found.params)


def test_constraints_and_aux():
    def fun(p):
        return jnp.sum((p["a"] - 2) ** 2) + (p["b"] + 1) ** 2 + p["c"] ** 2, {"seen": p["c"]}

    start = {"a": jnp.ones(2), "b": jnp.asarray(0.5), "c": jnp.asarray(4.0)}
    constraints = {"b": fnopt.positive(), "c": fnopt.fixed()}
    end = fnopt.minimize(fun, start, has_aux=True, constraints=constraints)
    np.testing.assert_allclose(end.params["a"], [2, 2], atol=1e-3)
    assert 0 < float(end.params["b"]) < 0.5
    assert float(end.aux["seen"]) == float(end.params["c"]) == 4.0


def test_a_fixed_param_may_be_anything():
    def fun(p):
        order = p["order"].astype(jnp.float32)
        return (p["x"] - order) ** 2 + jnp.sum(jax.random.normal(p["key"], (2,)) ** 2)

    start = {"x": jnp.float32(5), "order": 3, "key": jax.random.key(0)}
    constraints = {"order": fnopt.fixed(), "key": fnopt.fixed()}
    bounds = ({"x": 3.5, "order": None, "key": None}, None)
    end = fnopt.minimize(fun, start, constraints=constraints, bounds=bounds)
    assert bool(end.converged), end.message
    assert (float(end.params["x"]), int(end.params["order"])) == (3.5, 3)
    assert end.params["key"] == start["key"]


def test_a_projection():
    def onto_disk(x):
        return x / jnp.maximum(1.0, jnp.sqrt(jnp.sum(x**2)))

    end = fnopt.minimize(lambda x: jnp.sum((x - 2) ** 2), jnp.zeros(2), projection=onto_disk)
    assert bool(end.converged), end.message
    np.testing.assert_allclose(end.params, np.full(2, 0.5**0.5), atol=1e-3)


def solved(a):
    """The minimum of cosh(x - a) + x^2 / 2."""
    return fnopt.minimize(lambda x, a: jnp.cosh(x - a) + 0.5 * x**2, jnp.zeros(()), args=(a,))


def test_vmap_jit_and_derivatives():
    a = jnp.asarray([0.0, 1.0, 30.0])
    ends = jax.jit(jax.vmap(solved))(a)
    alone = [solved(v) for v in a]
    np.testing.assert_allclose(ends.params, [end.params for end in alone], rtol=1e-3, atol=1e-5)
    assert ends.nfev.tolist() == [int(end.nfev) for end in alone]
    assert len(ends.message) == 3
    x = solved(1.0).params
    expected = np.cosh(x - 1) / (np.cosh(x - 1) + 1)  # by the implicit function theorem
    np.testing.assert_allclose(jax.grad(lambda a: solved(a).params)(1.0), expected, rtol=1e-3)
    np.testing.assert_allclose(jax.grad(lambda a: solved(a).value)(1.0), -np.sinh(x - 1), rtol=1e-3)


def test_a_solution_on_a_bound_follows_it():
    def end(upper):
        return fnopt.minimize(lambda x: jnp.sum((x - 3) ** 2), 0.0, bounds=(None, upper)).params

    np.testing.assert_allclose(jax.jacfwd(end)(jnp.float32(2.0)), 1.0, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-24, 1e20])
def test_units_dont_matter(scale):
    def fun(x, scale):
        return jnp.sum(jnp.cosh(x / scale - 2))

    unit = jnp.float32(scale)
    end = fnopt.minimize(fun, jnp.asarray([1.0, 3.5]) * unit, args=(unit,))
    assert bool(end.converged), end.message
    np.testing.assert_allclose(end.params / np.float32(scale), [2, 2], rtol=2e-3)


# What it must say, and that no params are lost.
HARD = {
    "log of negatives": (lambda x: jnp.sum(x - jnp.log(x)), [0.1, 4.0], (1, 2, 3)),
    "no number at the start": (lambda x: jnp.sum(jnp.log(x)), [-1.0, 2.0], (6,)),
    "no number elsewhere": (lambda x: jnp.where(x[0] < 1, jnp.nan, x[0]), [1.0, 2.0], (7,)),
    "constant": (lambda x: 0 * x[0] + 3, [1.0, 2.0], (3,)),
    "without end": (lambda x: -jnp.sum(x), [1.0, 2.0], (13,)),
    "at the solution": (lambda x: jnp.sum((x - 1) ** 2), [1.0, 1.0], (3,)),
}


def hard(x, which):
    """All of them as one function, so that they share a program."""
    return jax.lax.switch(which, [fun for fun, _, _ in HARD.values()], x)


@pytest.mark.parametrize("name", HARD)
def test_hard_places_have_a_status(name):
    _, start, statuses = HARD[name]
    start, which = jnp.asarray(start), jnp.int32(list(HARD).index(name))
    end = fnopt.minimize(hard, start, args=(which,), method="lbfgsb", max_steps=200)
    assert int(end.status) in statuses, end.message
    assert np.all(np.isfinite(end.params))
    if int(end.status) in (6, 7) or name in ("constant", "at the solution"):
        np.testing.assert_array_equal(end.params, start)
    assert isinstance(str(end), str)


def test_trees_of_all_dtypes():
    params = {
        "half": jnp.ones(2, jnp.bfloat16),
        "z": jnp.asarray(1 + 1j, jnp.complex64),
        "none": jnp.zeros((0,)),
    }

    def fun(p):
        z = p["z"] - (2 - 1j)
        return jnp.sum((p["half"].astype(jnp.float32) - 3) ** 2) + jnp.real(z * jnp.conj(z))

    end = fnopt.minimize(fun, params, method="lbfgsb")
    assert jax.tree.map(jnp.result_type, end.params) == jax.tree.map(jnp.result_type, params)
    np.testing.assert_allclose(end.params["half"].astype(np.float32), [3, 3], rtol=1e-2)
    np.testing.assert_allclose(end.params["z"], 2 - 1j, atol=1e-2)
    never_worse(fun, params, end)


def test_nothing_to_minimise_is_done_at_once():
    end = fnopt.minimize(lambda p: jnp.float32(2.0), {}, method="lbfgsb")
    assert bool(end.converged)
    assert end.params == {}


def test_history_and_callback():
    seen = []
    end = fnopt.minimize(
        rosenbrock, START, history=True, callback=seen.append, max_steps=60, method="lbfgsb"
    )
    jax.effects_barrier()
    steps = int(end.steps)
    assert len(seen) == steps
    costs = np.asarray(end.history.cost)[:steps]
    assert np.all(np.diff(costs) <= 0)
    np.testing.assert_allclose(costs[-1], end.value, atol=1e-9)
    assert np.all(np.isnan(end.history.cost[steps:]))


COMPILED: list[str] = []


def _count(event: str, *_: object, **__: object) -> None:
    if event.endswith("backend_compile_duration"):
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)


def test_new_data_need_no_compilation():
    def end(shift):
        return fnopt.minimize(lambda x: jnp.sum(jnp.cosh(x - shift)), jnp.zeros(2)).params

    for shift in (0.5, 0.75):
        end(np.full(2, shift, np.float32))
    before = len(COMPILED)
    for shift in (1.0, 2.0):
        data = np.full(2, shift, np.float32)
        np.testing.assert_allclose(end(data), data, atol=1e-2)
    assert len(COMPILED) == before


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda f: f("f", 0.0), TypeError, "expected a function"),
        (lambda f: f(lambda x: x, jnp.ones(2)), ValueError, "expected one number"),
        (lambda f: f(lambda x: (x, 1), 0.0), TypeError, "has_aux=True"),
        (lambda f: f(lambda x: x**2, 0.0, method="bgfs"), ValueError, "expected 'auto'"),
        (
            lambda f: f(lambda x: x**2, 0.0, method="bfgs", bounds=(0, 1)),
            ValueError,
            "got bounds with bfgs",
        ),
        (lambda f: f(lambda x: x**2, 2.0, bounds=(0.0, 1.0)), ValueError, "outside its bounds"),
        (lambda f: f(lambda x: x**2, jnp.ones(2, bool)), TypeError, "expected a floating"),
        (lambda f: f(lambda x: x**2, 0.0, max_steps=0), ValueError, "max_steps"),
        (lambda f: f(lambda x: np.exp(x), 0.0), TypeError, "fun calls np.exp; write jnp.exp"),
    ],
)
def test_mistakes_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call(functools.partial(fnopt.minimize))


def _at_the_third(info):
    return int(info.step) >= 3


def _by_exception(info):
    if info.step >= 3:
        raise StopIteration


@pytest.mark.parametrize("callback", [_at_the_third, _by_exception])
def test_a_callback_stops_it(callback):
    end = fnopt.minimize(rosenbrock, START, callback=callback)
    assert int(end.status) == Status.STOPPED
    assert int(end.steps) == 3


def test_a_callback_that_fails_ends_nothing():
    def fails(info):
        raise OSError("disk full")

    with pytest.warns(UserWarning, match="callback: fails raised OSError: disk full. The search"):
        end = fnopt.minimize(rosenbrock, START, callback=fails)
    assert bool(end.converged)


@pytest.mark.parametrize("bounds", [None, (-2.0, 2.0)])
def test_a_function_is_traced_once(bounds):
    traces = []

    def fun(x):
        traces.append(x)
        return jnp.sum((x - 1) ** 2)

    jax.eval_shape(lambda x: fnopt.minimize(fun, x, bounds=bounds), jnp.zeros(3))
    assert len(traces) == 1


def test_a_param_on_its_bound_is_named():
    def fun(p):
        return (p["a"] - 3) ** 2 + jnp.sum((p["b"] + 1) ** 2) + p["n"]

    start = {"a": 0.0, "b": jnp.zeros(2), "n": 5.0}
    sides = [{"a": -1.0, "b": jnp.asarray([0.0, -5.0]), "n": None}, {"a": 1.0, "b": 5.0, "n": None}]
    end = fnopt.minimize(fun, start, bounds=tuple(sides), constraints={"n": fnopt.fixed()})
    assert jax.tree.map(np.ndarray.tolist, jax.tree.map(np.asarray, end.at_bound)) == {
        "a": 1,
        "b": [-1, 0],
        "n": 0,
    }
    lines = str(end).splitlines()
    assert lines[-4:-1] == [
        "  a     1   (at its upper bound)",
        "  b[0]  0   (at its lower bound)",
        "  b[1]  -1",
    ]
