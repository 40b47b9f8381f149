from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import hardest_examples

X = jnp.array([[3.0, 4.0], [0.0, 1.0], [-6.0, -8.0], [0.0, 2.0], [1.0, 1.0]])


def linear(w, x):
    return w @ x


@pytest.mark.parametrize("options", [{"method": "ghost"}, {"chunk_size": 2}, {"method": "vmap"}])
def test_by_norm_and_loss_against_sorting(options):
    w = jnp.array([1.0, 0.5])
    norms, losses = np.linalg.norm(X, axis=1), np.asarray(X @ w)
    for by, score in {"norm": norms, "loss": losses}.items():
        found = jax.jit(hardest_examples(linear, 3, by=by, **options))(w, X)
        order = np.argsort(-score)[:3]
        assert found.index.tolist() == order.tolist()
        np.testing.assert_allclose(found.score, score[order], rtol=1e-6)
        np.testing.assert_allclose(found.norm, norms[order], rtol=1e-6)
        np.testing.assert_allclose(found.loss, losses[order], rtol=1e-6)
    assert found.index.dtype == jnp.int32


def test_by_disagreement_with_the_others():
    found = jax.jit(hardest_examples(linear, 5, by="disagreement"))(jnp.zeros(2), X)
    others = np.asarray(X).sum(0) - np.asarray(X)
    cosine = (X * others).sum(1) / np.linalg.norm(X, axis=1) / np.linalg.norm(others, axis=1)
    assert found.index.tolist() == np.argsort(cosine).tolist()
    assert found.index[0] == 2  # the one huge gradient does not hide behind itself
    np.testing.assert_allclose(found.score, -np.sort(cosine), atol=1e-6)


@pytest.mark.parametrize("by", ["norm", "disagreement"])
def test_broken_examples_come_first_and_spoil_no_other(by):
    x = X.at[3].set(jnp.nan)
    found = jax.jit(hardest_examples(linear, 5, by=by))(jnp.zeros(2), x)
    rest = jax.jit(hardest_examples(linear, 4, by=by))(jnp.zeros(2), jnp.delete(x, 3, axis=0))
    assert found.index[0] == 3
    assert jnp.isnan(found.score[0])
    np.testing.assert_allclose(found.score[1:], rest.score, atol=1e-6)


def test_padding_and_aux():
    def loss(w, x):
        return w @ x, {"first": x[0]}

    where = jnp.array([True, False, False, True, False])
    found = jax.jit(hardest_examples(loss, 3, has_aux=True))(jnp.zeros(2), X, where=where)
    assert found.index.tolist() == [0, 3, -1]
    assert found.aux["first"][:2].tolist() == [3.0, 0.0]


def test_errors():
    with pytest.raises(ValueError, match="by is 'size', expected one of 'norm', 'loss', 'disagr"):
        hardest_examples(linear, 2, by="size")
    with pytest.raises(ValueError, match="k is 6, expected at most 5"):
        hardest_examples(linear, 6)(jnp.zeros(2), X)
    with pytest.raises(ValueError, match="k is 0, expected at least 1"):
        hardest_examples(linear, 0)
    with pytest.raises(TypeError, match=r"k is 2\.0, expected an int"):
        hardest_examples(linear, 2.0)
