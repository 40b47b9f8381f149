"""Steps that don't depend on the size of gradients, at sizes whose squares are no numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

GRADS = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
SCALE_FREE = {
    "dog": fnopt.dog(eps=0.0, init_step=("distance", 0.1)),
    "dowg": fnopt.dowg(eps=0.0, init_estim_sq_dist=0.01),
    "novograd": fnopt.novograd(0.1, eps=0.0),
    "layerwise_dog": fnopt.chain(
        fnopt.scale_by_distance_over_gradients(0.1, eps=0.0), fnopt.scale(-1.0)
    ),
    "normalized": fnopt.hypergradient(fnopt.novograd(0.1, eps=0.0), 0.1, 0.1, normalized=True),
}


def run(tx):
    @jax.jit
    def steps(size):
        def body(carry, g):
            params, state = carry
            updates, state = tx.update({"w": size * g}, state, params)
            return (fnopt.apply_updates(params, updates), state), updates["w"]

        start = {"w": jnp.ones(5)}
        return jax.lax.scan(body, (start, tx.init(start)), jnp.asarray(GRADS))[1]

    return lambda size: np.asarray(steps(jnp.float32(size)))


@pytest.mark.parametrize("name", SCALE_FREE)
def test_the_same_steps_at_any_size(name):
    steps = run(SCALE_FREE[name])
    for size in (1e-24, 1e20):
        np.testing.assert_allclose(steps(size), steps(1.0), rtol=2e-5, atol=1e-7)


RECOVERING = {
    "adam": fnopt.scale_by_adam(0.5, 0.9),
    "amsgrad": fnopt.scale_by_amsgrad(0.5, 0.9),
    "rmsprop": fnopt.scale_by_rms(0.9),
    "adabelief": fnopt.scale_by_belief(0.5, 0.9),
    "adan": fnopt.scale_by_adan(0.9, 0.9, 0.9),
    "adam_mini": fnopt.scale_by_adam_mini(0.5, 0.9),
}

NOISE = np.random.default_rng(1).standard_normal(1000).astype(np.float32)


@jax.jit
def after_a_shock(size):
    """The first updates of all, and those after a thousand ordinary ones."""
    params = {"w": jnp.ones(3)}

    def steps(tx):
        def body(carry, g):
            updates, state = tx.update({"w": jnp.stack([g, -g, 0.5 * g])}, carry, params)
            return state, updates["w"]

        gradients = jnp.asarray(NOISE).at[0].set(size)
        return jax.lax.scan(body, tx.init(params), gradients)[1]

    return {name: steps(tx) for name, tx in RECOVERING.items()}


@pytest.mark.parametrize("size", [1e20, 1e30])
def test_one_gradient_out_of_range_is_forgotten(size):
    ordinary, shocked = after_a_shock(jnp.float32(1.0)), after_a_shock(jnp.float32(size))
    for name, updates in shocked.items():
        assert np.max(np.abs(updates)) < 30, name  # mu over the root of nu, at its largest
        if name != "amsgrad":  # which forgets nothing
            np.testing.assert_allclose(updates[-1], ordinary[name][-1], rtol=1e-3, err_msg=name)


def test_prodigy_at_large_ones():
    """Its squares are those of estimate and gradient together; small ones meet its epsilon."""
    steps = run(fnopt.prodigy(estim_lr0=1e-3))
    np.testing.assert_allclose(steps(1e20), steps(1e3), rtol=1e-3, atol=1e-9)
