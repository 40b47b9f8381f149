"""One name in several branches of a `cond`, and taps that are gone from a gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.taps import capture, tap

X = jnp.asarray([1.0, 2.0])


def either(x, square):
    def yes(x):
        return jnp.sum(tap("h", x**2))

    def no(x):
        return 2 * jnp.sum(tap("h", 3 * x))

    return jax.lax.cond(square, yes, no, x)


@pytest.mark.parametrize("names", [None, "h", "h*"])
@pytest.mark.parametrize("square", [True, False])
def test_a_name_in_both_branches_is_that_of_the_branch_taken(names, square):
    _, seen = jax.jit(capture(either, names, cotangents=True))(X, square)
    np.testing.assert_array_equal(seen.values["h"], X**2 if square else 3 * X)
    np.testing.assert_array_equal(seen.cotangents["h"], [1.0, 1.0] if square else [2.0, 2.0])
    _, seen = capture(either, names, reduce="max")(X, square)
    assert float(seen.values["h"]) == (4.0 if square else 6.0)


def test_each_iteration_of_a_scan_has_the_branch_that_it_took():
    def loss(x):
        def body(total, i):
            return total + either(x, i % 2 == 0), None

        return jax.lax.scan(body, 0.0, jnp.arange(3))[0]

    _, seen = capture(loss, "h")(X)
    np.testing.assert_array_equal(seen.values["h"], [X**2, 3 * X, X**2])


def test_a_single_branch_can_still_be_chosen():
    assert [node.name for node in fnopt.nodes(either)(X, True)] == ["h#0", "h#1"]
    _, seen = capture(either, "h#0")(X, True)
    assert [*seen.values] == ["h#0"]


def test_names_of_other_shapes_or_of_both_conds_stay_apart():
    def loss(x, square):
        first = either(x, square)
        return first + jax.lax.cond(square, lambda x: jnp.sum(tap("h", x)), jnp.sum, x)

    _, seen = capture(loss, "h")(X, True)
    assert len(seen.values) == 3

    def other(x, square):
        def yes(x):
            return jnp.sum(tap("h", x))

        return jax.lax.cond(square, yes, lambda x: tap("h", jnp.sum(x)), x)

    _, seen = capture(other, "h")(X, True)
    assert {*seen.values} == {"h#0", "h#1"}


@pytest.mark.parametrize("differentiate", [jax.grad, jax.value_and_grad, jax.jacrev])
def test_a_function_that_differentiates_says_what_to_do(differentiate):
    def loss(x):
        return jnp.sum(tap("h", x) ** 2)

    with pytest.raises(ValueError, match=r"jax.grad .* pass the loss itself"):
        capture(lambda x: differentiate(loss)(x))(X)
    with pytest.raises(ValueError, match=r"no node is called 'h'.* pass the loss itself"):
        capture(lambda x: tap("outside", differentiate(loss)(x)), "h")(X)
    _, seen = capture(loss, cotangents=True, argnums=0)(X)  # what it says
    np.testing.assert_array_equal(seen.grads, 2 * X)
