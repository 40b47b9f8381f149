"""What holds for every manifold, and the formulas of each at the angles 0 and pi."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from fnopt.manifolds import (
    SE2,
    SE3,
    SO2,
    SO3,
    Manifold,
    Oblique,
    PositiveDefinite,
    RigidMotions,
    Rotations,
    Simplex,
    Sphere,
    Stiefel,
    UnitVector,
    on,
)

RNG = np.random.default_rng(0)


def _point(manifold: Manifold, shape: tuple[int, ...]) -> np.ndarray:
    """A random point: a small step away from a fixed one, so that each reaches the others."""
    if manifold is Simplex:
        return RNG.dirichlet(np.ones(shape[-1]), shape[:-1])
    if manifold is PositiveDefinite:
        a = RNG.normal(size=shape)
        return a @ np.swapaxes(a, -1, -2) + np.eye(shape[-1])
    noise = RNG.normal(size=shape)
    return np.asarray(manifold.nearest(jnp.asarray(np.eye(*shape[-2:]) + 0.4 * noise)))


CASES = {
    "SO2": (SO2, (2, 2, 2)),
    "SO3": (SO3, (2, 3, 3)),
    "SE2": (SE2, (3, 3)),
    "SE3": (SE3, (2, 4, 4)),
    "UnitVector": (UnitVector, (2, 4)),
    "Sphere": (Sphere(2.0), (2, 3)),
    "Stiefel": (Stiefel, (2, 5, 2)),
    "PositiveDefinite": (PositiveDefinite, (2, 3, 3)),
    "Simplex": (Simplex, (2, 4)),
}


@functools.partial(jax.jit, static_argnums=0)
def _errors(manifold, x, y, c, g):
    v = manifold.local(x, y)
    u = manifold.from_coordinates(x, c)
    there = manifold.retract(x, u)

    def moved(c):
        return manifold.retract(x, manifold.from_coordinates(x, c)).ravel()

    J = jax.jacfwd(moved)(jnp.zeros_like(c)).reshape(x.size, c.size)
    basis = jax.jacfwd(lambda c: manifold.from_coordinates(x, c))(jnp.zeros_like(c))
    basis = basis.reshape(-1, c.size)
    gradient = manifold.gradient(x, g)
    return {
        "retract inverts local": manifold.retract(x, v) - y,
        "local inverts retract": manifold.local(x, there) - u,
        "stays on the set": there - manifold.nearest(there),
        "coordinates are orthonormal": basis.T @ basis - jnp.eye(c.size),
        "coordinates have full rank": jnp.linalg.svd(J, compute_uv=False)[-1:] < 1e-2,
        "tangents stay under transport": manifold.transport(x, u) - u,
        "gradient": basis @ (J.T @ g.ravel()) - gradient.ravel(),
        "zero": manifold.retract(x, jnp.zeros_like(u)) - x,
    }


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("x64")
def test_every_manifold(name):
    manifold, shape = CASES[name]
    x, y = _point(manifold, shape), _point(manifold, shape)
    batch = shape[: len(shape) - manifold.axes]
    c = 0.5 * RNG.normal(size=(*batch, manifold.dimension(shape)))
    for what, error in _errors(manifold, x, y, c, RNG.normal(size=shape)).items():
        assert np.max(np.abs(error)) < 1e-13, what


@pytest.mark.usefixtures("x64")
def test_rotation_vectors_are_those_of_scipy():
    v = RNG.normal(size=(20, 3)) * np.logspace(-9, 0.2, 20)[:, None]
    R = Rotation.from_rotvec(v).as_matrix()
    np.testing.assert_allclose(jax.jit(SO3.retract)(jnp.eye(3), v), R, atol=1e-14)
    np.testing.assert_allclose(jax.jit(SO3.local)(jnp.eye(3), R), v, rtol=1e-12, atol=1e-15)


@jax.jit
def _derivatives(v, R):
    exp, log, eye, zero = SO3.retract, SO3.local, jnp.eye(3), jnp.zeros(3)
    there = jax.jacfwd(exp, 1)(eye, v), jax.jacrev(exp, 1)(eye, v)
    back = [jac(lambda w: log(eye, exp(R, w)))(zero) for jac in (jax.jacfwd, jax.jacrev)]
    second = jax.hessian(lambda v: jnp.sum(exp(eye, v)))(v)
    return there, back, second, log(eye, R), exp(eye, v)


@pytest.mark.parametrize("angle", [0.0, 1e-20, 1e-4, 1.0, np.pi - 1e-4, np.pi])
def test_rotations_have_derivatives_at_every_angle(angle):
    # In float32, where the sine of a small angle, or of one near pi, has few digits.
    axis = np.asarray([2.0, -1.0, 2.0]) / 3
    v = jnp.asarray(angle * axis, jnp.float32)
    R = jnp.asarray(Rotation.from_rotvec(angle * axis).as_matrix(), jnp.float32)

    (fwd, rev), (log_fwd, log_rev), second, found, rotated = _derivatives(v, R)
    np.testing.assert_allclose(rotated, R, atol=3e-7)
    np.testing.assert_allclose(fwd, rev, atol=1e-6)
    np.testing.assert_allclose(log_fwd, log_rev, atol=1e-5)
    assert np.all(np.isfinite(second))
    # Right Jacobian of the rotation group and its inverse (Sola et al. 2018, eqs. 143, 144).
    a = np.asarray(found, np.float64)
    np.testing.assert_allclose(np.abs(a), np.abs(angle * axis), rtol=1e-6, atol=1e-6)
    t = np.linalg.norm(a)
    hat = np.cross(np.eye(3), a)
    inverse = np.eye(3) - hat / 2
    if t > 1e-3:
        inverse += (1 / t**2 - (1 + np.cos(t)) / (2 * t * np.sin(t))) * hat @ hat
    else:
        inverse += hat @ hat / 12
    if angle < 3.1415:  # there is a jump at pi
        np.testing.assert_allclose(log_fwd, inverse.T, atol=2e-3 if angle > 3 else 2e-6)


@pytest.mark.parametrize("manifold", [SO2, UnitVector, Sphere(3.0)])
def test_derivatives_are_finite_at_0_and_pi(manifold):
    n = 2 if manifold is SO2 else 3
    x = jnp.eye(2) if n == 2 else manifold.nearest(jnp.asarray([1.0, 0.0, 0.0]))

    @jax.jit
    def of(x, y):
        slopes = jax.jacfwd(manifold.local, 1)(x, y), jax.jacrev(manifold.local, 1)(x, y)
        zero = jnp.zeros(manifold.tangent_shape(x.shape))
        return *slopes, jax.hessian(lambda v: jnp.sum(manifold.retract(x, v)))(zero)

    for y in (x, -x):
        assert all(np.all(np.isfinite(part)) for part in of(x, y))


def test_geodesics_have_their_length():
    x, y = jnp.asarray([1.0, 0.0]), jnp.asarray([-1.0, 1e-3])
    assert np.linalg.norm(UnitVector.local(x, UnitVector.nearest(y))) == pytest.approx(
        np.pi - 1e-3, rel=1e-6
    )
    rows = jnp.asarray([[3.0, 4.0], [0.0, 0.1]])  # each keeps its length
    moved = Oblique.retract(rows, jnp.ones((2, 2)))
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), [5.0, 0.1], rtol=1e-6)


@pytest.mark.parametrize("shape", [(5, 2), (5, 3), (4, 4)])
def test_frames_stay_orthonormal_for_every_finite_tangent(shape):
    # The constraint is a property of the result, so NumPy tests it in float64.
    X = np.asarray(Stiefel.nearest(jnp.asarray(RNG.normal(size=shape), jnp.float32)))
    V = RNG.normal(size=(3, *shape))
    V[1, :, -1] = V[1, :, 0]  # a singular Gram matrix
    V[2] = 1
    V /= np.abs(V).max()
    retract = jax.jit(Stiefel.retract)
    largest = np.finfo(np.float32).max
    for length in (1e-30, 1e-3, 1, *np.logspace(2, 38, 19), largest):
        Y = np.asarray(retract(X, jnp.asarray(V * length, jnp.float32)), np.float64)
        error = np.swapaxes(Y, -1, -2) @ Y - np.eye(shape[1])
        assert np.max(np.abs(error)) < 8 * np.finfo(np.float32).eps, length


@pytest.mark.usefixtures("x64")
def test_derivatives_of_frames_are_those_of_the_cayley_transform():
    X, V = Stiefel.nearest(jnp.asarray(RNG.normal(size=(4, 2)))), RNG.normal(size=(4, 2))
    P = np.eye(4) - X @ X.T / 2

    def cayley(V):
        W = P @ V @ X.T - X @ V.T @ P  # Wen and Yin (2013), eq. 11 and lemma 3
        return jnp.linalg.solve(jnp.eye(4) - W / 2, (jnp.eye(4) + W / 2) @ X)

    for of in (lambda f: f, jax.jacfwd, jax.jacrev, jax.hessian):
        found, expected = of(lambda V: Stiefel.retract(X, V))(V), of(cayley)(V)
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_inverse_poses():
    T = _point(SE3, (4, 4)).astype(np.float32)
    np.testing.assert_allclose(
        np.asarray(jax.jit(SE3.inverse)(T)) @ T, np.eye(4), atol=4 * np.finfo(np.float32).eps * 4
    )


@pytest.mark.parametrize(
    ("manifold", "value", "message"),
    [
        (SO3, np.ones((3, 3)), r"value is \S+ away from SO3.*Project it: on\(SO3, SO3.nearest"),
        (SO3, -np.eye(3), "value is 2 away from SO3"),
        (SE2, np.eye(2), r"shape \(2, 2\), expected points of SE2: poses \[..., 3, 3\]"),
        (PositiveDefinite, -np.eye(2), "away from PositiveDefinite"),
        (Simplex, np.ones(3), "away from Simplex"),
        (UnitVector, np.full(3, np.nan), "nan away from UnitVector"),
        (UnitVector, np.zeros(3), "value is 1 away from UnitVector"),
        (Oblique, np.asarray([[3.0, 4.0], [0.0, 0.0]]), "value is 1 away from Oblique"),
        (PositiveDefinite, np.zeros((2, 2)), "value is inf away from PositiveDefinite"),
        (PositiveDefinite, np.ones((2, 2)), "value is inf away from PositiveDefinite"),
        (Simplex, np.asarray([1.0, 0.0]), "value is inf away from Simplex"),
        (PositiveDefinite, np.asarray([[1.0, 2.0], [0.0, 1.0]]), "expected symmetric positive"),
    ],
)
def test_what_is_no_point_is_refused(manifold, value, message):
    with pytest.raises(ValueError, match=message):
        on(manifold, value)
    if np.all(np.isfinite(value)) and "shape" not in message:
        on(manifold, manifold.nearest(jnp.asarray(value, jnp.float32)))


def test_wrong_arguments_are_refused_by_name():
    with pytest.raises(TypeError, match=r"manifold = float32\[3,3\], expected a manifold such as"):
        on(jnp.eye(3), SO3)
    with pytest.raises(TypeError, match="value is complex64, expected a real float array"):
        on(UnitVector, jnp.asarray([1.0 + 0j]))
    for whole in (np.eye(3, dtype=int), jnp.eye(3, dtype=int), np.eye(3, dtype=int).tolist()):
        with pytest.raises(TypeError, match=r"value is int\d+, expected a real float.*Convert it"):
            on(SO3, whole)
    for radius in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"Sphere: radius = .*, expected a positive number"):
            Sphere(radius)


@pytest.mark.parametrize(
    "use",
    [
        lambda p: p - 1,
        lambda p: 2.0 * p,
        lambda p: np.eye(3) @ p,
        lambda p: jnp.eye(3) - p,
        lambda p: -p,
        lambda p: p[0],
    ],
)
def test_arithmetic_with_a_node_names_its_value(use):
    with pytest.raises(TypeError, match=r"on\(SO3, float32\[3, 3\]\), a pytree node .*`.value`"):
        use(on(SO3, jnp.eye(3)))


class Mismatch(Manifold):
    def retract(self, x, v):
        return x + v

    def local(self, x, y):
        return y - x

    def nearest(self, y):
        return y

    def tangent_shape(self, shape):
        return (*shape[:-1], shape[-1] - 1)


EYE3, EYE4 = jnp.eye(3), jnp.eye(4)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        # JAX clamps indices, so these would otherwise return wrong numbers.
        (lambda: SO3.retract(EYE3, jnp.ones(2)), r"SO3.retract: the tangent has shape \(2,\), ex"),
        (lambda: SO3.retract(EYE3, jnp.ones(4)), r"expected \[..., 3\] at points of shape \(3, 3"),
        (lambda: SE3.retract(EYE4, v=jnp.ones(7)), r"shape \(7,\), expected \[..., 6\]"),
        (lambda: SE3.inverse(EYE3), r"shape \(3, 3\), expected points of SE3: poses \[..., 4, 4"),
        (lambda: SE3.parts(EYE3), r"SE3.parts: the point has shape \(3, 3\)"),
        (lambda: SE3.local(EYE3, EYE3), r"SE3.local: the point has shape \(3, 3\)"),
        (lambda: SE3.of(EYE3, jnp.ones(2)), r"the position has shape \(2,\), expected \[..., 3\]"),
        (lambda: SE3.of(jnp.eye(2), jnp.ones(3)), r"the rotation has shape \(2, 2\), expected"),
        (lambda: SO3.local(EYE3, EYE4), r"shape \(4, 4\), expected \[..., 3, 3\]"),
        (lambda: SO3.nearest(jnp.ones(9)), r"shape \(9,\), expected points of SO3: rotation"),
        (lambda: UnitVector.retract(jnp.ones(3), jnp.ones(2)), r"\(2,\), expected \[..., 3\]"),
        (lambda: UnitVector.gradient(jnp.ones(3), jnp.ones(2)), r"\(2,\), expected \[..., 3\]"),
        (lambda: UnitVector.transport(jnp.ones(3), jnp.ones(1)), r"\(1,\), expected \[..., 3\]"),
        (lambda: Simplex.from_coordinates(jnp.ones(3), jnp.ones(3)), r"coordinates .* \[..., 2\]"),
        (lambda: Mismatch().local(jnp.ones(3), jnp.ones(3)), r"the result has shape \(3,\).* 2\]"),
        (lambda: Rotations(4), "size is 4, expected one of 2, 3"),
        (lambda: RigidMotions(1), "size is 1, expected one of 2, 3"),
    ],
)
def test_wrong_shapes_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_an_error_of_a_users_manifold_has_the_shapes():
    with pytest.raises(TypeError) as caught:
        Mismatch().retract(jnp.ones(3), jnp.ones(2))
    assert "its tangent_shape: a point (3,), a tangent (2,)" in "".join(caught.value.__notes__)
