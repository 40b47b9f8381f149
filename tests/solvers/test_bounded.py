import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

T = np.linspace(0.0, 3.0, 25)
Y = 2.0 * np.exp(-0.7 * T) + 0.3 + 0.05 * np.cos(7 * T)


def decay(p, t=T, y=Y):
    return p[0] * jnp.exp(-p[1] * t) + p[2] - y


def rosenbrock(p):
    return jnp.stack([10 * (p[1] - p[0] ** 2), 1 - p[0]])


@jax.jit
def solve_decay(start, lower, upper):
    return fnopt.least_squares(decay, start, bounds=(lower, upper))


@jax.jit
def solve_rosenbrock(start, lower, upper):
    return fnopt.least_squares(rosenbrock, start, bounds=(lower, upper), history=True)


INF = np.inf
CASES = [
    (solve_decay, decay, [1.0, 1.0, 0.5], [0.0, 0.0, 0.4], [INF] * 3),
    (solve_decay, decay, [1.0, 0.8, 0.0], [0.0, 0.0, -1.0], [1.5, 0.9, 0.1]),
    (solve_decay, decay, [3.0, 0.8, 0.0], [2.5, 0.0, -1.0], [INF, 0.9, INF]),
    (solve_rosenbrock, rosenbrock, [-2.0, 1.0], [-INF, -1.5], [INF, INF]),
    (solve_rosenbrock, rosenbrock, [2.0, 2.0], [-INF, 1.5], [INF, INF]),
    (solve_rosenbrock, rosenbrock, [-2.0, 2.0], [-INF, 1.5], [INF, INF]),
    (solve_rosenbrock, rosenbrock, [-1.2, 1.0], [-1.5, -0.5], [0.5, 1.0]),
]


@pytest.mark.parametrize(("solve", "fn", "start", "lower", "upper"), CASES)
def test_agrees_with_scipy(solve, fn, start, lower, upper, x64):
    optimize = pytest.importorskip("scipy.optimize")
    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-12}
    numpy = {"jnp": np}
    plain = type(fn)(fn.__code__, {**fn.__globals__, **numpy}, argdefs=fn.__defaults__)
    want = optimize.least_squares(plain, start, bounds=(lower, upper), **tight)
    lower, upper = np.asarray(lower), np.asarray(upper)
    got = solve(jnp.asarray(start), lower, upper)
    assert bool(got.converged), got.message
    np.testing.assert_allclose(got.cost, want.cost, rtol=1e-9, atol=1e-20)
    np.testing.assert_allclose(got.params, want.x, rtol=1e-6, atol=1e-9)
    assert np.all((got.params >= lower) & (got.params <= upper))
    # A bound that SciPy comes near to is met exactly.
    for x, end in [(got.params, lower), (got.params, upper)]:
        near = np.abs(want.x - end) < 1e-8
        np.testing.assert_array_equal(np.asarray(x)[near], end[near])
    assert int(got.nfev) <= 25


@pytest.mark.parametrize("x64", [False, True])
def test_a_phase_within_bounds_ends_in_as_many_minima_as_with_scipy(x64):
    optimize = pytest.importorskip("scipy.optimize")
    t, phases = np.linspace(0.0, 4.0, 24), np.linspace(0, 2 * np.pi, 31)
    lower, upper = np.zeros(3), np.asarray([INF, INF, 2 * np.pi])

    def residuals(p, phase, t, np):
        return p[0] * np.sin(2 * np.pi * p[1] * t + p[2]) - np.sin(2 * np.pi * t + phase)

    def scipy(phase, start):
        args, x0 = (phase, t, np), [1.0, 1.0, start]
        return optimize.least_squares(residuals, x0, bounds=(lower, upper), args=args).cost

    with jax.enable_x64(x64):
        time, box = jnp.asarray(t), (jnp.asarray(lower), jnp.asarray(upper))

        @jax.jit
        @jax.vmap
        def solve(phase, start):
            return fnopt.least_squares(
                lambda p: residuals(p, phase, time, jnp), jnp.stack([1.0, 1.0, start]), bounds=box
            )

        starts = np.asarray([0.5, 1.0, 3.0, 6.0])
        end = solve(*map(jnp.asarray, (np.tile(phases, 4), np.repeat(starts, 31))))
    x, cost = np.asarray(end.params, float), np.asarray(end.cost).reshape(4, 31)
    assert np.all((x >= lower) & (x <= np.asarray(box[1])))
    want = [[scipy(phase, start) for phase in phases] for start in starts]
    wrong, others = ((np.asarray(c) > 1e-6).sum(axis=1) for c in (cost, want))
    assert np.all(wrong <= others), (wrong, others)
    # What is left are minima on a bound: the cost pushes the phase out, and no amplitude is 0.
    assert np.all(x[cost.ravel() > 1e-6, 0] > 0.1)


@pytest.mark.parametrize("name", ["cholesky", "cg"])
def test_other_linear_algebra_keeps_bounds_too(name, x64):
    @jax.jit
    def solve(start, lower, upper):
        solver = fnopt.levenberg_marquardt(linear_solver=name)
        return fnopt.least_squares(decay, start, bounds=(lower, upper), solver=solver)

    for _, _, *case in CASES[:3]:
        start, lower, upper = map(jnp.asarray, case)
        got, want = solve(start, lower, upper), solve_decay(start, lower, upper)
        assert bool(got.converged), got.message
        np.testing.assert_allclose(got.params, want.params, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(got.at_bound, want.at_bound)
        assert int(got.nfev) <= 40


@pytest.mark.parametrize("name", ["cholesky", "cg"])
def test_few_residuals_of_many_params_within_bounds(name):
    # Of twelve params nine end on their bounds: fewer are left than there are residuals.
    A = jnp.asarray(np.random.default_rng(3).standard_normal((4, 12)), jnp.float32)
    solver = fnopt.levenberg_marquardt(linear_solver=name)
    end = fnopt.least_squares(
        lambda p: A @ p - jnp.arange(4.0), jnp.zeros(12), bounds=(-0.3, 0.3), solver=solver
    )
    assert bool(end.converged), end.message
    slope, side = np.asarray(A.T @ end.residuals), np.asarray(end.at_bound)
    np.testing.assert_allclose(slope[side == 0], 0, atol=1e-5)
    assert np.sum(side != 0) == 9
    assert np.all(slope * side <= 0)  # the cost pushes them against their bounds


def test_a_robust_fit_within_bounds_agrees_with_scipy(x64):
    optimize = pytest.importorskip("scipy.optimize")
    y = Y + 2.0 * (np.arange(25) % 6 == 0)
    start, bounds = [1.5, 0.8, 0.45], ([0.0, 0.0, 0.4], [5.0, 5.0, 5.0])
    want = optimize.least_squares(
        lambda p: p[0] * np.exp(-p[1] * T) + p[2] - y,
        start,
        bounds=bounds,
        loss="cauchy",
        f_scale=0.2,
        ftol=1e-15,
        xtol=1e-15,
        gtol=1e-12,
        max_nfev=2000,
    )
    got = fnopt.least_squares(
        lambda p: decay(p, y=y),
        jnp.asarray(start),
        bounds=bounds,
        loss=fnopt.residuals.cauchy(scale=0.2),
    )
    assert bool(got.converged), got.message
    np.testing.assert_allclose(got.cost, want.cost, rtol=1e-8)
    np.testing.assert_allclose(got.params, want.x, rtol=1e-4)


def test_many_params_on_their_bounds(x64):
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((30, 10)), rng.standard_normal(30)
    want = optimize.lsq_linear(A, b, (-0.1, 0.1), tol=1e-14)
    got = fnopt.least_squares(lambda p: A @ p - b, jnp.zeros(10), bounds=(-0.1, 0.1))
    np.testing.assert_allclose(got.params, want.x, rtol=1e-9)
    assert int(got.nfev) <= 15


def test_bounds_beside_a_tied_param_in_and_out_of_jit():
    x = jnp.linspace(0.0, 1.0, 9)
    start = {"a": 1.0, "b": 0.5, "c": 0.1}

    def solve(most):
        return fnopt.least_squares(
            lambda p: p["a"] * x + p["b"] + p["c"] - (2 * x + 1),
            start,
            bounds=({"a": 0.0, "b": None, "c": None}, {"a": most, "b": None, "c": None}),
            constraints={"c": fnopt.tied(lambda p: 0.25 * p["b"])},
        ).params

    for fit in (solve(1.5), jax.jit(solve)(1.5)):
        # With a at 1.5 the rest is the mean of 0.5 x + 1, of which b is four fifths.
        np.testing.assert_allclose([fit["a"], fit["b"], fit["c"]], [1.5, 1.0, 0.25], rtol=1e-5)


def test_bounds_are_checked_before_anything_is_traced():
    with pytest.raises(ValueError, match=r"starts at 2\.0, outside its bounds"):
        fnopt.least_squares(lambda p: p, jnp.asarray(2.0), bounds=(0.0, 1.0))
    with pytest.raises(ValueError, match="leaf 'a' has both bounds and the constraint positive"):
        fnopt.least_squares(
            lambda p: p["a"], {"a": 1.0}, bounds=(0.5, 2.0), constraints={"a": fnopt.positive()}
        )


def test_equal_bounds_take_no_part_in_the_covariance():
    x = np.linspace(0, 4, 20)
    y = 3 * np.exp(-0.7 * x) + 0.5 + 0.05 * np.cos(9 * x)

    def residuals(p, c=None):
        return p[0] * jnp.exp(-p[1] * x) + (p[2] if c is None else c) - y

    with jax.enable_x64(True):
        start, bounds = jnp.asarray([2.0, 1.0, 0.2]), ([0.0, 0.0, 0.2], [9.0, 9.0, 0.2])
        end = fnopt.least_squares(residuals, start, bounds=tuple(map(jnp.asarray, bounds)))
        fewer = fnopt.least_squares(lambda p: residuals(p, 0.2), start[:2])
        errors, expected = map(np.asarray, map(fnopt.standard_errors, (end, fewer)))
    assert (int(end.rank), int(end.dof)) == (2, 18)
    assert not end.certificate.undetermined.any()
    np.testing.assert_allclose(errors, [*expected, 0], rtol=1e-6)
    with jax.enable_x64(True):
        assert "rank" not in str(end)
