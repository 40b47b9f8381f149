"""The equations have the solutions that errors are measured against; what is read from a record."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.pinns.equations import EQUATIONS, VISCOSITY, burgers_solution
from benchmarks.pinns.methods import METHODS
from benchmarks.pinns.pictures import STYLES
from benchmarks.pinns.points import spread
from benchmarks.pinns.record import RECORD, Record, merged, read
from benchmarks.pinns.session import _best
from benchmarks.pinns.tables import error_table, factor_table, printed

SOLUTIONS = {
    "poisson_2d": lambda x: jnp.prod(jnp.sin(jnp.pi * x)),
    "poisson_5d": lambda x: jnp.sum(jnp.cos(jnp.pi * x)),
    "helmholtz_2d": lambda x: jnp.sin(jnp.pi * x[0]) * jnp.sin(4 * jnp.pi * x[1]),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SOLUTIONS)
def test_the_solution_meets_all_conditions(name):
    problem, u = EQUATIONS[name](), SOLUTIONS[name]
    batches = problem.draw(jax.random.key(0), tuple(5 for _ in problem.counts))
    pairs = zip(problem.conditions, batches, strict=True)
    found = [jax.vmap(lambda x, c=c: c(u, x))(b) for c, b in pairs]
    np.testing.assert_allclose(found, np.zeros((2, 5)), atol=1e-11)
    np.testing.assert_allclose(problem.exact[7], u(jnp.asarray(problem.points[7])), atol=1e-12)


def test_points_are_spread_evenly():
    points = np.asarray(spread(jax.random.key(0), 160, 2))
    cells, _, _ = np.histogram2d(*points.T, bins=4, range=[[0, 1], [0, 1]])
    assert cells.min() >= 7  # of random ones: 5
    assert cells.max() <= 13  # 16
    other = np.asarray(spread(jax.random.key(1), 160, 2))
    shift = (other - points) % 1
    np.testing.assert_allclose(shift, np.broadcast_to(shift[0], shift.shape), atol=1e-4)


def test_the_solution_of_burgers_equation_meets_it():
    rng = np.random.default_rng(0)
    x, t, h = rng.uniform(-0.9, 0.9, 40), rng.uniform(0.1, 0.9, 40), 1e-4

    def u(x, t):
        return burgers_solution(np.stack([x, t], 1))

    u_t = (u(x, t + h) - u(x, t - h)) / (2 * h)
    u_x = (u(x + h, t) - u(x - h, t)) / (2 * h)
    u_xx = (u(x + h, t) - 2 * u(x, t) + u(x - h, t)) / h**2
    np.testing.assert_allclose(u_t + u(x, t) * u_x - VISCOSITY * u_xx, 0 * x, atol=2e-4)
    np.testing.assert_allclose(u(x, 0 * t), -np.sin(np.pi * x), atol=1e-12)
    np.testing.assert_allclose(u(0 * x + 1, t), 0 * x, atol=1e-12)


def _runs(ends: list[float | None]) -> dict:
    runs = {
        str(seed): {"steps": [1, 10, 100], "seconds": [0.1, 1.0, 4.0], "errors": [1.0, 0.5, end]}
        for seed, end in enumerate(ends)
    }
    return {"best": [0.01, 0.25], "runs": runs}


@pytest.fixture
def record() -> Record:
    methods = {
        "gauss_newton": _runs([1e-5, 2e-5, 4e-5]),
        "adam": _runs([1e-2, 2e-2, 4e-2]),
        "lbfgs": _runs([1e-3, 4e-4, None]),
        "scipy_lbfgs": _runs([4e-3, 4e-3, 4e-3]),
        "soap": _runs([1e-2]),  # not complete
    }
    entry = {"problem": "p", "title": "P", "text": "u = 0", "widths": [2, 8, 1]}
    entry |= {
        "params": 33,
        "points": [30, 10],
        "dtype": "float64",
        "seconds": 4,
        "methods": methods,
    }
    return Record({"p": entry})


def test_only_methods_with_all_runs_count(record):
    assert record.methods("p") == ["gauss_newton", "adam", "lbfgs", "scipy_lbfgs"]


def test_factors_are_of_the_medians_and_of_the_better_of_several(record):
    assert record.final("p", "gauss_newton") == 2e-5
    assert record.below("p", "gauss_newton", ("adam",)) == pytest.approx(1000)
    assert record.below("p", "gauss_newton", ("lbfgs", "scipy_lbfgs")) == pytest.approx(50)
    assert "| Gauss-Newton below Adam | 1,000 |" in factor_table(record)
    assert "1.0e-03 (4.0e-04 to not finite)" in error_table(record)


def test_a_curve_is_the_median_of_each_reading(record):
    assert record.curve("p", "adam", "seconds") == ([0.1, 1.0, 4.0], [1.0, 0.5, 2e-2])
    assert record.curve("p", "adam", "steps")[0] == [1, 10, 100]


def test_what_was_run_longest_decides_what_is_best():
    trials = [(1.0, 1.0, 0.25, 1e-9), (1.0, 1.0, 1.0, 0.2), (2.0, 1.0, 1.0, 0.1)]
    assert _best([*trials, (3.0, 1.0, 1.0, math.nan)]) == [(2.0, 1.0), (1.0, 1.0), (3.0, 1.0)]


def test_a_record_is_written_and_read_again(record, tmp_path):
    (tmp_path / "p.json").write_text(json.dumps(record.problems["p"]))
    found = merged(tmp_path, ["p", "not there"])
    (tmp_path / "all.json").write_text(found.text())
    assert read(tmp_path / "all.json") == found == record


def test_the_committed_record_can_be_shown():
    found = read(RECORD)
    assert set(found.problems) <= set(EQUATIONS)
    for problem in found.problems:
        assert {"gauss_newton", "adam", "scipy_lbfgs"} <= set(found.methods(problem))
    assert "Gauss-Newton" in printed(found)
    assert set(STYLES) == set(METHODS)
