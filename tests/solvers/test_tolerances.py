"""Tolerances that are no number to stop at: each function says so in its own name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

X = jnp.arange(5.0)


def _line(x, a, b):
    return a * x + b


CALLS = {
    "minimize": lambda **tol: fnopt.minimize(lambda p: jnp.sum(p**2), jnp.ones(2), **tol),
    "root": lambda **tol: fnopt.root(lambda p: p**3 - 8, jnp.ones(2), **tol),
    "fixed_point": lambda **tol: fnopt.fixed_point(jnp.cos, jnp.ones(2), **tol),
    "least_squares": lambda **tol: fnopt.least_squares(lambda p: p - 3, jnp.ones(2), **tol),
    "curve_fit": lambda **tol: fnopt.curve_fit(_line, X, X, **tol),
    "curve_fit_batch": lambda **tol: fnopt.curve_fit_batch(_line, X, X[None], (1.0, 1.0), **tol),
}
OWN = {
    "root": ("tol",),
    "fixed_point": ("tol",),
    "minimize": ("tol", "ftol", "xtol", "gtol"),
    "curve_fit_batch": ("ftol", "xtol", "gtol", "radius"),
}
PAIRS = [(name, tol) for name in CALLS for tol in OWN.get(name, ("ftol", "xtol", "gtol"))]


@pytest.mark.parametrize(("name", "tol"), PAIRS)
@pytest.mark.parametrize("value", ["a", 1j, jnp.ones(3), -1.0, float("nan")], ids=str)
def test_what_is_no_tolerance_is_named(name, tol, value):
    with pytest.raises((TypeError, ValueError), match=rf"^\w+: {tol}.*expected"):
        CALLS[name](**{tol: value})


@pytest.mark.parametrize(("name", "tol"), [pair for pair in PAIRS if pair[1] != "damping"])
def test_a_tolerance_may_be_traced(name, tol):
    """And the test that 0 switches off doesn't keep the search from its end."""
    jax.jit(lambda value: CALLS[name](**{tol: value}))(0.0)


def test_params_that_are_one_vector_without_a_start():
    """`IndexError: array is 0-dimensional`, without a word of the missing start."""
    with pytest.raises(IndexError) as caught:
        fnopt.curve_fit(lambda x, p: p[0] * x + p[1], X, X)
    assert any("p0 isn't passed" in note for note in caught.value.__notes__)
    popt, _ = fnopt.curve_fit(lambda x, *p: jnp.stack(p)[0] * x + p[1], X, X + 2, [1.0, 1.0])
    assert jnp.allclose(popt, jnp.asarray([1.0, 2.0]), atol=1e-5)


def test_a_function_that_is_not_for_jax_is_not_told_of_its_start():
    with pytest.raises(TypeError, match="write jnp") as caught:
        fnopt.curve_fit(lambda x, a: np.exp(a) * x, X, X)
    assert not any("p0" in note for note in getattr(caught.value, "__notes__", ()))
