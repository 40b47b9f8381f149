"""Least squares on narrow bands, without a pattern and without a full matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fnopt


def smoother(y, stiffness):
    """Whittaker's: near the data, and of small second differences."""

    def residuals(z):
        return {"data": z - y, "second_derivative": stiffness * (z[2:] - 2 * z[1:-1] + z[:-2])}

    return residuals


def solved(w, y, stiffness):
    """Its minimum by SciPy's banded solver: the normal equations have two diagonals aside."""
    linalg = pytest.importorskip("scipy.linalg")
    n = y.size
    stencil = np.asarray([1.0, -2.0, 1.0])
    G = np.zeros((3, n))  # G[k, j] is the entry k below the diagonal of column j
    G[0] = w
    for k in range(3):
        for i in range(3 - k):
            G[k, i : n - 2 + i] += stiffness**2 * stencil[i] * stencil[i + k]
    return linalg.solveh_banded(G, w * y, lower=True)


def test_a_large_ill_conditioned_fit_with_gaps_is_solved_in_little_memory(x64):
    # The normal equations have the condition number 3e7; conjugate gradients get nowhere.
    n, stiffness = 10_000, 1e3
    y = np.sin(np.linspace(0, 9, n)) + 0.3 * np.cos(np.arange(n) ** 2)
    w = np.ones(n)
    w[100:110] = 0
    fn = smoother(jnp.asarray(np.where(w > 0, y, np.nan)), stiffness)
    weights = {"data": jnp.asarray(w), "second_derivative": jnp.asarray(2.0)}

    def solve(z):
        return fnopt.least_squares(fn, z, jac=fnopt.sparse_jacobian(fn), weights=weights)

    compiled = jax.jit(solve).lower(jnp.zeros(n)).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 8 * n * n / 32  # of the size of a matrix
    fit = compiled(jnp.zeros(n))
    assert bool(fit.converged)
    np.testing.assert_allclose(fit.params, solved(w, y, np.sqrt(2) * stiffness), atol=1e-6)
    assert fit.jacobian is None
    assert fit.rank == -1


def rotated(w, x):
    """Rodrigues' rotation by a vector."""
    angle = jnp.sqrt(jnp.sum(w**2) + 1e-12)
    axis = w / angle
    c, s = jnp.cos(angle), jnp.sin(angle)
    return c * x + s * jnp.cross(axis, x) + (1 - c) * axis * (axis @ x)


def pixel(camera, point):
    x, y, z = rotated(camera[:3], point) + camera[3:6]
    return 500 * jnp.stack([x, y]) / (z + 6)


def bundle(cameras=6, points=90):
    """Bundle adjustment: 306 unknowns, which is more than are solved by full matrices."""
    rng = np.random.default_rng(0)
    c, p = np.repeat(np.arange(cameras), points), np.tile(np.arange(points), cameras)
    seen_by = (rng.random(c.size) < 0.7) | (c < 2)
    c, p = c[seen_by], p[seen_by]
    truth = {"camera": 0.2 * rng.normal(size=(cameras, 6)), "point": rng.normal(size=(points, 3))}
    project = jax.vmap(pixel)
    seen = project(truth["camera"][c], truth["point"][p]) + 0.3 * rng.normal(size=(c.size, 2))
    seen = seen.at[0].add(40)  # an outlier

    def residuals(params):
        prior = 10 * (params["camera"] - truth["camera"])[:2]
        return {"pixel": project(params["camera"][c], params["point"][p]) - seen, "prior": prior}

    return residuals, jax.tree.map(
        lambda a: jnp.asarray(a + 0.05 * rng.normal(size=a.shape)), truth
    )


@pytest.mark.parametrize("case", ["robust", "bounded"])
def test_elimination_ends_where_the_conditions_of_a_minimum_hold(case, x64, monkeypatch):
    monkeypatch.setattr("fnopt.jacobians._elimination._LEVEL", 10**5)  # as of larger problems
    residuals, start = bundle()
    jac = fnopt.sparse_jacobian(residuals)
    assert jac.plan(start).left == 36
    start["point"] = jnp.clip(start["point"], -1.4, 1.4)
    options = {
        "robust": {"loss": fnopt.residuals.huber(2.0)},
        "bounded": {"bounds": ({"camera": None, "point": -1.5}, {"camera": None, "point": 1.5})},
    }
    fit = fnopt.least_squares(residuals, start, jac=jac, **options[case])
    assert bool(fit.converged)
    assert fit.jacobian is None  # not by a full matrix, with bounds neither

    @jax.jit
    def gradients(params):
        def cost(params):
            r = ravel_pytree(residuals(params))[0]
            huber = jnp.where(jnp.abs(r) <= 2, r**2, 4 * jnp.abs(r) - 4)
            return jnp.sum(huber if case == "robust" else r**2) / 2

        return jax.grad(cost)(params)

    steep = gradients(start)
    for name, g in gradients(fit.params).items():
        x = np.asarray(fit.params[name])
        held = (np.abs(x) == 1.5) & (case == "bounded")
        assert np.all(np.abs(g)[~held] <= 1e-6 * np.max(np.abs(steep[name])))
        assert np.all((g * x)[held] < 0)  # out of the box the cost falls
        assert np.sum(held) > 3 or name == "camera" or case == "robust"


def test_many_equations_by_their_sparse_jacobian(x64):
    # Bratu's equation -u'' = exp(u) / 2 with u(0) = u(1) = 0, whose solution has a closed form.
    n = 999
    h = 1 / (n + 1)

    def bratu(u, rate):
        padded = jnp.pad(u, 1)
        return padded[2:] - 2 * u + padded[:-2] + rate * h**2 * jnp.exp(u)

    jac = fnopt.sparse_jacobian(bratu)
    end = fnopt.root(bratu, jnp.zeros(n), (0.5,), jac=jac)
    assert bool(end.converged)
    # theta = sqrt(2 rate) cosh(theta / 4)
    theta = float(fnopt.root(lambda t: t - jnp.cosh(t / 4), 1.0).params)
    t = np.arange(1, n + 1) * h
    exact = -2 * np.log(np.cosh((t - 0.5) * theta / 2) / np.cosh(theta / 4))
    np.testing.assert_allclose(end.params, exact, atol=1e-6)  # of the discretisation
    without = fnopt.root(lambda u, rate: bratu(u, rate) + 1, jnp.zeros(n), (0.5,), jac=jac)
    assert not bool(without.converged)
