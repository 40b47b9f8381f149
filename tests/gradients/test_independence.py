from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from fnopt.gradients import check_examples_independent

W = jnp.array([1.0, -2.0])
X = jax.random.normal(jax.random.key(0), (6, 2))


def alone(w, x):
    return jnp.tanh(x @ w)


def normed(w, x):
    return alone(w, (x - x.mean(0)) / x.std(0))


def test_losses_that_do_not_mix():
    assert check_examples_independent(alone, probes=6)(W, X) is None
    assert check_examples_independent(lambda w, x: alone(w, x), probes=1)(W, X) is None


def test_batch_statistics():
    with pytest.raises(ValueError, match=r"a change of example 0 changed the losses of 5 oth"):
        check_examples_independent(normed)(W, X)
    with pytest.raises(ValueError, match="train=False"):
        check_examples_independent(normed)(W, X)


def test_a_single_neighbor_is_enough():
    def shifted(w, x):
        return alone(w, x) + 1e-4 * alone(w, jnp.roll(x, 1, axis=0))

    with pytest.raises(ValueError, match=r"the losses of 1 other example \(example 1: from"):
        check_examples_independent(shifted)(W, X)


def test_flax_batch_norm():
    nn = pytest.importorskip("flax.linen")
    model = nn.BatchNorm()
    variables = model.init(jax.random.key(0), X, use_running_average=True)

    def losses(train):
        def run(variables, batch):
            y, new = model.apply(
                variables, batch["x"], use_running_average=not train, mutable=["batch_stats"]
            )
            return jnp.sum(y**2, axis=1) * batch["y"], new

        return check_examples_independent(run, has_aux=True)

    batch = {"x": X, "y": jnp.arange(1.0, 7.0)}
    losses(train=False)(variables, batch)
    with pytest.raises(ValueError, match="Batch norm in training mode has this effect"):
        losses(train=True)(variables, batch)


def test_integers_keys_and_several_arguments():
    def losses(tokens, w, keys):
        return w[tokens % 2] + jax.vmap(jax.random.normal)(keys)

    args = jnp.arange(4), W, jax.random.split(jax.random.key(0), 4)
    check_examples_independent(losses, batch_argnums=(0, 2))(*args)


def test_equal_examples_are_passed_over():
    with pytest.raises(ValueError, match="examples aren't independent"):
        check_examples_independent(normed)(W, X.at[1].set(X[0]))
    with pytest.raises(ValueError, match="all examples of the batch are equal"):
        check_examples_independent(alone)(W, jnp.ones((3, 2)))
    with pytest.raises(ValueError, match="all examples of the batch are equal"):
        check_examples_independent(alone)(W, X[:1])


def test_errors():
    with pytest.raises(ValueError, match=r"losses are float32\[\], expected shape \(6,\)"):
        check_examples_independent(lambda w, x: jnp.mean(alone(w, x)))(W, X)
    with pytest.raises(
        ValueError, match=r"losses of 1 example are not finite, .*the loss of example 2"
    ):
        check_examples_independent(alone)(W, X.at[2].set(jnp.nan))
    with pytest.raises(TypeError, match="arguments are traced"):
        jax.jit(check_examples_independent(alone))(W, X)
    with pytest.raises(ValueError, match="batch is empty: argument 1"):
        check_examples_independent(alone)(W, X[:0])
    with pytest.raises(ValueError, match=r"batch_argnums is \(3,\), expected indices of the 2"):
        check_examples_independent(alone, batch_argnums=3)(W, X)
    with pytest.raises(ValueError, match="probes is 0, expected at least 1"):
        check_examples_independent(alone, probes=0)
