"""Fits whose cost falls towards a limit at infinity, which no test of convergence sees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from fnopt import Status
from fnopt.solvers.convergence._level import LevelCost

X = np.linspace(0.0, 10.0, 40)
CENTRE, WIDTH = 4.0, 1.0
Y = 5 / (1 + ((X - CENTRE) / WIDTH) ** 2) + 0.02 * np.cos(7 * X)


def lorentzian(p):
    return p[0] / (1 + ((X - p[1]) / p[2]) ** 2) - Y


def test_a_peak_that_leaves_its_data_does_not_take_all_steps(x64):
    # The limit is a constant: a peak far off, as high as that takes. Its cost is 40.6 + 1 / x.
    starts = jnp.asarray([[12, 15, 0.25], [25, 21, 5.7], [20, 34, 0.2]])
    end = jax.vmap(lambda p: fnopt.least_squares(lorentzian, p))(starts)
    limit = 0.5 * np.sum((Y - Y.mean()) ** 2)
    went = np.abs(end.params[:, 1]) > 100
    assert went.any()
    np.testing.assert_array_equal(end.status[went], Status.NO_EFFECT)
    np.testing.assert_allclose(end.cost[went], limit, rtol=1e-3)
    assert np.all(end.nfev[went] < 400), end.nfev


def test_a_cost_counts_as_level_while_it_hardly_falls():
    def lasts(costs, anew=()):
        level = LevelCost(jnp.asarray(costs[0]), jnp.zeros((), jnp.int32))
        for i, cost in enumerate(costs[1:]):
            level = level.after(jnp.asarray(cost), jnp.asarray(i in anew))
        return bool(level.lasts)

    steady = np.full(101, 2.0)
    falling = 2 * (1 - 2e-5) ** np.arange(301.0)
    slowly = 2 * (1 - 1e-6) ** np.arange(301.0)  # but 1e-4 in 100 steps
    late = np.where(np.arange(101) < 100, 2.0, 1.9)
    assert lasts(steady)
    assert not lasts(steady[1:])
    assert not lasts(falling)
    assert not lasts(slowly)
    assert not lasts(late)
    assert not lasts(steady, anew=(50,))  # a cost in another unit is no reduction
    assert not lasts(np.where(np.arange(150) < 75, 2.0, 8.0), anew=(74,))
