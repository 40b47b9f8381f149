"""What a loss may return beside its value."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt import gradients

X, BATCH = jnp.ones(2), jnp.ones((3, 2))
WEIGHTED = ("weighted_grad", "value_and_weighted_grad")
OPTIONS = {"clipped_grad": {"clip_norm": 1.0}, "hardest_examples": {"k": 1}}
NAMES = [
    *("per_example_grads", "value_and_per_example_grads", "per_example_norms", "clipped_grad"),
    *("gradient_statistics", "gradient_similarity", "hardest_examples", *WEIGHTED),
]


def call(name, aux, jit=False):
    def loss(p, x):
        return jnp.sum(p * x) ** 2, aux

    fn = getattr(gradients, name)(loss, has_aux=True, **OPTIONS.get(name, {}))
    args = (X, BATCH, jnp.ones(3)) if name in WEIGHTED else (X, BATCH)
    return (jax.jit(fn) if jit else fn)(*args)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_array_is_named(name, jit):
    with pytest.raises(TypeError, match=rf"^{name}: the aux of the loss: leaf 'w' is 'a word'"):
        call(name, {"w": "a word", "x": 1.0}, jit)
    with pytest.raises(TypeError, match="expected an array or a number"):
        call(name, np.array(["a word"]), jit)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_arrays_and_nothing_are_taken(name):
    call(name, {"a": 1, "b": np.ones(2), "c": None, "d": True})
