"""Sets given by their projection: of any size, and derivatives of solutions on their edge."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.projections import projection_l2_ball, projection_simplex

TARGET = np.asarray([2.0, -1.0, 3.0], np.float32)


@jax.jit
def in_ball(radius, middle, weight):
    """The point of a ball that is next to the target, from the middle of the ball."""

    def onto(x):
        return middle + projection_l2_ball(x - middle, radius)

    def fun(x):
        return weight * jnp.sum((x - TARGET) ** 2)

    return fnopt.minimize(fun, jnp.full(3, middle), projection=onto)


# Pulled by a gradient of 1, no point of a small ball moves far: that is no reason to stay.
@pytest.mark.parametrize("radius", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("weight", [1e-3, 1.0, 1e6])
def test_the_edge_of_a_small_ball_is_reached(radius, weight):
    end = in_ball(jnp.float32(radius), jnp.float32(0), jnp.float32(weight))
    expected = radius * TARGET / np.linalg.norm(TARGET)
    np.testing.assert_allclose(end.params, expected, rtol=1e-2, atol=1e-2 * radius)


def test_a_small_ball_that_is_not_at_zero():
    end = in_ball(jnp.float32(1e-3), jnp.float32(1), jnp.float32(1))
    out = TARGET - 1
    np.testing.assert_allclose(end.params - 1, 1e-3 * out / np.linalg.norm(out), atol=2e-5)


def weighted(t, scale):
    w = jnp.asarray([1.0, 2.0, 3.0], t.dtype)
    return fnopt.minimize(
        lambda x: jnp.sum(w * (x - t) ** 2),
        jnp.full(3, 1 / 3, t.dtype),
        projection=lambda x: projection_simplex(x, scale),
        gtol=1e-10,
        ftol=0.0,
    ).params


def test_the_derivative_of_a_solution_on_the_simplex(x64):
    # Of the active set: x = t - nu / w on it, with the sum given.
    t, w = jnp.asarray([0.9, 0.6, -2.0]), np.asarray([1.0, 2.0])
    inner = np.eye(2) - np.outer(1 / w, np.ones(2)) / np.sum(1 / w)
    expected = np.pad(inner, ((0, 1), (0, 1)))
    by_target = jax.jacrev(weighted)(t, 1.0)
    np.testing.assert_allclose(by_target, expected, atol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(weighted)(t, 1.0), by_target, atol=1e-9)
    by_scale = jax.jacfwd(weighted, argnums=1)(t, 1.0)
    np.testing.assert_allclose(by_scale, np.append(1 / w / np.sum(1 / w), 0), atol=1e-6)


@jax.jit
def rosenbrock_in_a_box(start, lower, upper):
    def fun(x):
        return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2

    return fnopt.minimize(fun, start, method="projected_gradient", bounds=(lower, upper))


# A search that lowers the value in every step takes more than a thousand evaluations.
def test_a_bent_valley_in_a_box():
    end = rosenbrock_in_a_box(*np.float32([[-1.2, 1.0], [-2, -2], [2, 2]]))
    assert bool(end.converged), end.message
    assert int(end.nfev) < 200
    np.testing.assert_allclose(end.params, 1, atol=1e-2)


def test_a_bent_valley_that_leads_to_a_bound():
    end = rosenbrock_in_a_box(*np.float32([[-1.2, 0.5], [-2, -2], [2, 0.8]]))
    assert bool(end.converged), end.message
    np.testing.assert_allclose(end.params, [0.8**0.5, 0.8], atol=2e-3)


@pytest.mark.parametrize("onto", [lambda p: {"a": p["a"][:1]}, lambda p: {"a": jnp.sum(p["a"])}])
def test_a_projection_returns_the_shape_of_the_params(onto):
    with pytest.raises(
        ValueError, match=r"projection returned .*'a'.* of shapes .*params, .*\[\(2,\)\]"
    ):
        fnopt.minimize(lambda p: jnp.sum(p["a"] ** 2), {"a": jnp.ones(2)}, projection=onto)
