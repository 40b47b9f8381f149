"""The nonlinear regression problems of NIST, with default settings.

Goals: float64, all 54 (27 data sets, 2 starts) to 6 digits in 1,600 evaluations of the residuals;
float32, 49 to 3 digits.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.reference import _nist

pytestmark = pytest.mark.skipif(_nist.folder() is None, reason=_nist.WHERE)


def fits(name, dtype):
    """Both starts of a data set: digits and solution."""
    problem = _nist.load(name)
    x, y = jnp.asarray(problem.x, dtype), jnp.asarray(problem.y, dtype)

    @jax.jit
    def fit(start):
        return fnopt.least_squares(lambda b: problem.model(b, x) - y, start)

    for start in problem.starts:
        solution = fit(jnp.asarray(start, dtype))
        yield problem, _nist.log_relative_error(problem, solution.params), solution


@pytest.mark.parametrize("name", ["Misra1a", "Thurber", "Nelson"])
def test_the_reader_knows_the_model(name):
    # At the certified params the sum of squares is the certified one.
    problem = _nist.load(name)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        r = problem.model(jnp.asarray(problem.certified), jnp.asarray(problem.x)) - problem.y
        np.testing.assert_allclose(r @ r, problem.residual_sum_of_squares, rtol=1e-8)


def test_float64_solves_all(x64):
    evaluations, failed = 0, []
    for name in _nist.MODELS:
        for problem, digits, solution in fits(name, jnp.float64):
            evaluations += int(solution.nfev)
            if digits < 6 or not bool(solution.converged):
                failed.append((name, digits, solution.message))
            check_statistics(problem, solution)
    assert not failed
    assert evaluations <= 1600


def check_statistics(problem, solution):
    """The sum of squares and the standard errors agree with the certified ones."""
    if problem.name == "Lanczos1":  # its sum of squares, 1e-25, is rounding of the data
        return
    np.testing.assert_allclose(2 * solution.cost, problem.residual_sum_of_squares, rtol=1e-7)
    errors = np.asarray(fnopt.standard_errors(solution))
    certified = problem.standard_deviations
    ratios = [np.abs(errors[list(copy)] / certified - 1) for copy in problem.copies]
    assert min(np.max(ratio) for ratio in ratios) < 1e-4, problem.name


def test_float32_solves_what_can_be():
    solved = [digits >= 3 for name in _nist.MODELS for _, digits, _ in fits(name, jnp.float32)]
    assert sum(solved) >= 49
