from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.solvers.smooth._convergence import judged
from fnopt.solvers.smooth._method import MOVED, Evaluation, StepPlan
from fnopt.solvers.smooth._progress import SearchProgress
from fnopt.solvers.smooth._tolerances import tolerances

# dtype, value, the last gain, the gradient, the largest gradient so far, and the claim.
CASES = [
    ("float32", 1e-2, 1e-6, 6e-4, 1e1, Status.RUNNING),  # a gain that float32 sees
    ("float32", 1e-2, 1e-10, 6e-4, 1e1, Status.CONVERGED_COST),
    ("float32", 1e-2, 1e-10, 1e-2, 1e2, Status.RUNNING),
    ("float32", 1e-2, 1e-10, 2e-4, 1e1, Status.CONVERGED_GRADIENT),
    ("float64", 1e-7, 1e-9, 3e-2, 1e6, Status.RUNNING),
    ("float64", 1e-7, 1e-9, 1e-4, 1e3, Status.CONVERGED_COST),
    ("float64", 1e-5, 1e-9, 1e-4, 1e3, Status.RUNNING),  # not nothing of what is left
]


@pytest.mark.parametrize(("dtype", "value", "gain", "slope", "steepest", "claim"), CASES)
def test_claims_by_the_value(dtype, value, gain, slope, steepest, claim, x64):
    def number(x):
        return np.asarray(x, dtype)

    one = number(1)
    tol = tolerances(dtype, float(np.finfo(dtype).eps), None, None, None, one, one)
    before = Evaluation(number([0.01]), number(value + gain), number([slope]))
    after = Evaluation(number([0.02]), number(value), number([slope]))
    plan = StepPlan(after.x, number(gain), number([0.001]), None)
    progress = SearchProgress(number(10), number(steepest), number(10), np.int32(0), number(np.inf))
    end = judged(np.int32(MOVED), before, after, plan, number(slope), progress, tol)
    assert Status(int(end.status)) is claim


def test_a_value_with_a_large_offset_needs_flat_steps_in_a_row():
    # A gain of 0.01 of 1e4 is hardly seen in float32, and one step may gain so little anywhere.
    def number(x):
        return np.float32(x)

    one = number(1)
    tol = tolerances("float32", float(np.finfo("float32").eps), None, None, None, one, one)
    slope, progress = (
        number([1.5]),
        SearchProgress(number(2e4), number(2e2), number(1e4), np.int32(0), number(np.inf)),
    )
    told = []
    for i in range(6):
        before = Evaluation(number([i]), number(1e4 - i * 0.01), slope)
        after = Evaluation(number([i + 1]), number(1e4 - (i + 1) * 0.01), slope)
        plan = StepPlan(after.x, number(0.01), number([1]), None)
        end = judged(np.int32(MOVED), before, after, plan, number(1.5), progress, tol)
        progress = end.progress
        told.append((Status(int(end.status)), bool(end.doubtful)))
    # After three of them the method begins anew, after three more that is the minimum.
    going, anew, done = [(Status.RUNNING, x) for x in (False, True)] + [
        (Status.CONVERGED_COST, False)
    ]
    assert told == [going, going, anew, going, going, done]


def zakharov(x):
    s = jnp.sum(jnp.arange(1, 11, dtype=x.dtype) * x) / 2
    return jnp.sum(x**2) + s**2 + s**4


def gentle_beside_steep(x):
    return jnp.sum(jnp.asarray(np.logspace(0, 10, 10), x.dtype) * (x - 1) ** 2) / 2


def mixed_scales(x):
    u = x[:2] * jnp.asarray([1e-6, 1e6], x.dtype)
    return 100 * (u[1] - u[0] ** 2) ** 2


HARD = {
    zakharov: (np.full(10, 5.0), 1e-6),
    gentle_beside_steep: (np.zeros(10), 0.5),
    mixed_scales: (np.asarray([-1.2e6, 1e-6] + [0.0] * 8), 1e-6),
}


@pytest.mark.parametrize("method", ["bfgs", "lbfgsb"])
def test_a_gradient_that_was_huge_at_the_start_is_no_measure(method):
    # Float32: after a start of 1e10 a slope of 1e3 was called small, at values of 50 and 1,000.
    # The last one stalled: by rounding the line search believed that its start was the minimum.
    def fun(x, which):
        return jax.lax.switch(which, list(HARD), x)

    for i, (start, small) in enumerate(HARD.values()):
        end = fnopt.minimize(
            fun, jnp.asarray(start, jnp.float32), args=(jnp.int32(i),), method=method
        )
        assert bool(end.converged), (i, end.message)
        assert float(end.value) < small, i


def slopes(x, which):
    far = jnp.asarray([1e8, 3e7], x.dtype)
    size = jnp.abs(x - far) / 1e8
    return jax.lax.switch(
        which,
        [
            lambda: x[0] - 2 * x[1],  # has no lowest value
            lambda: -jnp.sum(x**2),
            lambda: jnp.sum((x - 3) ** 3),
            lambda: jnp.sum((x - far) ** 2),
            lambda: jnp.sum(jnp.sqrt(1 + (x - far) ** 2)),  # a slope of 1 up to the minimum
            lambda: jnp.sum(size**4 - size**2),  # steeper on the way than at the start
            lambda: jnp.sum(jax.nn.softplus(-x) + 1e-4 * x),
            lambda: jnp.sum(jnp.exp(-x / 8) + 1e-4 * x),
            lambda: jnp.sum(1e-9 * x - jnp.log(x)),
        ],
    )


@pytest.mark.parametrize(
    ("method", "dtype"),
    [("bfgs", "float32"), ("lbfgsb", "float64"), ("newton_cg", "float32"), ("cg", "float64")],
)
def test_endless_slopes_are_told_soon_and_distant_minima_are_found(method, dtype, x64):
    for i in range(9):
        start = jnp.asarray([1.0, 1.5], dtype)
        end = fnopt.minimize(slopes, start, args=(jnp.int32(i),), method=method)
        endless = Status(int(end.status)) is Status.UNBOUNDED
        assert endless == (i < 3), (i, end.message)
        assert not endless or ("no lower bound" in end.message and int(end.nfev) <= 80), i


@pytest.mark.parametrize("method", ["newton_cg", "projected_gradient"])
def test_a_short_step_that_rounding_hides_claims_nothing(method):
    # Float32: the value is 1e16, a step of length 1 gains 1e8 of it, the minimum is 1e8 away.
    start = jnp.asarray([1.0, 1.5], jnp.float32)
    end = fnopt.minimize(slopes, start, args=(jnp.int32(3),), method=method)
    assert not bool(end.converged) or float(end.value) < 1


def test_a_step_below_the_rounding_of_the_params_ends_newtons_method():
    end = fnopt.minimize(mixed_scales, jnp.asarray([-1.2e6, 1e-6]), method="newton_cg")
    assert int(end.nfev) < 40


def with_units(x, which, scale):
    """Functions of params whose units differ, the value in a unit of its own."""
    a, b = x[0], x[1]
    far = jnp.asarray([1e12, 1e-12], x.dtype)
    t = jnp.asarray(np.linspace(0, 3, 10), x.dtype)
    value = jax.lax.switch(
        which,
        [
            lambda: (a / far[0] - 1) ** 2 + (b / far[1] - 1) ** 2 + (a * b - 1) ** 2,
            lambda: jnp.sum((a / far[0] * jnp.exp(-b / far[1] * t) - 2 * jnp.exp(-t)) ** 2),
            lambda: a - jnp.log(a) + b - jnp.log(b) - 2,
            lambda: zakharov(jnp.full(10, a)) + b**2,
            lambda: himmelblau(x / far),
            lambda: booth(x / far),
        ],
    )
    return value * scale


def himmelblau(x):
    return (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


def booth(x):
    return (x[0] + 2 * x[1] - 7) ** 2 + (2 * x[0] + x[1] - 5) ** 2


UNITS = [
    # which of them, the start, the unit of the value
    (0, [2e12, 3e-12], 1.0),
    (1, [1e12, 3e-12], 1.0),
    (2, [1e-6, 4.0], 1.0),  # a small start has no small unit
    (0, [2e12, 3e-12], 1e-15),
    (3, [5.0, 1.0], 1e-24),
    (3, [5.0, 1.0], 1e20),
    # Zeros show no units: 67.6 and 1.8 were claimed, the least is 0.
    (4, [0.0, 1e-12], 1.0),
    (5, [0.0, 0.0], 1.0),
]


@pytest.mark.parametrize(
    ("method", "dtype"), [("bfgs", "float32"), ("lbfgsb", "float64"), ("newton_cg", "float64")]
)
def test_units_of_params_and_value_claim_nothing(method, dtype, x64):
    # Values of 1.2, 1.5, 66 and 8,544, whose least is 0, were claimed, or the search stalled there.
    for which, start, scale in UNITS:
        scale = jnp.asarray(scale, dtype)
        end = fnopt.minimize(
            with_units, jnp.asarray(start, dtype), args=(jnp.int32(which), scale), method=method
        )
        assert bool(end.converged), (which, scale, end.message)
        assert float(end.value / scale) < 1e-3, (which, scale, end.message)


@pytest.mark.parametrize(
    ("method", "dtype"),
    [("bfgs", "float64"), ("lbfgsb", "float64"), ("newton_cg", "float32"), ("cg", "float64")],
)
def test_a_gentle_penalty_is_followed_to_its_end(method, dtype, x64):
    # From a value of 890: 2.42e-5 was claimed, by gains of 1e-9, of which 7 % were still to gain.
    def penalty(x):
        gentle, steep = jnp.asarray(1e-5, x.dtype), jnp.asarray(0.25, x.dtype)
        return gentle * jnp.sum((x - 1) ** 2) + (jnp.sum(x**2) - steep) ** 2

    end = fnopt.minimize(penalty, jnp.arange(1, 5, dtype=dtype), method=method)
    assert bool(end.converged), end.message
    assert float(end.value) == pytest.approx(2.24998e-5, rel=1e-3 if dtype == "float64" else 0.01)


def test_a_param_that_starts_at_its_minimum_costs_no_more_than_a_round():
    # Rounding is all that its gradient ever has: that of the end is no smaller than the largest.
    def fun(x):
        return jnp.sum((x[:2] - 3) ** 4) + jnp.sum((x[2:] - 0.1) ** 2) + 1e-8 * jnp.sum(x)

    start = jnp.asarray([0.0, 1.0, 0.1, 0.1])
    end = fnopt.minimize(fun, start)
    assert bool(end.converged), end.message
    assert int(end.nfev) < 80


def test_a_tolerance_that_is_given_is_the_last_word():
    def fun(x):
        return jnp.sum(jnp.cosh(x - 2))

    start = jnp.asarray([1.0, 3.5])
    default, loose = fnopt.minimize(fun, start), fnopt.minimize(fun, start, gtol=0.5)
    assert int(loose.nfev) < int(default.nfev)
    assert 1e-3 < float(loose.gradient_norm) <= 0.5
    already = fnopt.minimize(fun, start, options={"gtol": 1e2})
    assert (int(already.nfev), Status(int(already.status))) == (1, Status.CONVERGED_GRADIENT)


def test_a_search_that_fails_on_a_steep_slope_begins_anew():
    # From values of 1e13 to 1e30: what was learned there leads nowhere, and beside such a fall any
    # slope is small. All but one were claimed with slopes of a quarter of the value over x or more.
    x = np.linspace(0.1, 6, 30, dtype=np.float32)
    y = 2 * x ** np.float32(1.7) + np.float32(0.5)
    starts = [[4.606509, 10.239163, 0.7034044], [1.0257362, 10.646578, 2.6086802]]
    starts += [[7.5664115, 9.114017, 0.03695182], [95.434044, 15.34325, 0.44649774], [3, 2, 1]]
    starts += [[0.10577112, 6.4598203, 1.5816528], [84.36226, 3.4341707, 0.12197168]]
    starts += [[59.559456, 7.1753206, 6.297376], [0.05491778, 10.442202, 1.2234985]]

    def loss(p):
        return jnp.sum((p[0] * x ** p[1] + p[2] - y) ** 2)

    end = jax.jit(jax.vmap(lambda p: fnopt.minimize(loss, p, method="bfgs")))(jnp.asarray(starts))
    slope = jax.vmap(jax.grad(loss))(end.params)
    change = np.max(np.abs(slope * end.params), axis=1) / np.asarray(end.value)
    assert not np.any(end.converged & (change > 0.1) & (end.value > 1)), (end.value, end.message)
    solved = np.asarray(end.converged & (end.value < 1e-3))
    assert np.all(solved[4:6]), end.message  # the second by a new beginning


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("bfgs", "float64"),
        ("lbfgsb", "float64"),
        ("cg", "float64"),
        ("newton_cg", "float64"),
        ("bfgs", "float32"),
        ("lbfgsb", "float32"),
    ],
)
def test_a_fall_from_afar_is_no_scale(method, dtype, x64):
    # From values of up to 1e117 (1e35 in float32), beside which every slope is small: such searches
    # were claimed in valleys and on plateaus, with slopes of a quarter of the value over x.
    x, truth = np.linspace(0.1, 6, 30), np.asarray([2, 1.7, 0.5])
    y = truth[0] * x ** truth[1] + truth[2]
    factors = np.exp(np.random.default_rng(0).uniform(-1, 1, (60, 3)) * np.log(50))

    def loss(p):
        x_, y_ = jnp.asarray(x, p.dtype), jnp.asarray(y, p.dtype)
        return jnp.sum((p[0] * x_ ** p[1] + p[2] - y_) ** 2)

    starts = jnp.asarray(truth * factors, dtype)
    end = jax.jit(jax.vmap(lambda p: fnopt.minimize(loss, p, method=method)))(starts)
    slope = jax.vmap(jax.grad(loss))(end.params)
    change = jnp.max(jnp.abs(slope * end.params), axis=1) / end.value
    false = np.asarray(end.converged & (change > 0.1) & (end.value > 1))
    assert not np.any(false), (end.value[false], change[false])
    solved = np.sum(np.asarray(end.converged & (end.value < 1e-3)))
    assert solved >= (40 if dtype == "float64" else 25)


def test_a_first_step_that_rounding_would_hide_is_longer():
    # The first step falls by seven digits; a curvature that is learned from it is far too large,
    # and a step down the gradient is nothing in units of the start. It was STALLED at 8e16.
    def loss(p):
        return jnp.sum(jnp.cosh(p - 3))

    for method in ("bfgs", "lbfgsb", "cg"):
        end = fnopt.minimize(loss, jnp.full(3, 60.0), method=method)
        assert bool(end.converged), end.message
        assert abs(float(end.value) - 3) < 1e-5


@pytest.mark.parametrize("method", ["bfgs", "lbfgsb", "cg", "newton_cg"])
def test_a_fall_from_afar_to_less_than_the_unit_is_followed(method, x64):
    # In a unit of 1e-24, from values of 1e28: what is less than 2e-7 was claimed, on a slope.
    def loss(p):
        return unit * (jnp.exp(-p[0]) + jnp.cosh(3 * p[1]) + p[0] ** 2)

    for unit, start in ((1e-24, [-120.0, 5.0]), (1e-8, [-100.0, 0.5])):
        end = fnopt.minimize(loss, jnp.asarray(start), method=method)
        assert bool(end.converged), end.message
        assert float(end.value) / unit == pytest.approx(1.82718, rel=1e-3)


@pytest.mark.parametrize("method", ["bfgs", "lbfgsb"])
def test_what_grows_below_zero_keeps_no_claim(method, x64):
    # No lower bound; a round that came to a value near zero was claimed, and that claim was kept.
    def loss(p):
        return 1e-24 * (jnp.sum((1 - jnp.exp(1 - p)) ** 2) - 2 + 0.1 * jnp.sum(p[1:] * p[:-1]))

    end = fnopt.minimize(loss, jnp.asarray([-11.0, 18.0, -33.0, -44.0]), method=method)
    assert not bool(end.converged) or abs(float(end.value)) < 1, end


def test_a_callback_stops_later_rounds_too(x64):
    def loss(p):
        return jnp.sum(jnp.cosh(p - 1)) - 2

    steps = []

    def callback(info):
        steps.append(int(info.step))
        return len(steps) >= most

    start, most = jnp.asarray([150.0, 3.0]), 10_000
    end = fnopt.minimize(loss, start, method="bfgs", callback=callback)
    most = len(steps) - 2  # a last step that converges is no stop
    steps.clear()
    stopped = fnopt.minimize(loss, start, method="bfgs", callback=callback)
    assert bool(end.converged)
    assert int(stopped.status) == Status.STOPPED, stopped.message


def test_a_root_from_afar_is_claimed(x64):
    def rosenbrock(p):
        return 100 * (p[1] - p[0] ** 2) ** 2 + (1 - p[0]) ** 2

    for method in ("bfgs", "lbfgsb", "cg"):
        end = fnopt.minimize(rosenbrock, jnp.asarray([1e5, -3e4]), method=method)
        assert bool(end.converged), end.message
        np.testing.assert_allclose(end.params, 1, rtol=1e-3)


@pytest.mark.parametrize("method", ["auto", "newton_cg"])
def test_a_value_that_is_small_beside_one_may_be_all_there_is(method):
    def chain(x):  # 0.1 at its minimum
        return 100 * jnp.sum((x[1:] - x[:-1] ** 2) ** 2) + jnp.sum((1 - x[:-1]) ** 2) + 0.1

    def end(worth):
        start = jnp.asarray([3.4, -0.9, -1.2, -1.35])
        return fnopt.minimize(lambda x: worth * chain(x), start, method=method)

    ends = jax.jit(jax.vmap(end))(jnp.asarray([1e-10, 1e-9, 1e-8, 1e-7], jnp.float32))
    assert np.all(ends.converged)
    np.testing.assert_allclose(jax.vmap(chain)(ends.params), 0.1, rtol=1e-3)


@pytest.mark.parametrize("method", ["auto", "newton_cg"])
def test_a_logarithm_that_falls_for_ever_is_no_claim(method):
    end = fnopt.minimize(lambda x: -jnp.sum(jnp.log(x)), jnp.ones(1), method=method)
    assert not end.converged
