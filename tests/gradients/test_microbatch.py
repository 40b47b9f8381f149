from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

X = jnp.sin(jnp.arange(14.0)).reshape(7, 2)
Y = jnp.cos(jnp.arange(7.0))
W = jnp.asarray([0.5, -1.0])


def loss(w, batch, *, scale):
    x, y = batch
    return jnp.sum(scale[:, None] * (x @ w - y)[:, None] ** 2)


@pytest.mark.parametrize("size", [1, 3, 7, 20, None])
def test_sums_of_parts_are_the_sum(size):
    """Parts that don't divide the batch included."""
    scale = jnp.arange(7.0)
    grad = jax.jit(fnopt.microbatch(jax.grad(loss), 1, size, argnames="scale"))
    np.testing.assert_allclose(
        grad(W, (X, Y), scale=scale), jax.grad(loss)(W, (X, Y), scale=scale), rtol=1e-5
    )


def test_every_result_by_its_own_rule():
    def fun(x):
        return {"rows": jnp.square(x), "sums": (jnp.sum(x), jnp.int32(x.shape[0])), "m": x.mean(0)}

    rules = {"rows": "concat", "sums": "sum", "m": "mean"}
    out = jax.jit(fnopt.microbatch(fun, 0, 3, rules))(X)
    np.testing.assert_allclose(out["rows"], X**2, rtol=1e-6)
    np.testing.assert_allclose(out["sums"][0], X.sum(), rtol=1e-5)
    assert int(out["sums"][1]) == 7
    np.testing.assert_allclose(out["m"], X.mean(0), rtol=1e-5)


def test_sums_of_many_half_precision_parts_are_made_in_float32():
    ones = jnp.full((2000, 1), 0.01, jnp.bfloat16)
    total = fnopt.microbatch(lambda x: x.sum(), 0, 1)(ones)
    assert total.dtype == jnp.bfloat16
    np.testing.assert_allclose(float(total), 2000 * float(jnp.bfloat16(0.01)), rtol=1e-2)


def test_another_axis_and_other_arguments():
    def fun(a, x):
        return a * jnp.sum(x, axis=1)

    ours = fnopt.microbatch(fun, 1, 3, in_axes=1)(2.0, X.T)
    np.testing.assert_allclose(ours, 2 * X.sum(0), rtol=1e-5, atol=1e-6)


def test_micro_vmap_is_vmap():
    def fun(w, x, y):
        return {"e": x @ w - y}

    ours = fnopt.micro_vmap(fun, in_axes=(None, 1, 0), microbatch_size=3)(W, X.T, Y)
    np.testing.assert_allclose(ours["e"], X @ W - Y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fnopt.microbatch(jnp.sum, 0, 0), ValueError, "microbatch_size is 0"),
        (lambda: fnopt.microbatch(jnp.sum, 0, 2, "max"), ValueError, "expected one of 'sum'"),
        (lambda: fnopt.microbatch(loss, 1, 2)(W, (X, Y[:3])), ValueError, "axes of the batch"),
        (
            lambda: fnopt.microbatch(jnp.sum, 0, 2, "mean")(np.arange(4)),
            TypeError,
            "a result is int32, expected a float dtype for .mean.",
        ),
    ],
)
def test_bad_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
