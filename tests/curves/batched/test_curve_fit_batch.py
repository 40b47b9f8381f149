import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.core import Status
from fnopt.curves.batched import curve_fit_batch
from fnopt.residuals import cauchy
from tests.curves.batched.problems import PROBLEMS, decay, gaussian, make

FITS = 30


def by_scipy(f, x, y, p0, **kwargs):
    """The params and covariances of each fit in float64, by MINPACK with exact derivatives."""
    optimize = pytest.importorskip("scipy.optimize")
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        value = jax.jit(lambda x, p: f(x, *p))
        jac = jax.jit(jax.jacfwd(lambda p, x: f(x, *p)))
        fits = [
            optimize.curve_fit(
                lambda x, *p: np.asarray(value(x, np.asarray(p))),
                x.astype(np.float64),
                row.astype(np.float64),
                start.astype(np.float64),
                jac=lambda x, *p: np.asarray(jac(np.asarray(p), x)),
                ftol=1e-15,
                xtol=1e-15,
                gtol=1e-15,
                maxfev=10000,
                **kwargs,
            )
            for row, start in zip(y, p0, strict=True)
        ]
    return np.stack([p for p, _ in fits]), np.stack([C for _, C in fits])


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_agrees_with_scipy(name, dtype):
    with jax.enable_x64(dtype == np.float64):
        f, x, y, p0 = make(name, FITS, dtype)
        fit = curve_fit_batch(f, x, y, p0)
    assert np.all(fit.converged), fit.message
    assert fit.params.dtype == fit.covariance.dtype == fit.cost.dtype == dtype
    params, covariance = by_scipy(f, x, y, p0)
    errors = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    # In units of the standard error, which is what the data can tell.
    off = np.abs(np.asarray(fit.params) - params) / errors
    assert np.max(off) < {np.float32: 5e-3, np.float64: 1e-6}[dtype]
    correlation = errors[:, :, None] * errors[:, None, :]
    worst = np.max(np.abs(np.asarray(fit.covariance) - covariance) / correlation)
    assert worst < {np.float32: 2e-3, np.float64: 1e-6}[dtype]
    np.testing.assert_allclose(fit.errors, errors, rtol={np.float32: 1e-3, np.float64: 1e-6}[dtype])


def test_sigma_for_each_point_and_fit():
    f, x, y, p0 = make("decay", 4)
    sigma = np.random.default_rng(1).uniform(0.5, 2, x.size).astype(np.float32)
    fit = curve_fit_batch(f, x, y, p0, sigma=sigma, absolute_sigma=True)
    params, covariance = by_scipy(f, x, y, p0, sigma=sigma, absolute_sigma=True)
    errors = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    assert np.max(np.abs(fit.params - params) / errors) < 1e-3
    np.testing.assert_allclose(fit.errors, errors, rtol=1e-3)
    # For each fit its own, in three spellings of the same.
    for spelling in (np.tile(sigma, (4, 1)), sigma[None]):
        again = curve_fit_batch(f, x, y, p0, sigma=spelling, absolute_sigma=True)
        np.testing.assert_allclose(again.params, fit.params, rtol=1e-4)
    doubled = curve_fit_batch(f, x, y, p0, sigma=np.full((4, 1), 2.0), absolute_sigma=True)
    single = curve_fit_batch(f, x, y, p0, sigma=1.0, absolute_sigma=True)
    np.testing.assert_allclose(doubled.covariance, 4 * single.covariance, rtol=1e-2)


def test_a_mask_leaves_points_out():
    f, x, y, p0 = make("decay", 6)
    mask = np.random.default_rng(2).uniform(size=y.shape) < 0.7
    spoiled = np.where(mask, y, np.nan)
    fit = curve_fit_batch(f, x, spoiled, p0, mask=mask)
    assert np.all(fit.converged)
    for i in range(6):
        kept = mask[i]
        params, covariance = by_scipy(f, x[kept], y[i : i + 1, kept], p0[i : i + 1])
        errors = np.sqrt(np.diagonal(covariance[0]))
        assert np.max(np.abs(fit.params[i] - params[0]) / errors) < 1e-3
        np.testing.assert_allclose(fit.errors[i], errors, rtol=2e-3)


def test_x_of_each_fit_and_a_tree_of_them():
    f, x, y, p0 = make("decay", 3)
    xs = np.tile(x, (3, 1))
    fit = curve_fit_batch(f, x, y, p0)
    np.testing.assert_allclose(
        curve_fit_batch(f, xs, y, p0, x_per_fit=True).params, fit.params, rtol=1e-4
    )
    tree = curve_fit_batch(lambda x, *p: f(x["t"], *p), {"t": xs}, y, p0, x_per_fit=True)
    np.testing.assert_allclose(tree.params, fit.params, rtol=1e-4)


def test_spellings_of_p0():
    f, x, y, p0 = make("decay", 5)
    fit = curve_fit_batch(f, x, y, p0)
    columns = curve_fit_batch(f, x, y, (p0[:, 0], jnp.asarray(p0[:, 1]), p0[:, 2]))
    np.testing.assert_array_equal(columns.params, fit.params)
    mixed = curve_fit_batch(f, x, y, (p0[:, 0], 1.0, 0))
    same = curve_fit_batch(f, x, y, [2.0, 1.0, 0.0])
    row = curve_fit_batch(f, x, y, np.asarray([2.0, 1.0, 0.0]))
    np.testing.assert_array_equal(same.params, row.params)
    for other in (mixed, same):
        np.testing.assert_allclose(other.params, fit.params, rtol=1e-3, atol=1e-3)


def test_a_tree_of_params_comes_back_as_it_was():
    f, x, y, p0 = make("decay", 5)
    start = {"amplitude": 2.0, "rest": jnp.asarray(p0[:, 1:])}
    fit = curve_fit_batch(lambda x, p: f(x, p["amplitude"], *p["rest"]), x, y, start)
    assert fit.params["amplitude"].shape == (5,)
    assert fit.params["rest"].shape == (5, 2)
    flat = curve_fit_batch(f, x, y, p0)
    np.testing.assert_allclose(fit.params["rest"], flat.params[:, 1:], rtol=1e-3, atol=1e-3)
    assert fit.covariance.shape == (5, 3, 3)


def bad_neighbors(y, p0):
    """Fits that fail in every way, between good ones."""
    y, p0 = y.copy(), p0.copy()
    y[1, 3] = np.nan
    y[4] = np.inf
    y[7] = 0  # no signal
    y[9] = 1.5  # constant
    p0[11] = np.nan
    p0[13, 2] = 0  # a width of zero: 0 / 0
    y[15] = 1e30  # constant, and its squares overflow
    return y, p0, np.asarray([1, 4, 7, 9, 11, 13, 15])


@pytest.mark.parametrize("chunk", [None, 8])
def test_failing_fits_disturb_nobody(chunk):
    f, x, y, p0 = make("gaussian", 20)
    p0[13, 1] = x[3]
    dirty_y, dirty_p0, bad = bad_neighbors(y, p0)
    # In both of them a fit needs units of its own: the program has none else, and rounds otherwise.
    y = np.where(np.arange(20)[:, None] == 15, dirty_y, y)
    clean = curve_fit_batch(f, x, y, p0, chunk=chunk)
    dirty = curve_fit_batch(f, x, dirty_y, dirty_p0, chunk=chunk)
    good = np.setdiff1d(np.arange(20), bad)
    # Bit for bit, as if the others were not there.
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[good], b[good]), clean, dirty)
    status = np.asarray(dirty.status)
    lost = np.asarray([1, 4, 11, 13])
    assert np.all(status[lost] == Status.NONFINITE_START)
    np.testing.assert_array_equal(dirty.params[lost], dirty_p0[lost])
    assert np.all(np.isfinite(dirty.params[jnp.asarray([7, 9, 15])]))
    assert not np.any(status == Status.RUNNING)
    assert np.all(np.isinf(dirty.covariance[lost]))


@pytest.mark.parametrize(("fits", "chunks"), [(1, [5]), (33, [1, 16])])
def test_any_number_of_fits_and_any_chunk(fits, chunks):
    f, x, y, p0 = make("decay", fits)
    reference = curve_fit_batch(f, x, y, p0, chunk=1000)
    for chunk in chunks:
        fit = curve_fit_batch(f, x, y, p0, chunk=chunk)
        assert np.all(fit.converged)
        np.testing.assert_allclose(fit.params, reference.params, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(fit.cost, reference.cost, rtol=1e-5)


def test_fits_do_not_depend_on_their_place():
    f, x, y, p0 = make("gaussian", 24)
    order = np.random.default_rng(5).permutation(24)
    fit = curve_fit_batch(f, x, y, p0, chunk=8)
    shuffled = curve_fit_batch(f, x, y[order], p0[order], chunk=8)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), fit, shuffled)


def test_what_the_data_do_not_determine_is_said():
    x = np.linspace(0, 1, 9).astype(np.float32)
    y = np.stack([2 * x, 3 * x])
    fit = curve_fit_batch(lambda x, a, b, c: (a + b) * x + 0 * c, x, y, (0.5, 0.5, 0.5))
    assert np.all(fit.converged)
    np.testing.assert_array_equal(fit.rank, [1, 1])
    np.testing.assert_allclose(fit.params[:, 0] + fit.params[:, 1], [2, 3], rtol=1e-5)
    np.testing.assert_array_equal(fit.params[:, 2], 0.5)
    assert np.all(np.isinf(fit.covariance))
    assert "don't determine all params" in str(fit)


def test_a_fit_without_points_keeps_its_start():
    f, x, y, p0 = make("decay", 3)
    mask = np.asarray([True, False, True])[:, None]
    fit = curve_fit_batch(f, x, y, p0, mask=mask)
    np.testing.assert_array_equal(fit.params[1], p0[1])
    assert fit.rank[1] == 0
    assert fit.status.tolist()[1] == Status.ILL_POSED
    assert fit.converged.tolist() == [True, False, True]
    assert np.all(np.isinf(fit.covariance[1]))
    assert np.all(np.isfinite(fit.covariance[0]))


def test_residuals_that_no_param_moves_are_no_success():
    def f(x, a):
        return jnp.maximum(a, 0.0) * x

    x = np.linspace(1, 2, 10, dtype=np.float32)
    y = np.stack([2 * x, 2 * x, 0 * x])
    p0 = np.asarray([[1.0], [-1.0], [-1.0]], np.float32)
    fit = curve_fit_batch(f, x, y, p0, fallback=False)
    assert fit.status.tolist()[1] == Status.ILL_POSED
    assert fit.converged.tolist() == [True, False, True]  # the last one has nothing left to explain
    assert fit.params[1, 0] == -1
    fit = curve_fit_batch(f, x, y, p0)
    assert fit.converged.tolist() == [True, False, True]
    assert fit.params[1, 0] == -1
    fit = curve_fit_batch(lambda x, a: 0 * a * x, x, y[:1], p0[:1])
    assert fit.status.tolist() == [Status.ILL_POSED]


def test_few_steps_are_said_and_nothing_is_lost():
    f, x, y, p0 = make("gaussian", 5)
    fit = curve_fit_batch(f, x, y, p0, max_steps=1, fallback=False)
    assert np.all(np.asarray(fit.status) == Status.MAX_STEPS)
    np.testing.assert_array_equal(fit.steps, 1)
    start = np.asarray(
        [0.5 * np.sum((np.asarray(f(x, *p)) - row) ** 2) for p, row in zip(p0, y, strict=True)]
    )
    assert np.all(fit.cost <= start * (1 + 1e-5))


def test_zero_residuals_converge():
    f, x, y, p0 = make("decay", 8, noise=0)
    fit = curve_fit_batch(f, x, y, p0)
    assert np.all(fit.converged), fit.message
    assert np.all(fit.cost < 1e-9)


def test_units_do_not_matter():
    f, x, y, p0 = make("decay", 4)
    units = np.float32(2.0**20)  # a power of two: the same digits
    fit = curve_fit_batch(f, x, y, p0)
    other = curve_fit_batch(lambda t, a, k, b: f(t, a, k, b / units), x, y, p0 * [1, 1, units])
    np.testing.assert_array_equal(other.params * np.float32([1, 1, 1 / units]), fit.params)


def test_units_whose_squares_are_out_of_range_of_float32():
    # One fit each in ordinary units, tiny, huge, and of params of both kinds; one starts at zero.
    f, x, y, p0 = make("decay", 4)
    y, p0 = np.repeat(y[:1], 4, axis=0), np.repeat(p0[:1], 4, axis=0)
    unit = np.asarray([1, 1e-24, 1e20, 1e-20], np.float32)
    times = np.asarray([1, 1, 1, 1e22], np.float32)
    p0 = p0 * np.stack([unit, 1 / times, unit], axis=1)
    p0[2, 2] = 0

    def model(x, a, k, b):
        return f(x["t"], a, k * x["time"], b)

    def solved(data, **options):
        at = {"t": np.broadcast_to(x, y.shape), "time": times}
        return curve_fit_batch(model, at, data, p0, x_per_fit=True, **options)

    size = np.stack([unit, 1 / times, unit], axis=1)

    @jax.jit  # where no value is known, units are looked for in the program
    def pushed(data):
        return jax.jvp(lambda d: solved(d).params, (data,), (data,))

    data = y * unit[:, None]
    fit = solved(data)
    assert np.all(fit.converged), fit.message
    np.testing.assert_allclose(fit.params / size, np.repeat(fit.params[:1], 4, 0), rtol=1e-4)
    # The square of a rate of 1e-22 is nothing in float32.
    exact = solved(data, sigma=0.05 * unit[:, None], absolute_sigma=True)
    for errors in (fit.errors, exact.errors):
        # So is that of an amplitude of 1e-24: errors aren't had from variances that underflow.
        np.testing.assert_allclose(errors / size, np.repeat(errors[:1], 4, 0), rtol=1e-3)
    params, moved = pushed(data)
    np.testing.assert_allclose(params / size, fit.params / size, rtol=1e-4)
    # Amplitudes are as large as the data, rates don't depend on that.
    np.testing.assert_allclose(moved / size, np.asarray(fit.params) / size * [1, 0, 1], atol=1e-3)


def test_robust_fits_whose_squares_are_out_of_range_of_float32():
    f, x, y, p0 = make("decay", 2)
    y = y + 3 * (np.arange(y.shape[1]) % 7 == 2)  # outliers

    @jax.jit
    def solved(unit):
        size = jnp.stack([unit, jnp.ones_like(unit), unit])
        loss = cauchy(scale=0.1 * unit)
        fit = curve_fit_batch(f, x, y * unit, p0 * size, loss=loss)
        return fit._replace(params=fit.params / size)

    plain = solved(np.float32(1))
    for unit in np.float32([1e-24, 1e20]):
        fit = solved(unit)
        assert np.all(fit.converged), fit.message
        np.testing.assert_allclose(fit.params, plain.params, rtol=1e-3)
        size = np.stack([unit, np.ones_like(unit), unit])
        np.testing.assert_allclose(fit.errors / size, plain.errors, rtol=1e-3)


def test_traces_once_for_the_same_function_and_shapes():
    calls = []

    def f(t, a, k, b):
        calls.append(1)
        return decay(t, a, k, b)

    _, x, y, p0 = make("decay", 4)
    curve_fit_batch(f, x, y, p0)
    count = len(calls)
    curve_fit_batch(f, x, y + 1, p0, ftol=1e-3)
    assert len(calls) == count + 1  # the check of shapes


def test_under_jit_and_compiled_ahead_of_time():
    f, x, y, p0 = make("gaussian", 6)
    fit = curve_fit_batch(f, x, y, p0)
    solve = jax.jit(lambda x, y, p0: curve_fit_batch(f, x, y, p0))
    compiled = solve.lower(x, y, p0).compile()(x, y, p0)
    # Another program, for numbers that aren't known may need units: each rounds for itself.
    assert np.all(compiled.converged)
    np.testing.assert_array_equal(compiled.rank, fit.rank)
    assert np.max(np.abs(compiled.params - fit.params) / fit.errors) < 0.01
    np.testing.assert_allclose(compiled.cost, fit.cost, rtol=1e-5)
    np.testing.assert_allclose(compiled.errors, fit.errors, rtol=2e-3)


def test_memory_does_not_grow_with_points_times_params():
    f, x, _, _ = make("gaussian", 1)
    fits = 100_000

    def solve(y, p0):
        return curve_fit_batch(f, x, y, p0)

    y = jax.ShapeDtypeStruct((fits, x.size), jnp.float32)
    p0 = jax.ShapeDtypeStruct((fits, 4), jnp.float32)
    memory = jax.jit(solve).lower(y, p0).compile().memory_analysis()
    # A batched Jacobian alone would take 4 times the data. (1.2 with JAX 0.10, 1.55 with 0.12.)
    assert memory.temp_size_in_bytes < 2 * fits * x.size * 4


def test_report_counts_how_fits_ended():
    f, x, y, p0 = make("decay", 4)
    y[2] = np.nan
    text = str(curve_fit_batch(f, x, y, p0))
    assert "4 fits" in text
    assert "1  failed: the residuals or their Jacobian are not finite" in text


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"f": 3}, TypeError, "expected a function"),
        ({"y": np.zeros(30)}, ValueError, "y has shape (30,)"),
        ({"y": np.zeros((3, 0))}, ValueError, "at least one point"),
        ({"y": np.zeros((3, 30), np.complex64)}, TypeError, "expected real data"),
        ({"p0": np.zeros((2, 3))}, ValueError, "p0 has shape (2, 3), expected [n]"),
        ({"p0": (np.zeros(2), 1.0, 1.0)}, ValueError, "a leading axis of length 3"),
        ({"p0": ()}, ValueError, "p0 contains no numbers"),
        ({"p0": np.ones(17)}, ValueError, "at most 16"),
        ({"sigma": -1.0}, ValueError, "not positive"),
        ({"sigma": np.ones(4)}, ValueError, "sigma has shape (4,)"),
        ({"mask": np.ones(30)}, TypeError, "expected a bool array"),
        ({"x_per_fit": True}, ValueError, "expected a leading axis of length 3"),
        ({"x": np.zeros((3, 30))}, ValueError, "pass x_per_fit=True"),
        ({"max_steps": 0}, ValueError, "max_steps is 0"),
        ({"chunk": 2.0}, TypeError, "chunk is 2.0"),
    ],
)
def test_wrong_arguments_are_named(change, error, words):
    given = {"f": decay, "x": np.zeros(30), "y": np.zeros((3, 30)), "p0": np.ones(3)} | change
    f, x, y, p0 = (given.pop(k) for k in ("f", "x", "y", "p0"))
    with pytest.raises(error, match="curve_fit_batch") as caught:
        curve_fit_batch(f if f != 3 else 3, x, y, p0, **given)
    assert words in str(caught.value)


def test_low_precision_data_are_computed_in_float32():
    _, x, y, p0 = make("gaussian", 3)
    fit = curve_fit_batch(gaussian, jnp.asarray(x), jnp.asarray(y, jnp.bfloat16), jnp.asarray(p0))
    assert fit.params.dtype == jnp.float32
    assert np.all(fit.converged)


@pytest.mark.parametrize("size", [1e-30, 1e35])
def test_the_cost_of_a_perfect_fit_far_from_one_is_zero(size):
    y = jnp.full((2, 16), size, jnp.float32)
    fits = curve_fit_batch(lambda t, a: a + 0 * t, jnp.arange(16.0), y, (np.float32(size),))
    np.testing.assert_array_equal(fits.cost, 0)


@pytest.mark.parametrize("bounds", [None, (-jnp.inf, jnp.inf)])
def test_errors_in_float32_of_params_with_large_variance_inflation(bounds):
    # A line far from the origin: the columns 1 and x have the condition number 4e3.
    x = 1000 + np.linspace(0, 1, 20, dtype=np.float32)
    y = 2 + 3 * (x - 1000) + 0.01 * np.random.default_rng(0).normal(size=(3, x.size))
    y = y.astype(np.float32)
    A = np.stack([np.ones(x.size), x.astype(np.float64)], axis=1)
    p, squares, *_ = np.linalg.lstsq(A, y.T.astype(np.float64), rcond=None)
    C = np.linalg.inv(A.T @ A) * squares[:, None, None] / (x.size - 2)

    fit = curve_fit_batch(lambda x, a, b: a + b * x, x, y, p.T.astype(np.float32), bounds=bounds)
    np.testing.assert_array_equal(fit.rank, 2)
    np.testing.assert_allclose(fit.covariance, C, rtol=5e-3)
