"""Small arrays of one type as one, and the norm of many leaves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.numerics import stack_alike
from fnopt.programs import jaxprs
from tests.contract.trees import many_leaves


def test_small_arrays_of_one_type_are_one_array_and_others_stay():
    leaves = [*jax.tree.leaves(many_leaves(40)), jnp.ones(3, jnp.bfloat16)]
    found = stack_alike(leaves)
    assert sorted(i for own in found for i in own.places) == list(range(41))
    assert sorted(own.array.shape for own in found if len(own.places) > 1) == [
        (10,),
        (10, 2, 3),
        (10, 3),
    ]
    for own in found:
        for row, i in zip(own.map(lambda x: 2 * x), own.places, strict=True):
            np.testing.assert_array_equal(row, 2 * leaves[i])


@pytest.mark.parametrize("size", [1.0, 1e25, 1e-25, np.inf, np.nan])
def test_the_norm_of_many_leaves(size):
    grads = many_leaves(40, size=size)
    flat = np.concatenate([np.ravel(x).astype(np.float64) for x in grads.values()])
    np.testing.assert_allclose(fnopt.global_norm(grads), np.linalg.norm(flat), rtol=1e-6)
    slopes = jax.grad(fnopt.global_norm)(grads)
    if np.isfinite(size):
        for name, x in grads.items():
            want = np.asarray(x, np.float64) / np.linalg.norm(flat)
            np.testing.assert_allclose(slopes[name], want, rtol=1e-5, atol=1e-12)


def test_the_norm_of_many_small_leaves_is_a_small_program():
    program = jax.make_jaxpr(fnopt.global_norm)([jnp.ones(3)] * 400)
    assert jaxprs.program_size(program.jaxpr) < 500
