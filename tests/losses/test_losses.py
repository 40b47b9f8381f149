"""What holds for every loss."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt import losses
from tests.losses.cases import CASES

every = pytest.mark.parametrize("name", CASES)


def arguments(name, dtype):
    """The arguments, of numbers that float32 holds."""
    rounded = jax.tree.map(np.float32, (CASES[name].x, CASES[name].aux))
    return jax.tree.map(lambda a: jnp.asarray(a).astype(dtype), rounded)


def value_and_gradient(module, name, dtype):
    """The losses, and the gradient of a sum with different weights (so that none cancels)."""
    x, aux = arguments(name, dtype)

    def weighted(x):
        out = CASES[name].call(module, x, aux)
        weights = 1 + jnp.arange(out.size).reshape(out.shape).astype(out.dtype) / 7
        return jnp.sum(weights * out), out

    (_, out), grad = jax.value_and_grad(weighted, has_aux=True)(x)
    return out, grad


def peer(name):
    optax = pytest.importorskip("optax")
    with jax.numpy_dtype_promotion("standard"):
        return value_and_gradient(optax.losses, name, jnp.float64)


@functools.cache
def everything(name):
    """Ours in three precisions and the peer in float64; one program, as compiling is dear."""

    def run():
        half, wide = (
            CASES[name].call(losses, x, aux)
            for x, aux in (
                arguments(name, jnp.bfloat16),
                jax.tree.map(lambda a: a.astype(jnp.float32), arguments(name, jnp.bfloat16)),
            )
        )
        ours = {dt: value_and_gradient(losses, name, dt) for dt in ("float32", "float64")}
        return half, wide, ours, peer(name)

    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        return jax.jit(run)()


def test_the_table_has_every_loss():
    tested = {n for n in losses.__all__ if any(c == n or c.startswith(f"{n}_") for c in CASES)}
    assert tested == set(losses.__all__)


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_agrees_with_optax_in_value_and_gradient(name, dtype):
    _, _, ours, theirs = everything(name)
    rtol, atol = {"float32": (2e-5, 2e-6), "float64": (1e-11, 1e-13)}[dtype]
    for mine, other in zip(ours[dtype], theirs, strict=True):
        assert mine.shape == other.shape
        assert mine.dtype == dtype
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=atol)


@every
def test_half_precision_is_computed_in_float32(name):
    """Rounded inputs, exact arithmetic: as if the 16-bit numbers had been float32 all along."""
    half, wide, _, _ = everything(name)
    labels = name.startswith("smooth_labels")  # a change of labels, no loss: it keeps their dtype
    assert half.dtype == (jnp.bfloat16 if labels else jnp.float32)
    np.testing.assert_allclose(half, wide.astype(half.dtype), rtol=1e-6, atol=1e-6)


@every
def test_integer_predictions_are_refused(name):
    case = CASES[name]
    with pytest.raises(TypeError, match=r"is int32\[.*\], expected a real floating array"):
        case.call(losses, np.ones(case.x.shape, np.int32), case.aux)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"huber_loss: delta is -1\.0, expected a number > 0"):
        losses.huber_loss(jnp.ones(2), delta=-1.0)
    labels, where = jnp.asarray([0]), jnp.asarray([True, True])
    with pytest.raises(ValueError, match=r"`where` has shape \(2, 1\), expected .* \(1, 3\)"):
        losses.softmax_cross_entropy_with_integer_labels(jnp.zeros((1, 3)), labels, where=where)
