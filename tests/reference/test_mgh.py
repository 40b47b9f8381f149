"""The problems of Moré, Garbow and Hillstrom: their formulas, and the hard ones at our defaults.

`python -m benchmarks mgh` runs all of them, and the peers.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from benchmarks.problems.mgh import PROBLEMS, Problem, outcome

BY_NAME = {problem.name: problem for problem in PROBLEMS}

# Minimizers: the paper's where it has them, else by MINPACK in float64 to 9 digits.
MINIMIZERS = {
    "rosenbrock": [1, 1],
    "freudenstein_roth": [5, 4],
    "powell_badly_scaled": [1.09815933e-5, 9.10614674],
    "brown_badly_scaled": [1e6, 2e-6],
    "beale": [3, 0.5],
    "jennrich_sampson": [0.257825213, 0.257825213],
    "helical_valley": [1, 0, 0],
    "bard": [0.0824105598, 1.13303609, 2.34369518],
    "gaussian": [0.398956138, 1.00001908, 0],
    "meyer": [0.00560963647, 6181.34635, 345.223635],
    "gulf": [50, 25, 1.5],
    "box": [1, 10, 1],
    "powell_singular": [0, 0, 0, 0],
    "wood": [1, 1, 1, 1],
    "kowalik_osborne": [0.192806935, 0.191282324, 0.123056506, 0.136062329],
    "brown_dennis": [-11.5944391, 13.2036298, -0.403439471, 0.236778811],
    "osborne1": [0.375410052, 1.9358469, -1.46468713, 0.0128675346, 0.0221226997],
    "biggs": [1, 10, 1, 5, 4, 3],
    "osborne2": [
        *(1.30997715, 0.431553795, 0.633661699, 0.599430535, 0.754183226, 0.90428858),
        *(1.36581184, 4.82369882, 2.39868487, 4.5688746, 5.67534147),
    ],
    "watson6": [-0.0157250844, 1.01243487, -0.232991628, 1.2604301, -1.51372895, 0.992996446],
    "watson9": [
        *(-1.53070365e-05, 0.999789704, 0.0147639637, 0.146342328, 1.0008211),
        *(-2.61773114, 4.10440316, -3.14361228, 1.05262641),
    ],
    "extended_rosenbrock10": np.ones(10),
    "extended_powell_singular12": np.zeros(12),
    "penalty14": np.full(4, 0.2500075),
    "penalty110": np.full(10, 0.1581223),
    "penalty24": [0.199999333, 0.191316724, 0.480101467, 0.518845412],
    "penalty210": [
        *(0.199983605, 0.0103506559, 0.0196049346, 0.032089067, 0.0499326771),
        *(0.0765139946, 0.118624071, 0.192144862, 0.347320602, 0.369164363),
    ],
    "variably_dimensioned10": np.ones(10),
    "trigonometric10": [
        *(0.0479119473, 0.0491845182, 0.0506087029, 0.0522230494, 0.0540830923),
        *(0.0562733035, 0.0589321385, 0.186397001, 0.15434196, 0.124625377),
    ],
    "brown_almost_linear10": np.ones(10),
    "broyden_tridiagonal10": [
        *(-0.570722132, -0.68180695, -0.702210076, -0.70551063, -0.704906156),
        *(-0.701496607, -0.691889322, -0.665796514, -0.596035109, -0.416412258),
    ],
    "broyden_banded10": [
        *(-0.428302864, -0.476596424, -0.519652464, -0.558099325, -0.592506157),
        *(-0.624503682, -0.623239471, -0.621393842, -0.620453597, -0.586469271),
    ],
    "linear_full_rank10": -np.ones(10),
    "linear_rank_one10": [3 / 41, *np.zeros(9)],
    "linear_rank_one_with_zeros10": [7, 1.5 / 37, *np.zeros(8)],
    "chebyquad8": [
        *(0.0431527603, 0.193090841, 0.266328707, 0.5),
        *(0.5, 0.733671293, 0.806909159, 0.95684724),
    ],
    "chebyquad9": [
        *(0.0442053461, 0.199490672, 0.235619108, 0.416046908, 0.5),
        *(0.583953092, 0.764380892, 0.800509328, 0.955794654),
    ],
    "chebyquad10": [
        *(0.0747481660, 0.171518177, 0.286434152, 0.359646452, 0.470750522),
        *(0.616738334, 0.616738337, 0.799810801, 0.844854644, 0.967006628),
    ],
}
# The discrete integral equation is the inverse of the discrete boundary value problem.
MINIMIZERS["discrete_boundary_value10"] = MINIMIZERS["discrete_integral10"] = [
    *(-0.0431649825, -0.0815771565, -0.114485714, -0.140973577, -0.159908696),
    *(-0.169877202, -0.169089984, -0.155249535, -0.125355892, -0.0754165337),
]


def sum_of_squares(problem: Problem, params) -> float:
    r = np.asarray(jax.jit(problem.residuals)(jnp.asarray(params, jnp.float64)))
    return float(r @ r)


def test_there_are_all_35():
    assert sorted({problem.number for problem in PROBLEMS}) == list(range(1, 36))
    assert len(BY_NAME) == len(PROBLEMS)


@pytest.mark.parametrize("name", MINIMIZERS)
def test_the_formulas_have_the_published_minimum(name, x64):
    problem = BY_NAME[name]
    found = sum_of_squares(problem, MINIMIZERS[name])
    np.testing.assert_allclose(found, problem.minimum, rtol=1e-5, atol=1e-15)


# The starts from which the minimum is found: of problems that are flat, badly scaled, rank
# deficient or nearly singular, or have large residuals.
HARD = {
    "powell_badly_scaled": ["1x"],
    "brown_badly_scaled": ["1x", "10x", "100x"],
    "meyer": ["1x", "10x"],
    "brown_dennis": ["1x", "10x", "100x"],
    "biggs": ["1x", "10x"],
    "watson12": ["1x", "10x", "100x"],
    "linear_rank_one_with_zeros10": ["1x", "10x", "100x"],
}


@functools.cache
def solve(name):
    """The compiled fit, of a start."""
    return jax.jit(lambda start: fnopt.least_squares(BY_NAME[name].residuals, start))


@pytest.mark.parametrize("name", HARD)
def test_the_defaults_solve_hard_ones(name, x64):
    problem = BY_NAME[name]
    for label in HARD[name]:
        solution = solve(name)(jnp.asarray(problem.starts()[label]))
        assert bool(solution.converged), (label, solution.message)
        found = sum_of_squares(problem, solution.params)
        assert outcome(problem, found) == "solved", (label, found, solution.params)


def test_a_param_without_effect_does_not_hold_the_others(x64):
    # At (0, 100) only x_2 isn't zero, and it has no effect. In the scaled variables that is no
    # distance from the origin, and yet x_1 alone can remove nearly all of the residual.
    name = "powell_badly_scaled"
    solution = solve(name)(jnp.asarray([0.0, 100.0]))
    assert sum_of_squares(BY_NAME[name], solution.params) < 2e-8  # 1e-8 is the limit as x_2 grows


def test_a_limit_at_infinity_is_told_from_a_minimum(x64):
    # Two params go to infinity, their difference stays: no column of the Jacobian vanishes.
    problem = BY_NAME["bard"]
    for label in ("10x", "100x"):
        end = solve("bard")(jnp.asarray(problem.starts()[label]))
        far = np.max(np.abs(end.params)) > 1e3  # "10x" may end in a local minimum
        flagged = bool(np.any(end.certificate.undetermined))
        assert bool(end.converged) <= (flagged or not far), (label, end.message, end.params)
    end = solve("bard")(jnp.asarray(problem.start))
    assert bool(end.converged), end.message


def test_a_local_minimum_is_told_from_a_failure():
    problem = BY_NAME["freudenstein_roth"]
    assert outcome(problem, 1e-20) == "solved"
    assert outcome(problem, 48.98425) == "local minimum"
    assert outcome(problem, 50.0) == "elsewhere"
    assert outcome(BY_NAME["bard"], 8.2e-3 * 1.01) == "elsewhere"
