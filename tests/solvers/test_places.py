"""Params whose columns are zero at the start: underflow, or data that don't depend on them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.solvers import dogleg

T = np.linspace(0.1, 4.0, 12)


def components(p, a):
    """A decay, a peak, a level, or some of them: which, is data."""
    t = T.astype(p.dtype)
    decays = p[0] * jnp.exp(-p[1] * t)
    peaks = p[0] * jnp.exp(-(((t - p[1]) / p[2]) ** 2))
    hinges = jnp.maximum(p[0] * t + p[1], 0)
    found = a["decay"] * decays + a["peak"] * peaks + a["hinge"] * hinges + a["level"] * p[3]
    return found - a["y"]


ROWS = ("decay", "peak", "hinge", "level")


def component(y, **weights):
    rows = {name: jnp.float32(weights.get(name, 0)) for name in ROWS}
    return rows | {"y": jnp.asarray(y, jnp.float32)}


DECAY, PEAK = 2 * np.exp(-1.3 * T), 2 * np.exp(-(((T - 1.7) / 0.8) ** 2))
HINGE = np.maximum(1.5 * T - 1.5, 0)
WAVE = 0.01 * np.sin(9 * T)
UNDERFLOWN = {
    "a decay": (component(DECAY + WAVE, decay=1), [1, 3000, 1, 1], 0.01),
    "a decay and a level": (component(DECAY + 0.5 + WAVE, decay=1, level=1), [1, 2000, 1, 0], 0.01),
    "a peak": (component(PEAK + WAVE, peak=1), [1, 50, 1, 1], 0.01),
    "a peak and a level": (component(PEAK + 0.5 + WAVE, peak=1, level=1), [1, 50, 1, 0], 0.01),
    "a narrow peak": (component(PEAK + WAVE, peak=1), [1, 1, 1e-3, 1], 0.01),
    "a hinge": (component(HINGE + WAVE, hinge=1), [-1, -1, 1, 1], 0.01),
    "a hinge and a level": (component(HINGE + 0.5 + WAVE, hinge=1, level=1), [-1, -1, 1, 0], 0.01),
}


@pytest.mark.parametrize("solver", [fnopt.levenberg_marquardt(), dogleg()], ids=repr)
def test_params_that_underflow_at_the_start_are_looked_for(solver):
    fit = jax.jit(
        jax.vmap(lambda p, a: fnopt.least_squares(components, p, args=(a,), solver=solver))
    )
    starts = jnp.asarray([start for _, start, _ in UNDERFLOWN.values()], jnp.float32)
    which = jax.tree.map(lambda *rows: jnp.stack(rows), *(a for a, _, _ in UNDERFLOWN.values()))
    end = fit(starts, which)
    for i, case in enumerate(UNDERFLOWN):
        found = float(end.cost[i]) < UNDERFLOWN[case][2]
        assert found or not bool(end.converged[i]), (case, end.message[i])
        assert found or solver != fnopt.levenberg_marquardt(), case


def test_params_that_have_to_move_together_are_looked_for():
    """A peak of a given area, far off and narrow: wider alone it is too low to be seen."""
    t = jnp.linspace(1.0, 10.0, 40)

    def peak(p):
        return p[0] / p[1] * jnp.exp(-0.5 * ((t - p[2]) / p[1]) ** 2)

    y = peak(jnp.asarray([1.5, 0.4, 5.0])) + 0.02 * jnp.sin(9 * t)
    starts = np.asarray([1.5, 0.4, 5.0]) * 10 ** np.random.default_rng(2).uniform(-1, 1, (200, 3))
    starts = [p for p in jnp.asarray(starts, jnp.float32) if not np.any(peak(p))][:20]
    fit = jax.jit(lambda p: fnopt.least_squares(lambda q: peak(q) - y, p))
    ends = [fit(p) for p in starts]
    assert all(bool(end.converged) and float(end.cost) < 0.01 for end in ends)  # nine of 20, before


FLAT = {  # a height of zero beside what underflows: neither has an effect alone
    "a decay": (component(DECAY + 0.5 + WAVE, decay=1, level=1), [0, 3000, 1, 0], 0.01),
    "a peak": (component(PEAK + 0.5 + WAVE, peak=1, level=1), [0, 50, 1, 0], 0.01),
}


def test_a_height_of_zero_is_tried_beside_others():
    fit = jax.jit(jax.vmap(lambda p, a: fnopt.least_squares(components, p, args=(a,))))
    starts = jnp.asarray([start for _, start, _ in FLAT.values()], jnp.float32)
    which = jax.tree.map(lambda *rows: jnp.stack(rows), *(a for a, _, _ in FLAT.values()))
    end = fit(starts, which)
    bests = np.asarray([best for _, _, best in FLAT.values()])
    assert not np.any(np.asarray(end.converged) & (np.asarray(end.cost) > bests)), end.message


def test_params_that_have_an_effect_elsewhere_alone_are_no_solution():
    # The nearer to the data, the worse the fit: there is no minimum short of infinity.
    end = fnopt.least_squares(
        lambda p: jnp.stack([p[0] - 1, 1 + jnp.exp(-(p[1] ** 2))]), jnp.asarray([3.0, 50.0])
    )
    assert Status(int(end.status)).name == "NO_EFFECT", end.message
    assert "has elsewhere" in end.message
    np.testing.assert_allclose(end.params, [1, 50])


@pytest.mark.parametrize("bounds", [None, (-9.0, 9.0)], ids=str)
def test_params_that_have_no_effect_at_all_leave_a_claim_with_its_rank(bounds):
    y = component(DECAY + WAVE, level=1)
    end = fnopt.least_squares(
        components, jnp.asarray([5.0, 3.0, 1.0, 0.0]), args=(y,), bounds=bounds
    )
    assert bool(end.converged), end.message
    assert int(end.rank) == 1
    np.testing.assert_array_equal(end.params[:3], [5, 3, 1])
    assert int(end.nfev) < 52  # at most 48 places, and the steps


RATES = (200, 300, 500, 700, 1000, 3000)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["levenberg_marquardt", "dogleg"])
def test_decays_that_all_but_underflow_at_the_start_are_looked_for(name, dtype):
    # Their columns are 1e-22, or 1e-200: no step leads from there, and the slope isn't small.
    times = np.linspace(0, 10, 40)
    data = 2 * np.exp(-0.7 * times) + 0.3 + 0.01 * np.sin(9 * times)
    solver = fnopt.levenberg_marquardt() if name == "levenberg_marquardt" else dogleg()
    with jax.enable_x64(dtype == "float64"):
        t, y = jnp.asarray(times, dtype), jnp.asarray(data, dtype)
        starts = jnp.asarray([[1, rate, 0] for rate in RATES], dtype)

        def fit(p):
            return fnopt.least_squares(
                lambda q: q[0] * jnp.exp(-q[1] * t) + q[2] - y, p, solver=solver
            )

        end = jax.jit(jax.vmap(fit))(starts)
        found = np.asarray(end.cost) < 0.01
        np.testing.assert_array_equal(end.converged, found)
        # Nothing keeps a param of dogleg's near its size: it is off before it is looked for.
        assert np.all(found) or name == "dogleg", end.message
