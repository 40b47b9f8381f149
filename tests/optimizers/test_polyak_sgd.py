import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


def path(m, tx, params, steps=20):
    """The params along Polyak's steps on a quadratic, whose smallest value is 0."""

    def loss(p):
        return sum(jnp.sum((i + 1) * x**2) for i, x in enumerate(jax.tree.leaves(p)))

    state = tx.init(params)
    for _ in range(steps):
        value, g = jax.value_and_grad(loss)(params)
        updates, state = tx.update(g, state, params, value=value)
        params = m.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("variant", ["sps", "sps+"])
def test_agrees_with_optax(variant):
    optax = pytest.importorskip("optax")
    params = {"a": jnp.asarray([1.0, -2.0]), "b": jnp.asarray(0.5)}
    kwargs = {"max_learning_rate": 0.3, "f_min": 0.0, "eps": 1e-3, "variant": variant}
    ours = path(fnopt, fnopt.polyak_sgd(**kwargs), params)
    with jax.numpy_dtype_promotion("standard"):
        theirs = path(optax, optax.polyak_sgd(**kwargs), params)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)


def test_a_linear_loss_is_solved_by_one_step():
    tx, params = fnopt.polyak_sgd(max_learning_rate=10.0, f_min=-1.0), {"w": jnp.asarray(2.0)}
    updates, _ = tx.update({"w": jnp.asarray(0.5)}, tx.init(params), params, value=1.0)
    assert float(updates["w"]) == -4.0  # from a loss of 1 down to -1 along a slope of 1/2


def test_a_zero_gradient_is_no_step():
    tx, params = fnopt.polyak_sgd(), {"w": jnp.ones(2)}
    updates, _ = tx.update({"w": jnp.zeros(2)}, tx.init(params), params, value=jnp.asarray(3.0))
    assert updates["w"].tolist() == [0.0, 0.0]


def test_the_loss_is_asked_for_by_name():
    tx, params = fnopt.polyak_sgd(), {"w": jnp.ones(2)}
    with pytest.raises(TypeError, match="needs the extra argument 'value'"):
        tx.update(params, tx.init(params), params)


def test_unknown_variants_are_refused():
    with pytest.raises(ValueError, match="variant is 'sps-', expected one of"):
        fnopt.polyak_sgd(variant="sps-")
