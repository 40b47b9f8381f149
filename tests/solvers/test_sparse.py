"""Least squares on narrow bands, without a pattern and without a full matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.jacobians import SparseJacobian
from fnopt.manifolds import SE2, on


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
    assert isinstance(fit.jacobian, SparseJacobian)
    assert fit.rank == n
    # One column of the inverse of the banded normal equations.
    unit = np.zeros(n)
    unit[4000] = 1 / max(w[4000], 1)
    variance = solved(w, unit, np.sqrt(2) * stiffness)[4000]
    C = fnopt.covariance(fit, absolute_sigma=True, of=lambda z: z[4000])
    np.testing.assert_allclose(C, [[variance]], rtol=1e-7)


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
    root = 10 * np.triu(np.full((6, 6), 0.1) + np.eye(6))
    known = fnopt.prior(truth["camera"][:2], root)

    def pixels(params):
        return project(params["camera"][c], params["point"][p]) - seen

    def residuals(params):
        return {"pixel": pixels(params), "prior": known(params["camera"][:2])}

    def cost(params):  # the prior is a normal density with the information matrix A^T A
        error = params["camera"][:2] - truth["camera"][:2]
        prior = jnp.einsum("ki,ij,kj->", error, root.T @ root, error)
        return (jnp.sum(pixels(params) ** 2) + prior) / 2

    start = jax.tree.map(lambda a: jnp.asarray(a + 0.05 * rng.normal(size=a.shape)), truth)
    return residuals, cost, start


def test_bounds_and_a_prior_with_elimination_end_where_the_conditions_of_a_minimum_hold(x64):
    residuals, cost, start = bundle()
    jac = fnopt.sparse_jacobian(residuals)
    assert jac.plan(start).left == 36
    start["point"] = jnp.clip(start["point"], -1.4, 1.4)
    bounds = {"camera": None, "point": -1.5}, {"camera": None, "point": 1.5}
    fit = fnopt.least_squares(residuals, start, jac=jac, bounds=bounds)
    assert bool(fit.converged)
    assert isinstance(fit.jacobian, SparseJacobian)  # not by a full matrix, with bounds neither
    assert "\n  steps by elimination of 270 unknowns, Cholesky factorization of 36\n" in str(fit)

    gradients = jax.jit(jax.grad(cost))
    steep = gradients(start)
    for name, g in gradients(fit.params).items():
        x = np.asarray(fit.params[name])
        held = np.abs(x) == 1.5
        assert np.all(np.abs(g)[~held] <= 1e-6 * np.max(np.abs(steep[name])))
        assert np.all((g * x)[held] < 0)  # out of the box the cost falls
        assert np.sum(held) > 3 or name == "camera"


def loop(poses=90):
    """A planar pose graph with closures, an unknown unit of length, and a false closure."""
    rng = np.random.default_rng(1)
    turn = np.linspace(0, 4 * np.pi, poses)
    truth = SE2.retract(jnp.eye(3), jnp.stack([5 * np.cos(turn), 5 * np.sin(turn), turn], -1))
    half = np.arange(poses // 2)
    i, j = np.r_[np.arange(poses - 1), half], np.r_[np.arange(1, poses), half + poses // 2]
    noise = 0.01 * rng.normal(size=(i.size, 3))
    noise[-1] = 3.0
    seen = SE2.retract(SE2.inverse(truth[i]) @ truth[j], noise)

    def residuals(p):
        T = jnp.concatenate([p["first"].value[None], p["rest"].value])
        error = SE2.local(seen, SE2.inverse(T[i]) @ T[j])
        scaled = p["unit"] * T[1:, :2, 2] / p["metres"]  # the same number, tied
        return {"edges": error, "unit": 10 * (p["unit"] - 2.0), "at": 0.1 * scaled}

    start = SE2.retract(truth, 0.1 * rng.normal(size=(poses, 3)))
    return residuals, {
        "first": on(SE2, truth[0]),
        "metres": 1.0,
        "rest": on(SE2, start[1:]),
        "unit": 1.0,
    }


def test_params_on_manifolds_fixed_and_tied_are_eliminated(x64, monkeypatch):
    monkeypatch.delattr("fnopt.solvers.linear_model._krylov.KrylovModel.evaluate")
    residuals, start = loop()
    jac = fnopt.sparse_jacobian(residuals)
    plan = jac.plan(start)
    assert plan.order.size == 272  # three for each pose
    assert plan.sparse
    fit = fnopt.least_squares(
        residuals,
        start,
        jac=jac,
        solver=fnopt.levenberg_marquardt(geodesic=False),
        loss={"edges": "cauchy", "unit": None, "at": None},
        constraints={"first": fnopt.fixed(), "metres": fnopt.tied(lambda p: p["unit"])},
    )
    assert bool(fit.converged)
    np.testing.assert_array_equal(fit.params["first"].value, start["first"].value)
    np.testing.assert_allclose(fit.params["metres"], 2.0)

    def cost(tangents, params):
        r = residuals({**params, "rest": on(SE2, SE2.retract(params["rest"].value, tangents))})
        return jnp.sum(jnp.log1p(r["edges"] ** 2)) / 2 + jnp.sum(r["at"] ** 2) / 2

    slope = jax.jit(jax.grad(cost))
    steep, flat = (np.max(np.abs(slope(jnp.zeros((89, 3)), p))) for p in (start, fit.params))
    assert flat < 1e-6 * steep

    # Marginals against the dense inverse, in tangents of the poses and the unit.
    def moved(x):
        rest = on(SE2, SE2.retract(fit.params["rest"].value, x[:-1].reshape(89, 3)))
        unit = fit.params["unit"] + x[-1]
        return {"first": start["first"], "metres": unit, "rest": rest, "unit": unit}

    def robust(x):  # by the curvature of the loss at the solution
        r = residuals(moved(x))
        z = jax.lax.stop_gradient(r["edges"]) ** 2
        weight = jnp.sqrt(jnp.maximum((1 - z) / (1 + z) ** 2, 0))
        return jnp.concatenate([(weight * r["edges"]).ravel(), r["unit"][None], r["at"].ravel()])

    J = jax.jit(jax.jacfwd(robust))(jnp.zeros(268))
    T = fit.params["rest"].value[40]

    def chosen(p):
        pose = SE2.local(T, p["rest"].value[40])
        held = SE2.local(start["first"].value, p["first"].value)
        return jnp.concatenate([pose, held, (p["metres"] * 2)[None]])

    G = jax.jit(jax.jacfwd(lambda x: chosen(moved(x))))(jnp.zeros(268))
    s2 = 2 * fit.cost / (J.shape[0] - 268)
    want = s2 * G @ np.linalg.inv(J.T @ J) @ G.T
    got = fnopt.covariance(fit, of=chosen)
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10 * np.max(want))
    np.testing.assert_array_equal(got[3:6], 0)
    band = fnopt.predict_band(chosen, fit)
    np.testing.assert_allclose(band.error, np.sqrt(np.diag(want)), rtol=1e-8, atol=1e-12)
    with pytest.raises(ValueError, match=r"268 variables is sparse.*covariance\(fit, of=function"):
        fnopt.covariance(fit)
    assert "first/tangent[0]     0   (fixed)" in str(fit)


def test_covariance_is_infinite_only_where_the_data_leave_something_open(x64):
    # Differences alone don't fix the place; a difference of two places is determined.
    i = np.arange(300)

    def steps(x):
        at = x["at"]
        return jnp.concatenate([at[i + 1] - at[i] - 1, at[i[5:]] - at[i[:-5]] - 5, x["of"] - 1])

    jac, start = (
        fnopt.sparse_jacobian(steps),
        {"at": jnp.zeros(301), "of": jnp.asarray([0.5, 0.5, 1])},
    )
    bounds = {"at": None, "of": jnp.asarray([0.0, 0, 1])}, {"at": None, "of": jnp.ones(3)}
    fit = fnopt.least_squares(steps, start, jac=jac, bounds=bounds)
    assert (fit.rank, fit.dof) == (302, 598 - 302)  # of[2] is fixed, at can be shifted
    assert fit.message.endswith("; the data don't determine 1 direction in at")
    assert "\n  steps by Cholesky factorization of a band, in 19 blocks of 16 unknowns" in str(fit)
    assert "rank 302 of 303: the data don't determine 1 direction in at" in str(fit)

    def chosen(p):
        return jnp.concatenate([p["at"][:1], p["at"][7:8] - p["at"][:1], p["of"][1:]])

    C = fnopt.covariance(fit, absolute_sigma=True, of=chosen)
    A = np.asarray(jac(start).matrix())[:, :301]
    want = np.linalg.pinv(A.T @ A, rcond=1e-10)  # the eigenvalue 0 is a rounding error
    difference = np.eye(301)[7] - np.eye(301)[0]
    assert np.all(np.isinf(C[0]))
    np.testing.assert_allclose(C[1, 1], difference @ want @ difference, rtol=1e-8)
    np.testing.assert_allclose(C[2:, 2:], [[1, 0], [0, 0]], atol=1e-12)  # the last one is fixed


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_rank_and_what_is_undetermined_are_those_of_the_dense_jacobian(x64, dtype, monkeypatch):
    monkeypatch.setattr("fnopt.solvers.linear_model._choice.LARGEST_DENSE", 0)
    solver = fnopt.levenberg_marquardt(geodesic=False)

    def chain(x, weights, at_first):
        return jnp.append(weights * (x[1:] - x[:-1]), at_first * x[0])

    start, jac = jnp.zeros(90, dtype), fnopt.sparse_jacobian(chain)
    rng = np.random.default_rng(0)
    for cuts, at_first in [(0, 1), (0, 0), (3, 1), (6, 0), (9, 0)]:
        weights = rng.uniform(0.5, 1, 89).astype(dtype)
        weights[3 * rng.choice(19, cuts, replace=False) + 1] = 0
        args = jnp.asarray(weights), jnp.asarray(at_first, dtype)
        fit = fnopt.least_squares(chain, start, jac=jac, args=args, solver=solver, max_steps=0)
        J = np.asarray(jac(start, *args).matrix(), np.float64)
        scale = np.linalg.norm(J, axis=0)
        _, s, Vt = np.linalg.svd(J / np.where(scale > 0, scale, 1))
        null = Vt[s < 1e-9]
        assert fit.rank == (90 - len(null) if len(null) < 8 else -1)
        assert fit.dof == (len(null) if len(null) < 8 else 0)
        expected = np.sum(null**2, axis=0) > 1e-9
        np.testing.assert_array_equal(fit.certificate.undetermined, expected)


def test_many_equations_by_their_sparse_jacobian(x64):
    # Bratu's equation -u'' = rate exp(u) with u(0) = u(1) = 0: closed form for a rate below 3.51.
    n, rate = 299, 0.5
    h = 1 / (n + 1)

    def bratu(u, rate):
        padded = jnp.pad(u, 1)
        return padded[2:] - 2 * u + padded[:-2] + rate * h**2 * jnp.exp(u)

    jac = fnopt.sparse_jacobian(bratu)
    solve = jax.jit(lambda rate: fnopt.root(bratu, jnp.zeros(n), (rate,), jac=jac, max_steps=50))
    end = solve(rate)
    assert bool(end.converged)
    theta = 0.5  # theta = sqrt(2 rate) cosh(theta / 4), a contraction
    for _ in range(50):
        theta = np.sqrt(2 * rate) * np.cosh(theta / 4)
    t = np.arange(1, n + 1) * h
    exact = -2 * np.log(np.cosh((t - 0.5) * theta / 2) / np.cosh(theta / 4))
    np.testing.assert_allclose(end.params, exact, atol=1e-6)  # the error of the discretization
    assert not bool(solve(4.0).converged)  # no solution
