"""The Gauss-Newton-Bartlett estimator: its mean is the diagonal of the Gauss-Newton matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.optimizers import gauss_newton_bartlett_estimator_diag_hessian as bartlett

X = np.random.default_rng(3).standard_normal((3, 2))
W = np.random.default_rng(4).standard_normal((2, 4))
PARAMS = {"w": jnp.asarray(W, jnp.float32)}


def logits(params):
    return jnp.asarray(X, jnp.float32) @ params["w"]


def test_its_mean_is_the_diagonal_of_the_gauss_newton_matrix():
    tx = bartlett()

    @jax.jit
    def estimates(counts):
        state = tx.init(PARAMS)
        one = lambda n: tx.update(None, state._replace(count=n), PARAMS, logits_fn=logits)  # noqa: E731
        return jax.vmap(lambda n: one(n)[0]["w"])(counts)

    samples = np.asarray(estimates(jnp.arange(4096)), np.float64)
    z = np.exp(X @ W)
    p = z / z.sum(1, keepdims=True)
    # The Hessian of cross-entropy by logits is diag(p) - p p^T, that of logits by w is zero.
    exact = (X**2).T @ (p * (1 - p)) / len(X)
    error = samples.std(0) / np.sqrt(len(samples))
    assert (np.abs(samples.mean(0) - exact) < 5 * error).all()
    assert (samples >= 0).all()
    assert (error < 0.05 * exact.max()).all()


def test_an_estimate_that_is_not_finite_stays_out_of_sophia():
    tx = fnopt.sophia(0.1, update_interval=1, hessian_diagonal_fn=bartlett())
    params = {"w": jnp.ones((2, 3))}
    logits = lambda x: lambda params: x @ params["w"]  # noqa: E731
    step = jax.jit(lambda s, x: tx.update(params, s, params, logits_fn=logits(x))[1])
    good = step(tx.init(params), jnp.ones((4, 2)))
    kept = fnopt.slots(good)["nu"]["w"]
    assert bool((kept > 0).any())
    for bad in (jnp.nan, 1e25):  # whose square is infinite
        nu = fnopt.slots(step(good, bad * jnp.ones((4, 2))))["nu"]["w"]
        assert bool(jnp.isfinite(nu).all())


def test_inside_sophia():
    tx = fnopt.sophia(0.1, hessian_diagonal_fn=bartlett(), weight_decay=0.0)
    state = jax.eval_shape(lambda p: tx.update(p, tx.init(p), p, logits_fn=logits)[1], PARAMS)
    assert fnopt.slots(state)["nu"]["w"].shape == W.shape
    with pytest.raises(TypeError, match="needs the extra argument 'logits_fn'"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)


@pytest.mark.parametrize("wrong", [lambda p: jnp.zeros(()), lambda p: jnp.zeros(2, int)])
def test_refuses_what_are_no_logits(wrong):
    tx = bartlett()
    with pytest.raises(ValueError, match=r"logits_fn returned .*, expected one real array"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS, logits_fn=wrong)
