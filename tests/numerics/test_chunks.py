from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fnopt.gradients._loss import BoundLoss
from fnopt.gradients._strategy import choose_strategy
from fnopt.numerics._batching import scan_chunks


def running(carry, chunk):
    assert chunk["a"].shape[0] == chunk["b"][0].shape[0]
    return carry + jnp.sum(chunk["a"]), {"twice": chunk["a"] * 2, "b": chunk["b"]}


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 9), chunk_size=st.none() | st.integers(1, 11))
def test_equals_the_body_on_the_whole_batch(size, chunk_size):
    with jax.disable_jit():
        batch = {"a": np.arange(size), "b": (np.ones((size, 2, 0), np.float32), None)}
        zero = jnp.zeros((), jnp.int32)
        total, outputs = scan_chunks(running, zero, batch, size, chunk_size)
    assert int(total) == size * (size - 1) // 2
    np.testing.assert_array_equal(outputs["twice"], 2 * np.arange(size))
    assert outputs["b"][0].shape == (size, 2, 0)


@pytest.mark.parametrize(("size", "shapes"), [(6, [(3, 2)]), (7, [(3, 2), (1, 2)])])
def test_the_body_is_traced_once_more_for_a_remainder(size, shapes):
    traces = []

    def body(carry, chunk):
        traces.append(chunk.shape)
        return carry, chunk

    scan_chunks(body, None, jnp.zeros((size, 2)), size, 3)
    assert traces == shapes


@given(size=st.integers(1, 500), width=st.integers(1, 10**7))
def test_a_chunk_that_is_chosen_fits_its_budget(size, width):
    params = jax.ShapeDtypeStruct((width,), jnp.float32)
    bound = BoundLoss(lambda params, example: (jnp.zeros(()), None), params, (), size, params)
    budget = (4 if jax.default_backend() == "cpu" else 512) * 2**20
    chunk = choose_strategy("chunked", None, bound).chunk_size
    assert 1 <= chunk <= size
    assert chunk == 1 or chunk * width * 4 <= budget
    assert choose_strategy("vmap", None, bound).chunk_size is None
    assert choose_strategy("chunked", 3, bound).chunk_size == 3
