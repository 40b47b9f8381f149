"""Roots of the Hessian of cross entropies, without an eigenvalue problem, against the dense one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fnopt
from fnopt import losses
from fnopt.curvature import KroneckerModel, KroneckerSpec
from fnopt.curvature._softmax_loss import is_softmax_loss, softmax_rows

C, POSITIONS = 3, 2
LABELS = jnp.asarray([2, 0])


def _cut(f):
    return f.reshape(POSITIONS, C)


def _masked(f, example):
    scores = jnp.where(jnp.asarray([True, True, False]), _cut(f), -jnp.inf)
    return losses.softmax_cross_entropy(scores, jax.nn.one_hot(jnp.asarray([1, 0]), C)).sum()


def _scan(f, example):
    return jax.lax.scan(lambda c, z: (c + jax.nn.logsumexp(z), None), 0 * f[0], _cut(f))[0]


CROSS_ENTROPIES = {
    "logsumexp": lambda f, y: jnp.mean(jax.nn.logsumexp(_cut(f), axis=1)) - f[0],
    "log_softmax": lambda f, y: -jnp.sum(jax.nn.log_softmax(_cut(f))[jnp.arange(2), LABELS]),
    "classes first": lambda f, y: jnp.sum(jax.nn.logsumexp(f.reshape(C, POSITIONS), axis=0)),
    "temperature": lambda f, y: jax.nn.logsumexp(f / 3 + 0.5 * jnp.arange(6)) * y[0] ** 2,
    "optax": lambda f, y: optax.softmax_cross_entropy_with_integer_labels(_cut(f), LABELS).mean(),
    "ours": lambda f, y: jnp.mean(
        losses.softmax_cross_entropy_with_integer_labels(_cut(f), LABELS) * jnp.abs(y[:2])
    ),
    "masked": _masked,
    "two heads": lambda f, y: jax.nn.logsumexp(f[:4]) + 2 * jax.nn.logsumexp(f[3:]) + y[0] * f[5],
    "saturated": lambda f, y: jax.nn.logsumexp(1e3 * f),
}
OTHERS = {
    "squares": lambda f, y: jnp.sum((f - y) ** 2),
    "z loss": lambda f, y: jax.nn.logsumexp(f) ** 2,
    "focal": lambda f, y: -((1 - jax.nn.softmax(f)[0]) ** 2) * jax.nn.log_softmax(f)[0],
    "of squares": lambda f, y: jax.nn.logsumexp(f**2),
    "sigmoid": lambda f, y: jnp.sum(jax.nn.softplus(f)),
    "linear": lambda f, y: f @ y,
    "product": lambda f, y: jax.nn.logsumexp(f) * f[0],
    "scan": _scan,  # not followed: its Hessian is formed
    "weighted sum": lambda f, y: jax.nn.logsumexp(f, b=1.0 + 0.5 * jnp.arange(6)),
}


@pytest.mark.usefixtures("x64")
def test_rows_have_the_hessian_as_second_moment():
    f, y = np.random.default_rng(0).standard_normal((2, 6))
    key = jax.random.key(0)

    @jax.jit
    @jax.numpy_dtype_promotion("standard")
    def both(f, y):
        out = {}
        for name in ("classes first", "temperature", "ours", "masked", "two heads"):
            loss = CROSS_ENTROPIES[name]
            # All signs are orthogonal to each other in the mean; of many the moment is near.
            rows = softmax_rows(loss, f, y, key, 4096)
            out[name] = rows.T @ rows, jax.hessian(loss)(f, y), rows.dtype == f.dtype
        return out

    for name, (found, wanted, typed) in both(f, y).items():
        assert typed
        atol = 0.05 * np.abs(wanted).max() + 1e-30
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol, err_msg=name)
        # Every row sums to zero over a softmax, whatever the signs are.
        np.testing.assert_allclose(found @ np.ones(6), wanted @ np.ones(6), atol=1e-11)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_what_is_a_cross_entropy_is_read_from_the_program(dtype):
    with jax.numpy_dtype_promotion("standard"):
        y = jax.ShapeDtypeStruct((6,), jnp.float32)
        for name, loss in CROSS_ENTROPIES.items():
            assert is_softmax_loss(loss, 6, dtype, y), name
        for name, loss in OTHERS.items():
            assert not is_softmax_loss(loss, 6, dtype, y), name


def _eigenproblems(jaxpr):
    from fnopt.programs import jaxprs

    return sum(e.primitive.name == "eigh" for e in jaxprs.equations(jaxpr))


def test_a_language_model_needs_no_eigenvalue_problem():
    # 700 letters were too many for a Hessian; now they are a product and a sum.
    count, batch = 700, (jnp.ones((2, 5, 3)), jnp.zeros((2, 5), jnp.int32))
    params = {"w": jnp.ones((3, count))}

    def model(params, example):
        return example[0] @ params["w"]

    def loss(f, example):
        return losses.softmax_cross_entropy_with_integer_labels(f, example[1]).mean()

    tx = fnopt.kfac(model, loss, batch)

    def step(params, batch):
        return tx.update(None, tx.init(params), params, batch=batch)

    assert not _eigenproblems(jax.make_jaxpr(step)(params, batch).jaxpr)
    exact = KroneckerModel(KroneckerSpec(model, loss, None), params, batch)
    with pytest.raises(ValueError, match="couples 700 outputs"):
        jax.eval_shape(lambda: exact.factors(exact.outputs(params), jax.random.key(0)))
