"""The report of residuals by leaf, against sums of NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

SEEN = np.random.default_rng(0).normal(size=(3, 5, 2)).astype("f")
SEEN[1, 2] = 30, -40


def residuals(x):
    return {"seen": x[:2] - SEEN, "wave": jax.lax.complex(x, 2 * x), "none": jnp.zeros((0, 2))}


def test_costs_and_the_largest_observations_of_weighted_residuals():
    sigma = {"seen": 0.5, "wave": 1.0, "none": 1.0}
    fit = fnopt.least_squares(residuals, jnp.ones(3), sigma=sigma, loss="cauchy")
    report = fit.residual_report(3)
    r = jax.tree.map(np.asarray, residuals(fit.params))
    squares = {"seen": np.sum((r["seen"] / 0.5) ** 2), "wave": np.sum(np.abs(r["wave"]) ** 2)}
    assert [leaf.name for leaf in report.leaves] == ["seen", "wave", "none"]
    for leaf, size in zip(report.leaves, (30, 3, 0), strict=True):
        square = squares.get(leaf.name, 0)
        np.testing.assert_allclose(leaf.cost, square / 2, rtol=1e-5)
        np.testing.assert_allclose(leaf.rms, np.sqrt(square / max(size, 1)), rtol=1e-5)
        assert leaf.size == size
    # The costs are sums of squares; the robust cost of the fit is smaller.
    assert fit.cost < 0.5 * sum(leaf.cost for leaf in report.leaves)
    norms = np.linalg.norm(r["seen"] / 0.5, axis=-1)
    order = np.argsort(-norms, axis=None)[:3]
    assert {seen.name for seen in report.largest} == {"seen"}
    expected = np.stack(np.unravel_index(order, (3, 5)), 1)
    np.testing.assert_array_equal([seen.index for seen in report.largest], expected)
    np.testing.assert_allclose([x.norm for x in report.largest], norms.ravel()[order], rtol=1e-5)
    assert report.largest[0].index == (1, 2)
    assert "\n  seen[1, 2]" in str(report)


def test_a_residual_of_nan_or_infinity_comes_first():
    fit = fnopt.least_squares(lambda x: x - jnp.asarray([0, jnp.nan, 3, jnp.inf]), jnp.float32(1))
    assert [seen.index for seen in fit.residual_report().largest] == [(1,), (3,), (2,), (0,)]
    scalar = fnopt.least_squares(lambda x: x - 1, jnp.float32(1)).residual_report()
    assert scalar.largest == (("r", (), 0.0),)
    assert "nan" not in str(scalar)


@pytest.mark.parametrize(("count", "error"), [(-1, ValueError), (1.5, TypeError)])
def test_a_count_that_is_no_count_is_refused(count, error):
    fit = fnopt.least_squares(lambda x: x - 1, jnp.ones(2))
    with pytest.raises(error, match=f"residual_report: count is {count}, expected"):
        fit.residual_report(count)
    assert fit.residual_report(0).largest == ()


def test_traced_solutions_and_batches_are_refused():
    def fit(a):
        return fnopt.least_squares(lambda x: x - a, jnp.float32(1))

    with pytest.raises(TypeError, match="the solution is traced, expected"):
        jax.jit(lambda a: fit(a).residual_report())(1.0)
    with pytest.raises(TypeError, match=r"batch of problems.*x\[i\], solutions"):
        jax.vmap(fit)(jnp.ones(2)).residual_report()
