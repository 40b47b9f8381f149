"""The nonlinear regression problems of NIST, with default settings.

Goals: float64, all 54 (27 data sets, 2 starts) to 6 digits in 1,600 evaluations of the residuals;
float32, 3 digits wherever any solver gets them. `python -m benchmarks nist` runs all of them in
both precisions, and the peers.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from benchmarks.problems import nist
from fnopt.solvers import dogleg, gauss_newton

pytestmark = pytest.mark.skipif(nist.folder() is None, reason=nist.WHERE)

# Those on which other float32 solvers lose the digits: with normal equations, or straight steps.
IN_FLOAT32 = ("MGH10", "Misra1a", "Thurber")


@functools.partial(jax.jit, static_argnums=0)
def fit(model, start, x, y):
    # Data sets with the same model and size share a compilation.
    solution = fnopt.least_squares(lambda b: model(b, x) - y, start)
    return solution, fnopt.standard_errors(solution)


def fits(name, dtype):
    """Both starts of a data set: digits, solution and standard errors."""
    problem = nist.load(name)
    x, y = jnp.asarray(problem.x, dtype), jnp.asarray(problem.y, dtype)
    for start in problem.starts:
        solution, errors = fit(problem.model, jnp.asarray(start, dtype), x, y)
        yield problem, nist.log_relative_error(problem, solution.params), solution, errors


@pytest.mark.parametrize("name", ["Misra1a", "Thurber", "Nelson"])
def test_the_reader_knows_the_model(name):
    # At the certified params the sum of squares is the certified one.
    problem = nist.load(name)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        r = problem.model(jnp.asarray(problem.certified), jnp.asarray(problem.x)) - problem.y
        np.testing.assert_allclose(r @ r, problem.residual_sum_of_squares, rtol=1e-8)


def test_float64_solves_all(x64):
    evaluations, failed = 0, []
    for name in nist.MODELS:
        for problem, digits, solution, errors in fits(name, jnp.float64):
            evaluations += int(solution.nfev)
            if digits < 6 or not bool(solution.converged):
                failed.append((name, digits, solution.message))
            check_statistics(problem, solution, np.asarray(errors))
    assert not failed
    assert evaluations <= 1600


def check_statistics(problem, solution, errors):
    """The sum of squares and the standard errors agree with the certified ones."""
    if problem.name == "Lanczos1":  # its sum of squares, 1e-25, is rounding of the data
        return
    np.testing.assert_allclose(2 * solution.cost, problem.residual_sum_of_squares, rtol=1e-7)
    certified = problem.standard_deviations
    ratios = [np.abs(errors[list(copy)] / certified - 1) for copy in problem.copies]
    assert min(np.max(ratio) for ratio in ratios) < 1e-4, problem.name


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_float32_solves_hard_ones(name):
    assert min(digits for _, digits, _, _ in fits(name, jnp.float32)) >= 3


# Those that claimed to have converged where nothing is solved: a radius that had collapsed; a pole
# that made the cost rise far outward; columns shrunk to a millionth together; a valley that bends
# across every step; directions left out as noise, because a param was steep once or rows are many.
CLAIMED = [
    ("MGH17", 0, "float32", fnopt.levenberg_marquardt()),
    ("MGH10", 0, "float64", gauss_newton()),
    ("MGH10", 0, "float32", gauss_newton()),
    pytest.param(
        *("Bennett5", 0, "float32", dogleg()),
        marks=pytest.mark.xfail(
            strict=False, reason="half of nearby starts end 0.1 % above the least cost: known limit"
        ),
    ),
    ("MGH09", 0, "float32", dogleg()),
]


@pytest.mark.parametrize(("name", "start", "dtype", "solver"), CLAIMED)
def test_what_is_not_solved_is_not_called_converged(name, start, dtype, solver):
    problem = nist.load(name)
    with jax.enable_x64(dtype == "float64"):
        data = (problem.x, problem.y, problem.starts[start])
        x, y, start = (jnp.asarray(a, dtype) for a in data)
        end = fnopt.least_squares(lambda b: problem.model(b, x) - y, start, solver=solver)
    solved = nist.log_relative_error(problem, end.params) >= 3
    flagged = bool(np.any(end.certificate.undetermined)) or int(end.rank) < len(end.params)
    assert solved or flagged or not bool(end.converged), (end.message, float(end.cost))


@pytest.mark.parametrize("start", [0, 1])
def test_float32_solves_nearly_all_starts_in_a_flat_direction(start):
    # Bennett5 in float32: along a flat direction the cost changes by a thousandth, which is about
    # its rounding error, so a single start may end there.
    problem = nist.load("Bennett5")
    x, y = jnp.asarray(problem.x, jnp.float32), jnp.asarray(problem.y, jnp.float32)
    noise = np.random.default_rng(0).standard_normal((24, 3))
    starts = jnp.asarray(problem.starts[start] * (1 + 1e-3 * noise), jnp.float32)
    fits = jax.vmap(functools.partial(fit, problem.model), (0, None, None))(starts, x, y)
    digits = [nist.log_relative_error(problem, params) for params in fits[0].params]
    assert np.sum(np.asarray(digits) < 3) <= 1


@pytest.mark.parametrize(("start", "most"), [(0, 0.6), (1, 0.8)])
def test_float32_solves_most_of_what_rounding_decides(start, most):
    # MGH09 in float32 is at the edge: far from its first start a limit at infinity draws a sixth of
    # all fits away (82 % of 300 disturbed starts are solved), and near the solution the cost is
    # flat to rounding, so that one in twenty ends just below three digits (95 %).
    problem = nist.load("MGH09")
    x, y = jnp.asarray(problem.x, jnp.float32), jnp.asarray(problem.y, jnp.float32)
    noise = np.random.default_rng(0).standard_normal((32, len(problem.starts[start])))
    starts = jnp.asarray(problem.starts[start] * (1 + 1e-4 * noise), jnp.float32)
    fits = jax.vmap(functools.partial(fit, problem.model), (0, None, None))(starts, x, y)
    digits = [nist.log_relative_error(problem, params) for params in fits[0].params]
    assert np.mean(np.asarray(digits) >= 3) >= most


def test_a_valley_that_float32_sees_as_level_is_flagged():
    # MGH17 from near its first start: two exponentials become one with amplitudes of 65 and -65,
    # and all along to infinity the residuals change by less than their rounding.
    problem = nist.load("MGH17")
    x, y = jnp.asarray(problem.x, jnp.float32), jnp.asarray(problem.y, jnp.float32)
    noise = np.random.default_rng(0).standard_normal((24, 5))
    starts = jnp.asarray(problem.starts[0] * (1 + 1e-3 * noise), jnp.float32)
    ends = jax.vmap(functools.partial(fit, problem.model), (0, None, None))(starts, x, y)[0]
    digits = np.asarray([nist.log_relative_error(problem, params) for params in ends.params])
    flagged = np.any(ends.certificate.undetermined, axis=1)
    false = np.asarray(ends.converged) & (digits < 3) & ~flagged
    assert np.sum(false) <= 1, (digits, ends.cost, ends.rank)
