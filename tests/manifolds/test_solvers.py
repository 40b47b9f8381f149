"""Fits, roots and minima with params on manifolds, against closed forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import fnopt
from fnopt.manifolds import SE2, SE3, SO3, PositiveDefinite, Simplex, Stiefel, UnitVector, on

pytestmark = pytest.mark.usefixtures("x64")
RNG = np.random.default_rng(1)
STRAIGHT = fnopt.levenberg_marquardt(geodesic=False)  # compiles in half of the time


def _rotations(count: int, spread: float) -> np.ndarray:
    return Rotation.from_rotvec(spread * RNG.normal(size=(count, 3))).as_matrix()


def _polar(M: np.ndarray) -> np.ndarray:
    U, _, Vt = np.linalg.svd(M)
    return U @ np.diag([1, 1, np.linalg.det(U @ Vt)]) @ Vt


def _fit(fn, start, **options):
    solution = fnopt.least_squares(fn, start, **options)
    assert solution.converged, solution.message
    return solution


ROTATIONS = _rotations(6, 0.5)


def _chordal(p, R):
    return p["R"].value - R


def test_the_chordal_mean_is_the_polar_factor():
    # From a turn of pi away, where the angle between two rotations has a corner.
    start = _polar(np.sum(ROTATIONS, 0)) @ np.diag([1.0, -1.0, -1.0])
    solution = _fit(_chordal, {"R": on(SO3, start)}, args=(ROTATIONS,))
    np.testing.assert_allclose(solution.params["R"].value, _polar(np.sum(ROTATIONS, 0)), atol=1e-10)
    assert solution.jacobian.shape == (54, 3)
    assert solution.rank == 3


def test_solutions_have_derivatives_by_the_data():
    change = RNG.normal(size=ROTATIONS.shape)

    def mean(R):  # of two sets at once
        start = {"R": on(SO3, np.eye(3))}
        return fnopt.least_squares(_chordal, start, args=(R,), solver=STRAIGHT).params["R"].value

    R, dR = jnp.stack([ROTATIONS, ROTATIONS[::-1]]), jnp.stack([change, change[::-1]])
    _, moved = jax.jvp(jax.vmap(mean), (R,), (dR,))
    h = 1e-5
    ends = [_polar(np.sum(ROTATIONS + s * change, 0)) for s in (h, -h)]
    np.testing.assert_allclose(moved, [(ends[0] - ends[1]) / (2 * h)] * 2, atol=1e-8)


def test_covariance_is_that_of_the_tangent():
    # Rotated directions with noise: Wahba's problem, solved by one SVD.
    a = RNG.normal(size=(40, 3))
    b = a @ ROTATIONS[0].T + 0.01 * RNG.normal(size=a.shape)
    solution = _fit(lambda p: a @ p["R"].value.T - b, {"R": on(SO3, np.eye(3)), "s": 1.0})
    R = _polar(b.T @ a)
    np.testing.assert_allclose(solution.params["R"].value, R, atol=1e-10)
    # d (R exp(v) a) / dv = -R hat(a): the information is the sum of |a|^2 I - a a^T.
    information = np.sum(a * a) * np.eye(3) - a.T @ a
    C = fnopt.covariance(solution)[:3, :3]
    s2 = np.sum((a @ R.T - b) ** 2) / (120 - 3)
    np.testing.assert_allclose(C, s2 * np.linalg.inv(information), rtol=1e-7)
    assert fnopt.standard_errors(solution)["R"].value.shape == (3,)
    band = fnopt.predict_band(lambda p: p["R"].value @ a[0], solution)
    J = -R @ np.cross(np.eye(3), -a[0])  # rows of -hat(a) are e_i x (-a)
    np.testing.assert_allclose(band.error, np.sqrt(np.diag(J @ C @ J.T)), rtol=1e-6)
    lower, upper = fnopt.confidence_intervals(solution)
    np.testing.assert_allclose(lower["R"].value, -upper["R"].value)
    assert "R/tangent[2]  0.0000 ± 0.001" in str(solution)
    assert "don't determine s" in str(solution)


def test_a_pose_graph_without_noise_is_recovered():
    poses = [np.asarray(SE3.retract(jnp.eye(4), 0.5 * RNG.normal(size=6))) for _ in range(4)]
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
    measured = jnp.stack([SE3.inverse(poses[i]) @ poses[j] for i, j in edges])
    first, second = np.transpose(edges)

    def residuals(p):
        T = p["T"].value
        steps = SE3.local(measured, SE3.inverse(T[first]) @ T[second])
        return {"edges": steps, "gauge": SE3.local(poses[0], T[0])}

    solution = _fit(residuals, {"T": on(SE3, np.stack([np.eye(4)] * 4))}, solver=STRAIGHT)
    np.testing.assert_allclose(solution.params["T"].value, poses, atol=1e-10)
    assert solution.rank == 24


def test_hand_eye_calibration_without_noise_is_recovered():
    X = SE3.retract(jnp.eye(4), 0.7 * RNG.normal(size=6))
    B = SE3.retract(jnp.broadcast_to(jnp.eye(4), (5, 4, 4)), RNG.normal(size=(5, 6)))
    A = X @ B @ SE3.inverse(X)
    start = on(SE3, np.eye(4))
    solution = _fit(lambda p: SE3.local(A @ p.value, p.value @ B), start, solver=STRAIGHT)
    np.testing.assert_allclose(solution.params.value, X, atol=1e-10)


def test_the_intrinsic_mean_of_directions_balances_their_tangents():
    y = UnitVector.nearest(jnp.asarray([1.0, 0.5, 0.2]) + 0.4 * RNG.normal(size=(8, 3)))
    # From nearly opposite, where the exponential map of the start is nearly singular.
    start = UnitVector.nearest(-jnp.mean(y, 0) + 0.01)
    solution = _fit(lambda p: UnitVector.local(p.value, y), on(UnitVector, start))
    x = solution.params.value
    np.testing.assert_allclose(np.sum(UnitVector.local(x, y), 0), 0, atol=1e-10)
    assert solution.jacobian.shape == (24, 2)


def test_principal_components_are_eigenvectors():
    data = RNG.normal(size=(30, 5)) * np.asarray([3.0, 2.0, 1.0, 0.5, 0.2])
    A = data.T @ data / 30
    start = {"X": on(Stiefel, np.eye(5)[:, 2:4])}
    end = fnopt.minimize(
        lambda p: -jnp.trace(p["X"].value.T @ A @ p["X"].value), start, ftol=0.0, gtol=1e-12
    )
    X = end.params["X"].value
    top = np.linalg.eigh(A)[1][:, -2:]
    np.testing.assert_allclose(X @ X.T, top @ top.T, atol=1e-8)


def test_the_geometric_mean_of_two_matrices_solves_riccatis_equation():
    A, B = np.asarray([[2.0, 0.5], [0.5, 1.0]]), np.asarray([[1.0, -0.3], [-0.3, 4.0]])

    def equations(p):
        return (p.value @ np.linalg.inv(A) @ p.value - B)[np.tril_indices(2)]

    end = fnopt.root(equations, on(PositiveDefinite, np.eye(2)))
    # Bhatia (2007), Positive definite matrices, proposition 4.1.12.
    a, b = np.sqrt(np.linalg.det(A)), np.sqrt(np.linalg.det(B))
    mean = A / a + B / b
    np.testing.assert_allclose(
        end.params.value, np.sqrt(a * b / np.linalg.det(mean)) * mean, atol=1e-10
    )
    assert end.converged


def test_probabilities_of_the_highest_likelihood_are_frequencies():
    counts = np.asarray([5.0, 3.0, 2.0])
    end = fnopt.minimize(
        lambda p: -jnp.sum(counts * jnp.log(p.value)), on(Simplex, np.full(3, 1 / 3)), gtol=1e-10
    )
    np.testing.assert_allclose(end.params.value, counts / 10, atol=1e-8)


def test_a_solution_on_the_edge_of_the_simplex_is_approached():
    target = np.asarray([-0.2, 0.5, 0.7])
    end = fnopt.least_squares(lambda p: p.value - target, on(Simplex, np.full(3, 1 / 3)))
    np.testing.assert_allclose(end.params.value, [0.0, 0.4, 0.6], atol=1e-6)  # the projection
    assert end.params.value[0] > 0
    assert end.converged, end.message
    on(Simplex, end.params.value)


def test_a_mixed_tree_keeps_bounds_ties_and_held_points():
    start = {"R": on(SO3, np.eye(3)), "T": on(SE2, np.eye(3)), "s": jnp.asarray(2.0)}

    def residuals(p):
        return p["s"] * p["R"].value - 1.7 * ROTATIONS[0], 0.1 * (p["T"].value - np.eye(3))

    end = _fit(
        residuals,
        start,
        bounds=({"R": None, "T": None, "s": 1.8}, None),
        constraints={"T": fnopt.fixed()},
        history=True,
        solver=STRAIGHT,
    )
    assert end.params["s"] == 1.8
    assert end.jacobian.shape == (18, 4)
    np.testing.assert_array_equal(end.at_bound, [0] * 3 + [-1])
    np.testing.assert_array_equal(end.params["T"].value, np.eye(3))
    np.testing.assert_allclose(end.params["R"].value, ROTATIONS[0], atol=1e-10)
    assert np.sum(np.isfinite(end.history.cost)) == int(end.steps)
    least = fnopt.minimize(
        lambda p: sum(jnp.sum(r**2) for r in residuals(p)),
        start,
        bounds=({"R": None, "T": None, "s": 1.8}, None),
    )
    assert least.params["s"] == 1.8
    np.testing.assert_allclose(least.params["R"].value, ROTATIONS[0], atol=1e-5)
    for options, message in [
        ({"bounds": (0.0, None)}, "R/value' is on the manifold SO3 and has bounds, expected no"),
        ({"bounds": (None, 0.5)}, "R/value' is on the manifold SO3 and has bounds, expected no"),
        ({"constraints": {"R": fnopt.positive()}}, "SO3 and has the constraint positive()"),
        ({"starts": 3}, "starts = 3 with params on manifolds"),
    ]:
        with pytest.raises(ValueError, match=message):
            fnopt.least_squares(residuals, start, **options)
    off = jax.tree.map(lambda x: 2.0 * x, start)
    with pytest.raises(ValueError, match=r"leaf 'R/value' is 1 away from SO3.*Project it"):
        fnopt.least_squares(residuals, off)


def test_a_given_jacobian_is_by_the_entries_of_the_points():
    start = {"R": on(SO3, np.eye(3))}

    def residuals(p):
        return _chordal(p, ROTATIONS)

    jac = fnopt.sparse_jacobian(residuals)
    solution = _fit(residuals, start, jac=jac, solver=STRAIGHT)
    np.testing.assert_allclose(solution.params["R"].value, _polar(np.sum(ROTATIONS, 0)), atol=1e-10)
