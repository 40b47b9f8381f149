"""What every method and every linear algebra must do, in a few compilations each."""

from __future__ import annotations

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from tests.contract.solvers import PROBLEMS, VARIANTS, rosenbrock
from tests.contract.trees import signature

# Where the methods differ: a valley, no full rank, domains that are left, values that are bad.
NAMES = ["rosenbrock", "rank_deficient", "underdetermined", "ignores_a_parameter"]
NAMES += ["nonfinite_start", "nonfinite_on_the_way", "nonfinite_everywhere_else"]
CHOSEN = [problem for problem in PROBLEMS if problem.name in NAMES]


@pytest.fixture(params=VARIANTS, ids=repr)
def solver(request):
    return request.param.make()


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def take_step(solver, params, state, residual_fn):
    updates, state = solver.update(None, state, params, residual_fn=residual_fn)
    return fnopt.apply_updates(params, updates), state


def test_is_a_value_and_keeps_its_types(solver):
    assert fnopt.from_config(json.loads(json.dumps(fnopt.to_config(solver)))) == solver
    assert pickle.loads(pickle.dumps(solver)) == solver
    for dtype in (jnp.float32, jnp.bfloat16):
        params = {"x": jnp.asarray(-1.2, dtype), "y": jnp.asarray(1.0, dtype)}
        state = solver.init(params)
        shapes = jax.eval_shape(lambda p, s: take_step(solver, p, s, rosenbrock), params, state)
        assert signature(shapes) == signature((params, state))


def saturating(p):
    """From afar the linear model overshoots: full steps from x = 2 land ever farther away."""
    return {"x": jnp.arctan(3 * p["x"]), "y": jnp.arctan(p["y"])}


def test_a_refused_step_changes_no_bit_and_none_raises_the_cost(solver):
    params = {"x": jnp.float32(2.0), "y": jnp.float32(-9.0)}
    state, refused = solver.init(params), 0
    step = jax.jit(lambda p, s: take_step(solver, p, s, saturating))
    for _ in range(12):
        before = float(state.cost)
        there, state = step(params, state)
        if int(state.rejections):
            refused += 1
            assert bits(there) == bits(params)
        assert float(state.cost) <= before * (1 + 1e-6)
        params = there
    assert refused


@pytest.mark.parametrize("problem", CHOSEN, ids=repr)
def test_ends_in_the_right_status(solver, problem):
    params = problem.params(jnp.float32)
    solution = fnopt.least_squares(problem.residual_fn, params, solver=solver, max_steps=200)
    assert Status(int(solution.status)) in problem.statuses, solution.message
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(solution.params))
    for name in problem.unchanged:
        assert bits(solution.params[name]) == bits(params[name])
    if problem.cost is not None:
        np.testing.assert_allclose(solution.cost, problem.cost, rtol=1e-5, atol=1e-5)
    if problem.rank is not None and solution.jacobian is not None:
        assert int(solution.rank) == problem.rank
