import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.residuals import (
    RobustCost,
    arctan,
    barron,
    cauchy,
    huber,
    named_loss,
    robust_cost,
    robust_slopes,
    soft_l1,
    tukey,
)

Z = np.asarray([0.0, 1e-9, 0.3, 0.99, 1.7, 25.0, 1e6])


def _general(alpha):
    b = abs(alpha - 2)
    return lambda z: 2 * b / alpha * ((z / b + 1) ** (alpha / 2) - 1)


# The formulas as they are published, in float64.
FORMULAS = [
    (soft_l1(), lambda z: 2 * (np.sqrt(1 + z) - 1)),
    (huber(), lambda z: np.where(z <= 1, z, 2 * np.sqrt(z) - 1)),
    (cauchy(), lambda z: np.log(1 + z)),
    (arctan(), np.arctan),
    (tukey(), lambda z: np.where(z <= 1, (1 - (1 - z) ** 3) / 3, 1 / 3)),
    (barron(alpha=1.5), _general(1.5)),
    (barron(alpha=-2.0), _general(-2.0)),
    (barron(alpha=0.0), lambda z: 2 * np.log(z / 2 + 1)),
    (barron(alpha=2.0), lambda z: z),
    (barron(alpha=-np.inf), lambda z: 2 - 2 * np.exp(-z / 2)),
]


@pytest.mark.parametrize(("loss", "formula"), FORMULAS, ids=lambda x: repr(x)[:24])
def test_losses_are_the_published_formulas(loss, formula, x64):
    rho, slope, bend = jax.jit(robust_slopes)(loss, jnp.asarray(Z))
    np.testing.assert_allclose(rho, formula(Z), rtol=1e-6, atol=1e-15)
    away = (Z > 0.1) & (Z < 1e3)
    z = Z[away]
    central = (formula(1.00001 * z) - formula(0.99999 * z)) / (2e-5 * z)
    np.testing.assert_allclose(slope[away], central, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(slope[0], 1, rtol=1e-12)
    assert np.all(np.isfinite(bend))


def test_the_model_has_the_gradient_of_the_cost_and_its_curvature_where_that_is_positive(x64):
    losses = RobustCost((cauchy(scale=0.5), None, huber(scale=2.0)), (4, 1, 2))
    r = jnp.asarray([0.1, 0.4, -0.7, 30.0, 5.0, 1.0, -9.0])
    model = losses.corrected(lambda x: x)
    slope, H, value, J = jax.jit(
        lambda r: (
            jax.grad(losses.cost)(r),
            jax.hessian(losses.cost)(r),
            model(r),
            jax.jacfwd(model)(r),
        )
    )(r)
    bend = jnp.diagonal(H)
    np.testing.assert_allclose(value @ J, slope, rtol=1e-12)
    convex = np.asarray(bend) > 0.6 * np.asarray(slope / r)  # the floor under the curvature
    np.testing.assert_allclose(jnp.diagonal(J.T @ J)[convex], bend[convex], rtol=1e-12)
    assert np.all(jnp.diagonal(J.T @ J) > 0)


def test_the_slope_of_far_outliers_keeps_its_digits():
    z = np.asarray([1e3, 1e6, 1e12], np.float32)
    _, slope, _ = robust_slopes(barron(alpha=-2.0), jnp.asarray(z))  # Geman and McClure's
    np.testing.assert_allclose(slope, (z.astype(np.float64) / 4 + 1) ** -2, rtol=1e-5)
    _, slope, _ = robust_slopes(barron(alpha=-np.inf), jnp.asarray([60.0, 120.0]))
    np.testing.assert_allclose(slope, np.exp([-30.0, -60.0]), rtol=1e-5)


def test_an_infinite_scale_is_plain_squares():
    losses = RobustCost((cauchy(scale=np.inf), huber(scale=1e30)), (2, 2))
    r = jnp.asarray([3.0, -1e-12, 4.0, 0.0])
    assert float(losses.cost(r)) == 12.5
    assert float(losses.reduction(r, 0 * r)) == 12.5
    np.testing.assert_array_equal(jax.grad(losses.cost)(r), r)
    np.testing.assert_array_equal(losses.corrections(r), np.ones((2, 4)))


T = np.linspace(0, 4, 40, dtype=np.float32)
OUTLIERS = np.where(np.arange(40) % 5 == 2, 2 + np.sin(np.arange(40)), 0)
DATA = np.float32(3 * np.exp(-0.8 * T) + 0.03 * np.cos(31 * T) + OUTLIERS)


@jax.jit
def robust_decay(alpha, unit, scale, y):
    return fnopt.least_squares(
        lambda p: unit * p[0] * jnp.exp(-p[1] * T) - y,
        jnp.asarray([2.5, 1.0]),
        loss=barron(alpha=alpha, scale=scale),
    )


@pytest.mark.parametrize("alpha", [1.0, 0.0, -2.0, -np.inf])
def test_the_unit_of_robust_residuals_does_not_matter(alpha):
    plain = robust_decay(np.float32(alpha), np.float32(1), np.float32(0.3), DATA)
    for unit in (1e-24, 1e20):
        end = robust_decay(*np.float32([alpha, unit, 0.3 * unit]), np.float32(unit) * DATA)
        assert bool(end.converged), (unit, end.message)
        np.testing.assert_allclose(end.params, plain.params, rtol=1e-3)


@pytest.mark.parametrize("alpha", [0.0, -2.0, -np.inf])
def test_values_that_stand_for_missing_ones_are_outliers(alpha):
    # Their scaled squares are out of range.
    y = np.where(np.arange(40) % 13 == 5, np.float32(1e36), DATA - np.float32(OUTLIERS))
    end = robust_decay(*np.float32([alpha, 1, 0.3]), y)
    assert bool(end.converged), end.message
    np.testing.assert_allclose(end.params, [3, 0.8], rtol=0.05)


@pytest.mark.parametrize("where", [[39], [7, 20, 33], [0], [0, 1]], ids=str)
def test_the_pull_of_an_outlier_does_not_grow_with_it(where):
    # That of soft L1 is its scale, whatever the outlier: the fit is the same from 1e4 scales on.
    ends = []
    for size in (3e3, 1e6, 1e20):
        y = DATA - np.float32(OUTLIERS)
        y[where] += np.float32(size)
        ends.append(robust_decay(*np.float32([1, 1, 0.3]), y))
    for end in ends:
        assert bool(end.converged), end.message
        np.testing.assert_allclose(end.params, ends[0].params, rtol=2e-3)


def test_small_reductions_of_the_cost_keep_their_digits():
    # Four digits of float32 remain of a difference of costs that agree in all but the last.
    losses = RobustCost((soft_l1(scale=0.5),), (3,))
    r = jnp.asarray([1.0, -2.0, 0.25])
    after = r * jnp.float32(1 - 2**-20)
    z = (np.asarray(r, np.float64) / 0.5) ** 2
    z_after = (np.asarray(after, np.float64) / 0.5) ** 2
    exact = 0.25 * np.sum(np.sqrt(1 + z) - np.sqrt(1 + z_after))
    np.testing.assert_allclose(losses.reduction(r, after), exact, rtol=1e-5)


def test_losses_are_laid_along_the_residuals():
    tree = {"a": [jnp.ones(3), jnp.ones((2, 2), jnp.complex64)], "b": jnp.ones(1)}
    cost = robust_cost({"a": huber(scale=0.1), "b": None}, tree)
    assert cost.sizes == (3, 8, 1)
    assert cost.losses == (huber(scale=0.1), huber(scale=0.1), None)
    assert robust_cost(None, tree) is None
    assert named_loss("linear") is None


BAD = [
    (huber, TypeError, "Did you forget to call it"),
    (3.0, TypeError, "loss = 3.0, expected a robust loss such as"),
    ("squared", ValueError, "loss = 'squared', expected one of"),
    ([huber()] * 3, ValueError, "`loss` has the leaves"),
    (
        [huber(np.ones(3)), None],
        ValueError,
        r"loss: scale has shape \(3,\), expected \(\) .* \(2,\)",
    ),
    (barron(np.ones(3)), ValueError, r"loss: alpha has shape \(3,\)"),
]


@pytest.mark.parametrize(("loss", "error", "text"), BAD)
def test_what_is_no_loss_is_refused(loss, error, text):
    with pytest.raises(error, match=text):
        robust_cost(loss, [jnp.ones(2), jnp.ones(1)])


def test_outliers_with_params_of_their_own_do_not_hold_up_the_others():
    # An ellipse with an angle for each point: those of the two outliers bend by next to nothing.
    rng = np.random.default_rng(7)
    angles, own = rng.uniform(0.3, 5, 20), 5

    def on_ellipse(p):
        x, y = p[2] * jnp.cos(p[own:]), p[3] * jnp.sin(p[own:])
        c, s = jnp.cos(p[4]), jnp.sin(p[4])
        return jnp.stack([p[0] + c * x - s * y, p[1] + s * x + c * y], axis=-1)

    truth = np.concatenate([[1, -0.5, 3, 1.5, 0.5], angles])
    points = np.asarray(on_ellipse(truth)) + 0.05 * rng.standard_normal((20, 2))
    points[::10] += rng.standard_normal((2, 2))
    x, y = (points - points.mean(0)).T
    start = np.concatenate([points.mean(0), [2.4, 1.6, 0.2], np.arctan2(y, x)])
    end = fnopt.least_squares(
        lambda p: on_ellipse(p) - points.astype(np.float32),
        jnp.asarray(start, jnp.float32),
        loss=soft_l1(scale=0.1),
    )
    assert bool(end.converged), end.message
    np.testing.assert_allclose(end.cost, 0.15067, rtol=1e-3)
    assert int(end.nfev) < 60


@pytest.mark.parametrize("loss", ["soft_l1", "huber", "cauchy"])
def test_outliers_do_not_send_the_first_step_across_a_pole(loss):
    """Michaelis and Menten's curve from ones: with weaker curvatures 5, 7 and 13 of 20 stayed."""
    t = jnp.linspace(0.1, 10.0, 20)

    def curve(p):
        return p[0] * t / (p[1] + t)

    rng = np.random.default_rng(0)
    y = np.asarray(curve(jnp.asarray([2.0, 1.5]))) + 0.03 * rng.standard_normal((20, 20))
    y[:, ::7] += 0.45 * rng.choice([-1, 1.5], (20, 3))

    def fit(y):
        return fnopt.least_squares(lambda p: curve(p) - y, jnp.ones(2), loss=loss, f_scale=0.06)

    ends = jax.jit(jax.vmap(fit))(jnp.asarray(y, jnp.float32))
    assert int(jnp.sum(ends.params[:, 1] > 0)) >= 16
