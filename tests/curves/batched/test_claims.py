"""Claims of convergence in a batch: none where the cost falls on."""

import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.curves.batched import curve_fit_batch

X = np.linspace(0.1, 10.0, 40, dtype=np.float32)
NOISE = np.float32(0.02) * np.sin(np.arange(40) ** 2, dtype=np.float32)

# Heights, centers and widths. A narrow Lorentzian beside the data is a power of the distance, of
# which only a w^2 counts.
LORENTZIANS = [[5, 4, 1], [261, 125, 0.15], [81, 198, 0.116], [12, 99, 0.038], [24, 29, 0.047]]


def test_lorentzians_beside_the_data_are_undetermined():
    y = np.tile(5 / (1 + np.square(X - 4)) + NOISE, (5, 1))
    fit = curve_fit_batch(
        lambda x, a, c, w: a / (1 + jnp.square((x - c) / w)),
        X,
        y,
        np.float32(LORENTZIANS),
        fallback=False,
    )
    cost, claimed = np.asarray(fit.cost), np.asarray(fit.converged)
    assert claimed[0]
    # Gaussians there have full rank ("Known limits" in docs/performance.md).
    marked = np.any(np.asarray(fit.undetermined), axis=1)
    assert not np.any(claimed & ~marked & (cost > 1.001 * cost[0])), (cost, claimed, marked)


def test_params_that_cannot_be_told_apart_anywhere_are_claimed():
    starts = np.float32([[1, 2, 0.3], [0.3, 20, 2], [4, 0.2, 0.9]])
    y = np.tile(3 * np.exp(-X / 2) + NOISE, (3, 1))
    fit = curve_fit_batch(lambda x, a, b, c: a * b * jnp.exp(-c * x), X, y, starts, fallback=False)
    assert np.all(fit.converged), fit.message
    np.testing.assert_array_equal(fit.rank, 2)
    np.testing.assert_array_equal(fit.undetermined, [[True, True, False]] * 3)
    np.testing.assert_allclose(fit.params[:, 0] * fit.params[:, 1], 3, rtol=0.02)
    np.testing.assert_allclose(fit.params[:, 2], 0.5, rtol=0.02)


def test_exact_data_leave_no_doubt():
    # Nothing but rounding could be gained elsewhere: the claims stand at once.
    starts = np.float32([[1, 2, 0.3], [0.3, 20, 2], [4, 0.2, 0.9]])
    y = np.tile(3 * np.exp(-X / 2), (3, 1))
    fit = curve_fit_batch(lambda x, a, b, c: a * b * jnp.exp(-c * x), X, y, starts, fallback=False)
    assert np.all(fit.converged), fit.message
    np.testing.assert_array_equal(fit.rank, 2)
    assert np.all(fit.steps < 20)


PULLS = {
    "huber": lambda r: (np.clip(r, -1, 1), np.abs(r) < 1),
    "soft_l1": lambda r: (r / np.sqrt(1 + r**2), (1 + r**2) ** -1.5),
}


@pytest.mark.parametrize("loss", PULLS)
def test_outliers_of_any_size_hide_no_others(loss):
    # Their pull is the scale of the loss, however far they are. A Newton step in float64, by the
    # closed forms of the pull and its slope, would still move the params by less than the errors.
    rng = np.random.default_rng(0)
    sizes = np.float32([0, 3e3, 1e5, 3e6, 1e20])
    y = np.tile(3 * np.exp(-X / 2) + NOISE, (30, 1))
    for k, row in enumerate(y):
        row[rng.choice(np.arange(5, 40), 5, replace=False)] += sizes[k % 5] * rng.uniform(-3, 3, 5)

    def model(x, a, b):
        return a * jnp.exp(-b * x)

    fit = curve_fit_batch(model, X, y, (2.5, 1.0), loss=loss, f_scale=0.3, fallback=False)
    assert np.all(fit.converged), fit.message
    for (a, b), row in zip(np.asarray(fit.params, float), y.astype(float), strict=True):
        J = np.stack([np.exp(-b * X), -a * X * np.exp(-b * X)], 1)
        pull, slope = PULLS[loss]((a * np.exp(-b * X) - row) / 0.3)
        step = np.linalg.solve((slope[:, None] * J).T @ J, J.T @ (0.3 * pull))
        assert np.all(np.abs(step) < 1e-2 * fit.errors[0]), (a, b, step)


RATES = np.float32([100, 300, 500, 700, 1e3, 1e4, 1e6])


@pytest.fixture(scope="module", params=[False, True], ids=["batch", "fallback"])
def fast_decays(request):
    """Fits of a decay from rates at which the column of the rate, or its square, is zero."""
    x = np.linspace(0, 4, 60, dtype=np.float32)
    y = 2.5 * np.exp(-1.3 * x) + 0.5 + np.float32(0.02) * np.sin(np.arange(60) ** 2)
    starts = np.stack([np.ones_like(RATES), RATES, np.full_like(RATES, 0.1)], axis=1)

    def decay(x, a, k, c):
        return a * jnp.exp(-k * x) + c

    data = np.tile(y.astype(np.float32), (len(RATES), 1))
    return curve_fit_batch(decay, x, data, starts, fallback=request.param)


def test_a_column_whose_square_underflows_is_not_claimed(fast_decays):
    solved = np.asarray(fast_decays.cost) < 0.02  # 10 where the rate has no effect
    marked = np.any(np.asarray(fast_decays.undetermined), axis=1)
    assert np.all(~np.asarray(fast_decays.converged) | solved | marked), fast_decays.message
    assert np.all(np.asarray(fast_decays.converged)[solved])
    assert solved[0]


def test_a_param_that_the_model_does_not_read_is_marked():
    y = np.tile(3 * np.exp(-X / 2) + NOISE, (2, 1))

    def model(x, a, k, unread):
        return a * jnp.exp(-k * x)

    fits = curve_fit_batch(model, X, y, (2.0, 1.0, 1.0), fallback=False)
    assert np.all(fits.converged), fits.message
    np.testing.assert_array_equal(fits.rank, 2)
    np.testing.assert_array_equal(fits.undetermined, [[False, False, True]] * 2)
    np.testing.assert_allclose(fits.params[:, 1], 0.5, rtol=0.02)
