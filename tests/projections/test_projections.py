"""What holds for every projection: the peer's numbers, and what a nearest point is."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt import projections

RNG = np.random.default_rng(0)
TREE = {"a": RNG.normal(size=(2, 3)), "b": RNG.normal(size=4)}
NORMAL = {"a": RNG.normal(size=(2, 3)), "b": RNG.normal(size=4)}
BOUNDS = {"a": np.full((2, 3), -0.3), "b": np.full(4, -0.6)}

# name -> (module, tree, normal, bounds) -> projection
CASES = {
    "projection_simplex": lambda m, x, a, b: m.projection_simplex(x),
    "projection_simplex_scale": lambda m, x, a, b: m.projection_simplex(x, 2.5),
    "projection_l1_sphere": lambda m, x, a, b: m.projection_l1_sphere(x, 2.5),
    "projection_l1_ball": lambda m, x, a, b: m.projection_l1_ball(x, 2.5),
    "projection_l1_ball_inside": lambda m, x, a, b: m.projection_l1_ball(x, 100.0),
    "projection_l2_sphere": lambda m, x, a, b: m.projection_l2_sphere(x, 2.5),
    "projection_l2_ball": lambda m, x, a, b: m.projection_l2_ball(x, 0.5),
    "projection_l2_ball_inside": lambda m, x, a, b: m.projection_l2_ball(x, 100.0),
    "projection_linf_ball": lambda m, x, a, b: m.projection_linf_ball(x, 0.7),
    "projection_non_negative": lambda m, x, a, b: m.projection_non_negative(x),
    "projection_box": lambda m, x, a, b: m.projection_box(
        x, b, jax.tree.map(lambda low: -2 * low, b)
    ),
    "projection_hypercube": lambda m, x, a, b: m.projection_hypercube(x["b"], 0.7),
    "projection_vector": lambda m, x, a, b: m.projection_vector(x, a),
    "projection_hyperplane": lambda m, x, a, b: m.projection_hyperplane(x, a, 0.3),
    "projection_halfspace": lambda m, x, a, b: m.projection_halfspace(x, a, -20.0),
    "projection_halfspace_inside": lambda m, x, a, b: m.projection_halfspace(x, a, 20.0),
}
OURS_ALONE = {"projection_affine_set", "projection_box_section"}


def value_and_gradient(module, name, dtype):
    x, a, b = jax.tree.map(
        lambda v: jnp.asarray(np.float32(v)).astype(dtype), [TREE, NORMAL, BOUNDS]
    )

    def weighted(x):
        y = CASES[name](module, x, a, b)
        parts = [
            jnp.sum(jnp.cos(jnp.arange(v.size)).reshape(v.shape).astype(v.dtype) * v)
            for v in jax.tree.leaves(y)
        ]
        return sum(parts), y

    (_, y), grad = jax.value_and_grad(weighted, has_aux=True)(x)
    return y, grad


@functools.cache
def everything():
    """All cases in one program, as compiling is dear."""
    optax = pytest.importorskip("optax")

    def run():
        ours = {
            (name, dt): value_and_gradient(projections, name, dt)
            for name in CASES
            for dt in ("float32", "float64")
        }
        with jax.numpy_dtype_promotion("standard"):
            theirs = {
                name: value_and_gradient(optax.projections, name, jnp.float64) for name in CASES
            }
        return ours, theirs

    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        return jax.jit(run)()


def test_the_table_has_every_projection():
    tested = {n for n in projections.__all__ if any(c.startswith(n) for c in CASES)}
    assert tested == set(projections.__all__) - OURS_ALONE


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_agrees_with_optax_in_value_and_gradient(name, dtype):
    ours, theirs = everything()
    tolerance = {"float32": 2e-6, "float64": 1e-13}[dtype]

    def compare(mine, other):
        assert mine.dtype == dtype
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)

    jax.tree.map(compare, ours[name, dtype], theirs[name])


def rows(seed, n=7, batch=64):
    """Vectors of magnitudes from 1e-3 to 1e3, with ties and zeros."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(batch, n)) * 10.0 ** rng.integers(-3, 4, size=(batch, 1))
    x[::5, 1] = x[::5, 0]
    x[::7, 2] = 0
    x[3] = 0
    return jnp.asarray(x, jnp.float32)


CONVEX = {
    "simplex": projections.projection_simplex,
    "l1_ball": projections.projection_l1_ball,
    "l2_ball": projections.projection_l2_ball,
    "linf_ball": projections.projection_linf_ball,
    "hypercube": projections.projection_hypercube,
    "non_negative": projections.projection_non_negative,
    "halfspace": lambda x: projections.projection_halfspace(x, jnp.cos(jnp.arange(7.0)), 0.5),
    "hyperplane": lambda x: projections.projection_hyperplane(x, jnp.cos(jnp.arange(7.0)), 0.5),
    "vector": lambda x: projections.projection_vector(x, jnp.cos(jnp.arange(7.0))),
    "affine_set": lambda x: projections.projection_affine_set(
        x, jnp.cos(jnp.arange(14.0) ** 2).reshape(2, 7), jnp.asarray([1.0, -2.0])
    ),
    "box_section": lambda x: projections.projection_box_section(
        x, -1.0, jnp.arange(7.0), jnp.cos(jnp.arange(7.0)), 0.5
    ),
}


@pytest.mark.parametrize("name", CONVEX)
def test_is_the_nearest_point_of_a_convex_set(name):
    """Idempotent, and no point of the set lies at an acute angle to what was taken away."""
    project = jax.jit(jax.vmap(CONVEX[name]))
    x = rows(0)
    y = project(x)
    others = np.asarray(project(rows(1)), np.float64)
    far = 1 + np.abs(x).max(axis=1)
    np.testing.assert_allclose(project(y), y, atol=2e-6 * (1 + np.abs(y).max()))
    removed, y = np.asarray(x - y, np.float64), np.asarray(y, np.float64)
    size = 1 + np.abs(y).max(axis=1) + np.abs(others).max(axis=1)
    angle = np.sum(removed * (others - y), axis=1)
    assert np.all(angle <= 1e-5 * far * size)


@pytest.mark.parametrize("name", ["l1_ball", "l2_ball", "linf_ball", "halfspace"])
def test_points_inside_stay_in_every_bit(name):
    x = 0.01 * rows(2, batch=4) / 1e3
    np.testing.assert_array_equal(jax.vmap(CONVEX[name])(x), x)


SPHERES = [projections.projection_l1_sphere, projections.projection_l2_sphere]


@pytest.mark.parametrize("project", SPHERES)
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("magnitude", [0.0, 1e-24, 1.0, 1e24])
def test_spheres_are_reached_from_everywhere(project, scale, magnitude):
    x = magnitude * jnp.asarray([3.0, -4.0, 0.0, 1.0])
    y = np.asarray(project(x, scale), np.float64)
    length = np.sum(np.abs(y)) if project is SPHERES[0] else np.sqrt(np.sum(y * y))
    np.testing.assert_allclose(length, scale, rtol=1e-5)


def test_the_simplex_sums_to_its_scale_from_far_away_and_at_length():
    x = jnp.asarray([1e8, 1e8 - 8, 0.0, -jnp.inf])
    np.testing.assert_array_equal(projections.projection_simplex(x), [1.0, 0.0, 0.0, 0.0])
    many = jnp.sin(jnp.arange(20_000.0))
    total = np.sum(np.asarray(projections.projection_simplex(many, 1000.0), np.float64))
    np.testing.assert_allclose(total, 1000.0, rtol=1e-6)
    np.testing.assert_array_equal(projections.projection_simplex(many[:4], 0.0), np.zeros(4))


def test_a_nan_is_not_hidden():
    assert bool(jnp.isnan(projections.projection_simplex(jnp.asarray([1.0, jnp.nan]))).all())


def test_derivatives_at_zero_are_finite():
    for project in [*SPHERES, CONVEX["l2_ball"], CONVEX["l1_ball"], CONVEX["simplex"]]:
        assert bool(jnp.isfinite(jax.jacobian(project)(jnp.zeros(7))).all())


def test_a_zero_normal_moves_nothing():
    x, zero = jnp.ones(3), jnp.zeros(3)
    np.testing.assert_array_equal(projections.projection_hyperplane(x, zero, 2.0), x)
    np.testing.assert_array_equal(projections.projection_vector(x, zero), zero)


def test_half_precision_and_mixed_trees_keep_their_dtypes():
    tree = {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(2, jnp.float32)}
    y = projections.projection_simplex(tree)
    assert (y["a"].dtype, y["b"].dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(y["b"], [0.2, 0.2], rtol=1e-6)
    assert projections.projection_simplex({}) == {}


def test_bounds_may_stand_for_branches():
    tree = {"a": {"w": jnp.asarray([-2.0, 2.0])}, "b": jnp.asarray([-2.0, 2.0])}
    y = projections.projection_box(tree, {"a": None, "b": -1.0}, 1.0)
    np.testing.assert_array_equal(y["a"]["w"], [-2.0, 1.0])
    np.testing.assert_array_equal(y["b"], [-1.0, 1.0])


def test_the_box_section_agrees_with_jaxopt():
    jaxopt = pytest.importorskip("jaxopt.projection")
    x, w = jnp.asarray([0.9, 0.8, -1.0, 3.0]), jnp.asarray([1.0, 0.5, 2.0, 1.0])
    low, high = jnp.zeros(4), jnp.asarray([1.0, 2.0, 1.0, 0.5])
    with jax.numpy_dtype_promotion("standard"):
        theirs = jaxopt.projection_box_section(x, (low, high, w, 1.5))
    ours = projections.projection_box_section(x, low, high, w, 1.5)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(w @ ours, 1.5, rtol=1e-6)


def test_the_box_section_of_weights_of_all_magnitudes():
    # The bounds of the first two entries are inactive, so that y = x + (2 - w.x) w / w.w.
    with jax.enable_x64(True):
        w = jnp.asarray([1e6, 1.0, 1e-6])
        x = jnp.asarray([0.9, 0.3, -0.2])
        exact = projections.projection_box_section(x, -10.0, 10.0, w, 2.0)
        np.testing.assert_allclose(exact, x + (2 - w @ x) * w / (w @ w), rtol=1e-9)
    rough = projections.projection_box_section(
        jnp.asarray(x, "float32"), -10.0, 10.0, jnp.asarray(w, "float32"), 2.0
    )
    np.testing.assert_allclose(rough, exact, atol=1e-6)


@pytest.mark.parametrize("c", [-40.0, 1.0, 70.0])
def test_a_box_section_may_be_open(c):
    x, w = jnp.asarray([0.9, 0.8, -1.0, 30.0]), jnp.asarray([1.0, -0.5, 2.0, 1.0])
    inf = jnp.inf
    plane = projections.projection_hyperplane(x, w, c)
    section = projections.projection_box_section
    np.testing.assert_allclose(section(x, -inf, inf, w, c), plane, atol=2e-5)
    # Far bounds say the same as none.
    for low, high in ((0.0, inf), (-inf, 1.0), (jnp.asarray([0.0, -inf, 0.0, 5.0]), inf)):
        ours = section(x, low, high, w, c)
        near = section(x, jnp.clip(low, -500, 500), jnp.clip(high, -500, 500), w, c)
        np.testing.assert_allclose(ours, near, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: projections.projection_simplex({"w": np.arange(3)}),
            TypeError,
            r"projection_simplex: leaf 'w' is int64\[3\], expected a real floating array",
        ),
        (
            lambda: projections.projection_l2_ball(np.ones(3), -1.0),
            ValueError,
            r"projection_l2_ball: scale = -1.0, expected a number >= 0",
        ),
        (
            lambda: projections.projection_box(np.ones(3), np.zeros((2, 3)), None),
            ValueError,
            r"the lower bound of a leaf of shape \(3,\) has shape \(2, 3\)",
        ),
        (
            lambda: projections.projection_affine_set(np.ones(3), np.ones((2, 2)), np.ones(2)),
            ValueError,
            r"x has shape \(3,\), A has shape \(2, 2\), b has shape \(2,\), expected \[n\]",
        ),
        (
            lambda: projections.projection_affine_set(np.ones(2), np.ones((3, 2)), np.ones(3)),
            ValueError,
            r"A has shape \(3, 2\), .* with m <= n",
        ),
        (
            lambda: projections.projection_box(np.zeros(3), np.zeros(2), 1.0),
            ValueError,
            r"the lower bound of a leaf of shape \(3,\) has shape \(2,\)",
        ),
        (
            lambda: projections.projection_hyperplane(np.ones(3), np.ones(1), 1.0),
            ValueError,
            r"leaves of a have shape \(1,\), leaves of x have shape \(3,\)",
        ),
        (
            lambda: projections.projection_vector({"w": np.ones(3)}, np.ones(3)),
            ValueError,
            "the tree of leaves of a does not match the tree of leaves of x",
        ),
        (
            lambda: projections.projection_halfspace(np.ones(3), np.ones(3), np.ones(3)),
            TypeError,
            r"projection_halfspace: b is float64\[3\], expected one number",
        ),
    ],
)
def test_bad_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
