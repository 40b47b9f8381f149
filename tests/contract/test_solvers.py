"""What every least-squares solver must do, whatever its method."""

from __future__ import annotations

import functools
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from tests.contract.solvers import CONVERGED, PROBLEMS, SOLVERS, rosenbrock
from tests.contract.trees import signature

DTYPES = [jnp.float32, jnp.float64]
TOLERANCE = {jnp.float32: 1e-5, jnp.float64: 1e-12}


@pytest.fixture(params=SOLVERS, ids=repr)
def solver(request):
    return request.param.make()


@pytest.fixture(params=DTYPES, ids=["f32", "f64"])
def dtype(request):
    with jax.enable_x64(request.param == jnp.float64):
        yield request.param


# What another precision changes: tolerances, ranks, when a step is small. Bad values are as bad.
IN_FLOAT64 = ("rosenbrock", "large_residual", "rank_deficient", "underdetermined")
ENDS = [
    pytest.param(problem, dtype, id=f"{problem!r}-{name}")
    for problem in PROBLEMS
    for name, dtype in zip(("f32", "f64"), DTYPES, strict=True)
    if dtype == jnp.float32 or problem.name in IN_FLOAT64
]


def start(dtype=jnp.float32):
    return {"x": jnp.asarray(-1.2, dtype), "y": jnp.asarray(1.0, dtype)}


def take_step(solver, params, state):
    updates, state = solver.update(None, state, params, residual_fn=rosenbrock)
    return fnopt.apply_updates(params, updates), state


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_init_returns_strong_typed_arrays_only(solver, dtype):
    for leaf in jax.tree.leaves(solver.init(start(dtype))):
        assert isinstance(leaf, jax.Array)
        assert not leaf.weak_type


def test_update_keeps_the_types_of_state_and_params(solver, dtype):
    params, state = start(dtype), solver.init(start(dtype))
    step = functools.partial(take_step, solver)
    shapes = jax.eval_shape(step, params, state)
    assert signature(shapes) == signature((params, state))


def test_jit_equals_eager(solver):
    eager = jitted = (start(), solver.init(start()))
    step = jax.jit(functools.partial(take_step, solver))
    for _ in range(2):
        eager, jitted = take_step(solver, *eager), step(*jitted)
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(jitted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5)


def five_steps(solver, params):
    def body(carry, _):
        return take_step(solver, *carry), None

    return jax.lax.scan(body, (params, solver.init(params)), length=5)[0]


def test_vmap_over_params_equals_a_loop(solver, dtype):
    xs = jnp.asarray([-1.2, 0.5, 3.0], dtype)
    batch = jax.jit(jax.vmap(lambda x: five_steps(solver, {**start(dtype), "x": x})))(xs)
    one = jax.jit(lambda x: five_steps(solver, {**start(dtype), "x": x}))
    for i, x in enumerate(xs):
        mine, theirs = jax.tree.map(lambda leaf, i=i: leaf[i], batch), one(x)
        for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=20 * TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("case", SOLVERS, ids=repr)
def test_vmap_over_solvers_equals_a_loop(case):
    radii = [0.1, 0.6, 2.0]
    stack = jax.tree.map(lambda *x: jnp.asarray(x), *[case.make(radius=r) for r in radii])
    batch, _ = jax.jit(jax.vmap(five_steps, in_axes=(0, None)))(stack, start())
    traces = 0

    @jax.jit
    def one(solver):
        nonlocal traces
        traces += 1
        return five_steps(solver, start())[0]["x"]

    for i, r in enumerate(radii):
        np.testing.assert_allclose(batch["x"][i], one(case.make(radius=r)), rtol=1e-4)
    assert traces == 1  # numbers are leaves: other values need no other trace


def test_one_trace_for_five_steps(solver):
    traces = 0

    @jax.jit
    def step(params, state):
        nonlocal traces
        traces += 1
        return take_step(solver, params, state)

    carry = (start(), solver.init(start()))
    for _ in range(5):
        carry = step(*carry)
    assert traces == 1
    assert int(carry[1].count) == 5


def test_inputs_are_not_modified(solver):
    params = start()
    state = solver.init(params)
    before = bits((params, state))
    take_step(solver, params, state)
    fnopt.least_squares(rosenbrock, params, solver=solver)
    assert bits((params, state)) == before


def saturating(p):
    """From afar the linear model overshoots: full steps from x = 2 land ever farther away."""
    return {"x": jnp.arctan(3 * p["x"]), "y": jnp.arctan(p["y"])}


def saturating_cost(params):
    """Its cost in float64, by NumPy."""
    x, y = (np.float64(params[k]) for k in "xy")
    return 0.5 * (np.arctan(3 * x) ** 2 + np.arctan(y) ** 2)


@pytest.mark.parametrize("case", SOLVERS, ids=repr)
def test_a_refused_step_changes_no_bit_and_none_raises_the_cost(case, dtype):
    solver = case.make(radius=1e4)
    params = {"x": jnp.asarray(2.0, dtype), "y": jnp.asarray(-9.0, dtype)}
    state = solver.init(params)

    @jax.jit
    def step(params, state):
        updates, state = solver.update(None, state, params, residual_fn=saturating)
        return fnopt.apply_updates(params, updates), state

    refused = 0
    for _ in range(12):
        there, state = step(params, state)
        if int(state.rejections):
            refused += 1
            assert bits(there) == bits(params)
        rounding = 8 * float(jnp.finfo(dtype).eps)
        assert saturating_cost(there) <= saturating_cost(params) * (1 + rounding)
        params = there
    assert refused


def test_minus_zero_survives_a_refused_step(solver):
    params = {"x": jnp.asarray([-0.0, 0.0, 1.0], jnp.float32)}
    updates, state = solver.update(
        None, solver.init(params), params, residual_fn=lambda p: jnp.sqrt(p["x"] - 2)
    )
    assert bits(fnopt.apply_updates(params, updates)) == bits(params)
    assert Status(int(state.status)) is Status.NONFINITE_START


@pytest.mark.parametrize(("problem", "dtype"), ENDS, indirect=["dtype"])
def test_ends_in_the_right_status(solver, problem, dtype):
    params = problem.params(dtype)
    solution = fnopt.least_squares(
        problem.residual_fn, params, solver=solver, max_steps=200, history=True
    )
    assert Status(int(solution.status)) in problem.statuses, solution.message
    assert solution.message.startswith(Status(int(solution.status)).message)
    assert signature(solution.params) == signature(params)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(solution.params))
    for name in problem.unchanged:
        assert bits(solution.params[name]) == bits(params[name])
    if problem.cost is not None:
        np.testing.assert_allclose(
            solution.cost, problem.cost, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )
    if problem.rank is not None:
        assert int(solution.rank) == problem.rank
    check_history(solution, float(jnp.finfo(dtype).eps))


def check_history(solution, eps):
    steps = int(solution.steps)
    cost, accepted = solution.history.cost[:steps], solution.history.accepted[:steps]
    assert np.all(np.diff(cost) <= 8 * eps * np.abs(cost[:-1]))
    assert np.all(np.diff(cost)[~accepted[1:]] == 0)
    assert not np.any(solution.history.accepted[steps:])
    assert np.all(np.isnan(solution.history.cost[steps:]))
    if steps and not np.isnan(cost[-1]):
        assert cost[-1] == solution.cost
    assert int(solution.nfev) == steps + 1
    # A refused step costs no Jacobian, except where it was refused for its Jacobian; a claim of
    # convergence costs up to eight, which look for a saddle.
    assert int(solution.njev) <= int(solution.nfev) + 8
    assert int(solution.njev) >= 1 + int(np.sum(accepted))


def test_a_bad_batch_leaves_the_search_as_it_was(solver):
    params, state = start(), solver.init(start())
    params, state = take_step(solver, params, state)
    updates, after = solver.update(
        None, state, params, residual_fn=lambda p: p["x"] * jnp.asarray([1.0, jnp.nan])
    )
    assert bits(fnopt.apply_updates(params, updates)) == bits(params)
    assert bits((after.radius, after.scale)) == bits((state.radius, state.scale))
    assert Status(int(after.status)) is Status.NONFINITE_START


def test_stops_at_max_steps(solver):
    solution = fnopt.least_squares(rosenbrock, start(), solver=solver, max_steps=2)
    assert Status(int(solution.status)) is Status.MAX_STEPS
    assert int(solution.steps) == 2


def test_chains(solver):
    half = fnopt.chain(solver, fnopt.scale(0.5))
    updates, _ = half.update(None, half.init(start()), start(), residual_fn=rosenbrock)
    whole, _ = solver.update(None, solver.init(start()), start(), residual_fn=rosenbrock)
    np.testing.assert_allclose(updates["x"], 0.5 * whole["x"], rtol=1e-6)


def test_needs_residuals_and_params_by_name(solver):
    state = solver.init(start())
    with pytest.raises(TypeError, match=r"needs the extra argument 'residual_fn'"):
        solver.update(None, state, start())
    with pytest.raises(ValueError, match=r"needs the params"):
        solver.update(None, state, residual_fn=rosenbrock)


def test_is_a_value(solver):
    assert pickle.loads(pickle.dumps(solver)) == solver
    assert fnopt.from_config(json.loads(json.dumps(fnopt.to_config(solver)))) == solver
    assert hash(solver) == hash(pickle.loads(pickle.dumps(solver)))
    assert f"{type(solver).__name__}(" in repr(solver)


def test_a_batch_of_starts_says_how_each_ended(solver):
    xs = jnp.asarray([-1.2, jnp.inf, 2.0, jnp.nan], jnp.float32)
    solution = jax.jit(
        jax.vmap(lambda x: fnopt.least_squares(rosenbrock, {**start(), "x": x}, solver=solver))
    )(xs)
    statuses = [Status(int(s)) for s in solution.status]
    assert statuses[1] is statuses[3] is Status.NONFINITE_START
    assert bits(solution.params["x"][3]) == bits(xs[3])  # left alone
    assert bits(solution.params["y"][3]) == bits(start()["y"])
    assert {statuses[0], statuses[2]} <= CONVERGED
    assert solution.message == [s.message for s in statuses]
    np.testing.assert_allclose(solution.params["x"][np.asarray([0, 2])], 1.0, rtol=1e-5)
