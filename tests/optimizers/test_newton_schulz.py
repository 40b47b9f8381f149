"""Orthogonal factors by polynomials, against float64 and against the polynomials' own theory."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.optimizers._newton_schulz import (
    PRECONDITIONINGS,
    PRESETS,
    _is_gram_cheaper,
    as_coefficients,
    orthogonalize_matrices,
    polynomials,
)

EPS = 1e-8


def reference(x, coefficients, kind):
    """The iteration of one matrix in float64, step by step."""
    x = x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
    A = x @ x.conj().T
    if kind == "aol":
        s = 1 / np.sqrt(np.maximum(np.abs(A).sum(1), EPS**2))
        x = s[:, None] * x
    elif kind == "schatten":
        x = x / max(np.sqrt(np.linalg.norm(A)), EPS)
    else:
        x = x / (np.linalg.norm(x, 2 if kind == "spectral" else "fro") + EPS)
    for a, b, c in coefficients:
        A = x @ x.conj().T
        x = a * x + (b * A + c * A @ A) @ x
    return x


@functools.lru_cache
def compiled(preset, steps, kind):
    return jax.jit(
        lambda x: orthogonalize_matrices(x, polynomials(preset, steps), jnp.float32(EPS), kind)
    )


def matrices(m, n, seed=0):
    """One with singular values from 1 to 1e-4, one ordinary, one of rank 1, one zero."""
    rng = np.random.default_rng(seed)
    u, v = (
        np.linalg.qr(rng.standard_normal((m, m)))[0],
        np.linalg.qr(rng.standard_normal((n, m)))[0],
    )
    graded = u * np.logspace(0, -4, m) @ v.T
    plain, one = rng.standard_normal((m, n)), np.outer(np.ones(m), rng.standard_normal(n))
    return np.stack([graded, plain, one, np.zeros((m, n))]).astype(np.float32)


@pytest.mark.parametrize("kind", PRECONDITIONINGS)
@pytest.mark.parametrize("shape", [(4, 5), (4, 24)], ids=["square", "wide"])
def test_equals_the_iteration_in_float64(kind, shape):
    x = matrices(*shape)
    assert _is_gram_cheaper(x, 5) == (shape[1] == 24)
    for preset in ("standard",) if kind != "frobenius" else PRESETS:
        actual = compiled(preset, 5, kind)(x)
        for a, one in zip(actual, x, strict=True):
            expected = reference(one, polynomials(preset, 5), kind)
            # AOL divides by rows: what rounding does to a row of zeros in A is in it.
            np.testing.assert_allclose(a, expected, atol=3e-4, rtol=3e-4)


@pytest.mark.parametrize("shape", [(4, 5), (4, 24)], ids=["square", "wide"])
def test_polar_express_is_the_orthogonal_factor(shape):
    x = matrices(*shape)[:2]
    u, _, v = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    for steps in (9, 12):
        actual = compiled("polar_express", steps, "frobenius")(x)
        np.testing.assert_allclose(actual[1], u[1] @ v[1], atol=2e-5)
        if steps == 12:  # singular values of 1e-4 need more steps than those of 1e-3
            np.testing.assert_allclose(actual[0], u[0] @ v[0], atol=2e-3)


def test_a_few_at_a_time():
    x = matrices(64, 130)
    fn = compiled("standard", 5, "frobenius")
    mapped = "scan" in str(jax.make_jaxpr(fn)(x))
    assert mapped == (jax.default_backend() == "cpu")
    for a, one in zip(fn(x), x, strict=True):
        expected = reference(one, polynomials("standard", 5), "frobenius")
        np.testing.assert_allclose(a, expected, atol=3e-4, rtol=3e-4)


@pytest.mark.parametrize("size", [1e-24, 1e20])
def test_any_magnitude(size):
    x = matrices(4, 24)[:3]
    fn = jax.jit(lambda x: orthogonalize_matrices(x, polynomials("standard", 5), jnp.float32(0.0)))
    np.testing.assert_allclose(fn(x * np.float32(size)), fn(x), atol=2e-5)


def test_a_matrix_with_nan_spoils_no_other():
    x = matrices(4, 24)
    x[1, 0, 0] = np.nan
    actual = compiled("standard", 5, "frobenius")(x)
    assert np.isnan(actual[1]).any()
    assert np.isfinite(actual[jnp.asarray([0, 2, 3])]).all()


def test_complex_matrices():
    x = (matrices(4, 24) + 1j * matrices(4, 24, 1)).astype(np.complex64)
    actual = compiled("standard", 5, "frobenius")(x)
    expected = [reference(one, polynomials("standard", 5), "frobenius") for one in x]
    np.testing.assert_allclose(actual, np.stack(expected), atol=3e-4)


def minimax_quintic(low, high):
    """The odd quintic that is closest to 1 on an interval, by Remez' exchange."""
    if low / high >= 1 - 5e-6:
        return 15 / 8 / high, -10 / 8 / high**3, 3 / 8 / high**5
    inner = np.array([(3 * low + high) / 4, (low + 3 * high) / 4])
    for _ in range(60):
        points = np.array([low, *inner, high])
        system = np.stack([points, points**3, points**5, [1, -1, 1, -1]], axis=1)
        a, b, c, _ = np.linalg.solve(system, np.ones(4))
        inner = np.sqrt((-3 * b + np.array([-1, 1]) * np.sqrt(9 * b**2 - 20 * a * c)) / (10 * c))
    return a, b, c


def test_polar_express_are_the_minimax_polynomials_of_the_paper():
    low, high, cushion = 1e-3, 1.0, 0.02407327424182761
    for i, found in enumerate(polynomials("polar_express", 7)):
        a, b, c = minimax_quintic(max(low, cushion * high), high)
        values = [a * x + b * x**3 + c * x**5 for x in (low, high)]
        a, b, c = (2 / sum(values) * k for k in (a, b, c))  # the values' middle is 1
        expected = a / 1.01, b / 1.01**3, c / 1.01**5
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=f"step {i}")
        low = a * low + b * low**3 + c * low**5
        high = 2 - low


def test_coefficients_that_are_none():
    for bad in ("quick", (1.0, 2.0), ((1.0, 2.0, 3.0), (1.0,)), ()):
        with pytest.raises(ValueError, match="ns_coeffs"):
            as_coefficients(bad)
    assert as_coefficients([[1, 2, 3]]) == ((1.0, 2.0, 3.0),)
    assert len(polynomials("polar_express", 11)) == 11
    assert len(polynomials("dion", 3)) == 3
