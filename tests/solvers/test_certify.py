"""The numbers of a certificate, recomputed from the solution with NumPy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.residuals import huber

DTYPES = ["float32", "float64"]
T = np.linspace(0.0, 3.0, 12)
Y = 2 * np.exp(-0.7 * T) + 0.3 + 0.05 * np.sin(9 * T)


def recomputed(end, free=None):
    """The certificate in float64: optimality, decrement, rank, and the params with a null part."""
    J = np.asarray(end.jacobian, np.float64)
    r = np.concatenate([np.ravel(part) for part in jax.tree.leaves(end.residuals)])
    eps = np.finfo(r.dtype).eps
    r = r.astype(np.float64)
    columns = np.linalg.norm(J, axis=0)
    units = J / np.where(columns > 0, columns, 1)
    s, Vt = np.linalg.svd(units, full_matrices=False)[1:]
    noise = min(32, max(J.shape)) * eps * s[0]
    rank = int(np.sum(s > noise))
    null = np.sum(Vt[:rank] ** 2, axis=0) < 1 - eps**0.5
    part = units if free is None else units * np.asarray(free)
    U, s, _ = np.linalg.svd(part, full_matrices=False)
    within = U[:, s > noise].T @ r
    cosines = np.abs(part.T @ r) / np.linalg.norm(r)
    return np.max(cosines), within @ within / (r @ r), rank, null | (columns == 0)


def check(end, dtype, free=None):
    eps = np.finfo(dtype).eps
    optimality, decrement, rank, undetermined = recomputed(end, free)
    found = end.certificate
    assert found.optimality.dtype == found.decrement.dtype == dtype
    # Both are rounding itself at a solution: a few units of the residuals' parts.
    np.testing.assert_allclose(found.optimality, optimality, rtol=1e3 * eps, atol=20 * eps)
    root = np.sqrt(np.asarray(found.decrement, np.float64))
    np.testing.assert_allclose(root, np.sqrt(decrement), rtol=1e3 * eps, atol=50 * eps)
    assert int(end.rank) == rank
    np.testing.assert_array_equal(found.undetermined, undetermined)


def decay(p, y, twice=0.0):
    """A decay and a level; or twice the level, which is then of deficient rank."""
    t = jnp.asarray(T, p.dtype)
    heights, levels = (1 - twice) * p[0] * jnp.exp(-p[1] * t), p[2] + twice * p[0]
    return heights + levels - y


FITS = {
    "decay": {},
    "in two units": {"sigma": 1e3},
    "bounds, one active": {"bounds": (jnp.asarray([0, 0.9, -1]), jnp.asarray([9, 9, 9]))},
    "bounds, none active": {"bounds": (-9, 9)},
    "robust": {"loss": huber(scale=0.02)},
    "cauchy": {"loss": "cauchy", "f_scale": 0.1},
}


@functools.partial(jax.jit, static_argnums=(0, 1))
def fitted(name, max_steps, start, y, twice):
    options = jax.tree.map(lambda a: jnp.asarray(a, start.dtype), FITS[name].get("bounds"))
    options = FITS[name] | ({} if options is None else {"bounds": options})
    return fnopt.least_squares(decay, start, args=(y, twice), max_steps=max_steps, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FITS)
def test_every_number_follows_from_the_solution(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        y, twice = jnp.asarray(Y, dtype), jnp.zeros((), dtype)
        for most in (1000, 2, 0):  # at the solution, on the way, and at the start
            end = fitted(name, most, jnp.asarray([1, 1, 0], dtype), y, twice)
            assert bool(end.converged) == (most == 1000), end.message
            free = None if end.at_bound is None else np.asarray(end.at_bound) == 0
            robust = "loss" in FITS[name]
            check(scaled_by_loss(name, end) if robust else end, dtype, free)
            if name == "bounds, one active" and most == 1000:
                np.testing.assert_array_equal(free, [True, False, True])


def scaled_by_loss(name, end):
    """The solution with the residuals that the linear model has, whose J^T r is the gradient."""
    r = np.asarray(end.residuals, np.float64)
    if name == "robust":
        z, c = r**2 / 0.02**2, 0.02
        slope, bend = np.where(z > 1, z**-0.5, 1), np.where(z > 1, -0.5 * z**-1.5, 0)
    else:
        z, c = r**2 / 0.1**2, 0.1
        slope, bend = 1 / (1 + z), -1 / (1 + z) ** 2
    del c
    curvature = np.maximum(slope + 2 * z * bend, np.finfo(end.cost.dtype).eps)
    weighted = slope * r / np.sqrt(curvature)
    return end._replace(residuals=np.asarray(weighted, end.cost.dtype))
