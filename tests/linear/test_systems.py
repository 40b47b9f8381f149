from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.linear import (
    KrylovSystem,
    LiftedSystem,
    TallGramSystem,
    TriangleSystem,
    WideGramSystem,
    dogleg_step,
    gram,
    linear_solver,
    triangle,
)
from fnopt.solvers._trust_region import linear_step, next_damping

SHAPES = [(9, 4), (3, 7)]


class Gradient(NamedTuple):
    """What a straight step reads of its point."""

    gradient: jax.Array


def problem(m, n):
    rng = np.random.default_rng(m)
    A = rng.standard_normal((m, n)) / np.arange(1, n + 1)  # columns of different length
    return A, rng.standard_normal(m)


def systems(A, r, start=0.0):
    """Every system that serves the shape, by name."""
    A, r = jnp.asarray(A), jnp.asarray(r)
    start = jnp.asarray(start, A.dtype)

    def push(v):
        return A @ v

    def pull(w):
        return w @ A

    if A.shape[0] >= A.shape[1]:
        square = TallGramSystem(gram(A), r @ A, start, pull)
        small = TriangleSystem(triangle(A, r), max(A.shape), start, pull)
    else:
        square = WideGramSystem(A @ A.T, r, start, push, pull)
        Q, R = jnp.linalg.qr(A.T)
        rows = TriangleSystem(triangle(R.T, r), max(A.shape), start, lambda w: R @ w)
        small = LiftedSystem(rows, Q)
    return {
        "qr": small,
        "gram": square,
        "cg": KrylovSystem(push, pull, r, tolerance=1e-7),
    }


@jax.jit
def linear_steps(A, r):
    """By name: the damped and the full step, and what the damped one pulls back of a vector."""
    found = {}
    for name, system in systems(A, r).items():
        step, w = system.damped(jnp.asarray(0.3)), r[::-1]
        pull_back = system.pull_back(step)
        back = None if pull_back is None else pull_back(w)
        found[name] = step, system.gauss_newton(), back
    return found


@jax.jit
def trust_region_steps(A, r, radius, start):
    return {name: s.trust_region(radius) for name, s in systems(A, r, start).items()}


def damped(A, r, lam):
    return -np.linalg.solve(A.T @ A + lam * np.eye(A.shape[1]), A.T @ r)


def reduction(A, r, p):
    return 0.5 * (r @ r - np.sum((A @ p + r) ** 2))


def check(A, r, step, rtol=1e-6):
    np.testing.assert_allclose(step.model_norm, np.sum((A @ step.p) ** 2), rtol=rtol)
    np.testing.assert_allclose(step.predicted, reduction(A, r, np.asarray(step.p)), rtol=rtol)


@pytest.mark.parametrize("shape", SHAPES)
def test_damped_and_full_steps_agree_with_numpy(x64, shape):
    A, r = problem(*shape)
    full = np.linalg.lstsq(A, -r, rcond=None)[0]
    for step, full_step, _ in linear_steps(A, r).values():
        np.testing.assert_allclose(step.p, damped(A, r, 0.3), rtol=1e-6)
        check(A, r, step)
        step = full_step
        np.testing.assert_allclose(step.p, full, rtol=1e-6)
        assert step.lam == 0
        check(A, r, step)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("radius", [1e-4, 0.3])
def test_trust_region_steps_end_near_the_boundary(x64, shape, radius):
    A, r = problem(*shape)
    least = np.sum(np.square(A.T @ r)) / np.sum(np.square(A @ (A.T @ r)))
    cauchy = reduction(A, r, -min(least, radius / np.linalg.norm(A.T @ r)) * (A.T @ r))
    steps = trust_region_steps(A, r, radius, 0.0)
    del steps["qr"]  # takes the damping given, and cuts its step
    for name, step in steps.items():
        length = np.linalg.norm(step.p)
        assert step.lam > 0
        assert 0.8 * radius <= length <= 1.2 * radius
        check(A, r, step)
        assert step.predicted >= 0.8 * cauchy
        if name != "cg":  # which stops on the way
            np.testing.assert_allclose(step.p, damped(A, r, float(step.lam)), rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("radius", [1e-4, 0.3, 1e3])
@pytest.mark.parametrize("lam", [0.0, 1e-6, 0.3, 1e6])
def test_a_triangle_takes_one_damped_solution_and_cuts_it(x64, shape, radius, lam):
    A, r = problem(*shape)
    step = trust_region_steps(A, r, radius, lam)["qr"]
    full = np.linalg.lstsq(A, -r, rcond=None)[0] if lam == 0 else damped(A, r, lam)
    cut = min(1, 1.5 * radius / np.linalg.norm(full))
    np.testing.assert_allclose(step.p, cut * full, rtol=1e-6)
    np.testing.assert_allclose(step.solution_length, np.linalg.norm(full), rtol=1e-6)
    assert step.lam == lam
    check(A, r, step)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("start", [0.0, 1e-6, 1e6])
def test_a_full_step_that_fits_is_found_from_any_guess(x64, shape, start):
    A, r = problem(*shape)
    step = trust_region_steps(A, r, 1e3, start)["gram"]
    np.testing.assert_allclose(step.p, np.linalg.lstsq(A, -r, rcond=None)[0], rtol=1e-6)
    assert step.lam == 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lam", [1e-3, 0.3, 10.0])
def test_rise_is_hebdens(x64, shape, lam):
    # Newton's step for 1 / ||p(lam)|| = 1 / radius is (||p|| / radius - 1) times -||p|| / ||p||'.
    A, r = problem(*shape)
    step = trust_region_steps(A, r, 1e9, lam)["qr"]
    length, h = np.linalg.norm(damped(A, r, lam)), 1e-4 * lam
    slope = np.linalg.norm(damped(A, r, lam + h)) - np.linalg.norm(damped(A, r, lam - h))
    np.testing.assert_allclose(step.hebden, -length / (slope / (2 * h)), rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_next_damping_converges_to_that_of_the_radius(x64, shape):
    # With the radius fixed, Hebden's iteration is Newton's on a concave function.
    A, r = problem(*shape)
    radius, lam, scale = 0.3 * np.linalg.norm(np.linalg.lstsq(A, -r, rcond=None)[0]), 0.0, 1.0
    for _ in range(8):
        step = trust_region_steps(A, r, radius, lam)["qr"]
        lam = next_damping(linear_step(Gradient(jnp.asarray(A.T @ r)), scale, step), radius)
    np.testing.assert_allclose(np.linalg.norm(damped(A, r, float(lam))), radius, rtol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_pull_back(x64, shape):
    A, r = problem(*shape)
    w = r[::-1].copy()
    for name, (_, _, p) in linear_steps(A, r).items():
        if name == "cg":
            assert p is None
        else:
            np.testing.assert_allclose(p, -damped(A, w, 0.3), rtol=1e-9)


@pytest.mark.parametrize("rows", [5, 2])
def test_rank_deficient_float32_steps_are_finite(rows):
    A = np.ones((rows, 3), np.float32)
    r = np.ones(rows, np.float32)
    for step in trust_region_steps(A, r, np.float32(0.1), 0.0).values():
        assert np.all(np.isfinite(step.p))
    for _, step, _ in linear_steps(A, r).values():
        np.testing.assert_allclose(step.p, -1 / 3, rtol=5e-2)


def test_a_full_step_sees_what_little_a_scaling_leaves_of_a_column():
    # In a scaling that remembers how steep a param once was, its column is next to nothing.
    A, r = (a.astype(np.float32) for a in problem(5, 3))
    little = np.asarray([1.0, 3e-7, 1.0], np.float32)
    _, step, _ = linear_steps(A * little, r)["qr"]
    expected = np.linalg.lstsq(A.astype(np.float64), -r, rcond=None)[0]
    np.testing.assert_allclose(step.p * little, expected, rtol=1e-4)


def test_no_slope_no_step():
    A = np.eye(5, 3, dtype=np.float32)
    r = np.asarray([0, 0, 0, 0, 5], np.float32)
    for step in trust_region_steps(A, r, np.float32(1), 0.0).values():
        np.testing.assert_allclose(step.p, 0, atol=1e-6)


def test_dogleg_lies_on_the_path(x64):
    A, r = problem(9, 4)
    g = A.T @ r
    cauchy = -(g @ g) / np.sum((A @ g) ** 2) * g
    full = np.linalg.lstsq(A, -r, rcond=None)[0]
    dogleg = jax.jit(lambda radius: dogleg_step(systems(A, r)["gram"], jnp.asarray(g), radius))
    short = dogleg(0.5 * np.linalg.norm(cauchy))
    np.testing.assert_allclose(short.p, 0.5 * cauchy, rtol=1e-9)
    radius = 0.5 * (np.linalg.norm(cauchy) + np.linalg.norm(full))
    step = dogleg(radius)
    np.testing.assert_allclose(np.linalg.norm(step.p), radius, rtol=1e-9)
    t = (step.p - cauchy) / (full - cauchy)
    np.testing.assert_allclose(t, t[0], rtol=1e-6)
    check(A, r, step)
    np.testing.assert_allclose(dogleg(99.0).p, full, rtol=1e-9)


def test_gram_of_many_columns(x64):
    A = np.random.default_rng(0).standard_normal((7, 261))
    G = jax.jit(gram)(jnp.asarray(A))
    np.testing.assert_allclose(G, A.T @ A, atol=1e-12)
    np.testing.assert_array_equal(G[:130, 130:], G[130:, :130].T)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other compilers join products")
def test_no_factor_of_a_gram_matrix_is_read_along_its_columns_in_float64(x64):
    compiled = jax.jit(gram).lower(jnp.zeros((9, 260))).compile().as_text()
    assert compiled.count("lhs_contracting_dims={1}") == 3
    assert "lhs_contracting_dims={0}" not in compiled


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_pulled_back_costs_no_factorization(shape):
    def steps(A, r):
        system = systems(A, r)["gram"]
        step = system.trust_region(jnp.asarray(0.3))
        return step.p, system.pull_back(step)(r)

    A, r = problem(*shape)
    text = str(jax.make_jaxpr(steps)(A, r))
    assert text.count("= cholesky") == 2  # the first try, and the loop over the others


def test_the_choice_goes_by_the_smaller_side():
    assert linear_solver("auto", 10**6, 64) == "qr"
    assert linear_solver("auto", 65, 10**6) == "cholesky"
    assert linear_solver("auto", 10**5, 10**5) == "cg"
    assert linear_solver("qr", 10**5, 10**5) == "qr"
    with pytest.raises(ValueError, match=r"linear_solver = 'svd', expected one of"):
        linear_solver("svd", 3, 2)
