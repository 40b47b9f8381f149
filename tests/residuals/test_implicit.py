"""The derivative of a minimum, by a matrix and without one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.residuals import _implicit, minimum_tangent


def cost(x, d):
    bends = jnp.sum(jnp.square(x[1:] - x[:-1]))
    return jnp.sum(jnp.cosh(x - d)) + bends


@pytest.mark.parametrize("held", [False, True])
def test_products_alone_give_what_the_matrix_gives(held, monkeypatch):
    x = jnp.linspace(-1, 1, 12)
    d, change = x**2, jnp.cos(3 * x)
    fixed = (x > 0.5, x) if held else None

    def tangent(change):
        return minimum_tangent(cost, x, d, change, fixed)

    by_matrix = tangent(change)
    monkeypatch.setattr(_implicit, "_LARGEST_FORMED", 5)
    np.testing.assert_allclose(tangent(change), by_matrix, rtol=1e-4, atol=1e-5)
    v = jnp.sin(x)
    transposed = jax.vjp(tangent, change)[1](v)[0]
    moved = jax.jvp(tangent, (change,), (change,))[1]
    np.testing.assert_allclose(jnp.vdot(transposed, change), jnp.vdot(v, moved), rtol=1e-3)


def test_many_params_need_no_square_of_them():
    shape = jax.ShapeDtypeStruct((3000,), jnp.float32)
    program = jax.make_jaxpr(lambda *a: minimum_tangent(cost, *a))(shape, shape, shape)
    assert "3000,3000" not in str(program)
