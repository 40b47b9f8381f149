"""Functions of the params, for transforms that see the params in another form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

FREE = {"a": jnp.asarray([3.0, -2.0]), "b": jnp.asarray([[1.0]])}
PARAMS = {**FREE, "fixed": jnp.asarray(2.0)}


def loss(params):
    curved = jnp.sum(jnp.asarray([1.0, 7.0]) * (params["a"] - params["fixed"]) ** 2)
    return curved + jnp.sum((params["b"] + params["a"]) ** 4)


def trained(tx, loss=loss, params=PARAMS, steps=4):
    def body(carry, _):
        params, state = carry
        value, grad = jax.value_and_grad(loss)(params)
        grad = jax.tree.map(jnp.conj, grad)
        extras = {"value": value, "grad": grad, "value_fn": loss, "obj_fn": loss}
        updates, state = tx.update(grad, state, params, **extras)
        return (fnopt.apply_updates(params, updates), state), value

    run = jax.jit(lambda p: jax.lax.scan(body, (p, tx.init(p)), length=steps)[0][0])
    return jax.tree.map(np.asarray, run(params))


def without(params):
    return loss({**params, "fixed": jnp.asarray(2.0)})


OTHERS = fnopt.by_pattern({"fixed": "held"}, default="free")


@pytest.mark.parametrize(
    "make", [fnopt.lbfgs, lambda: fnopt.sophia(0.1, update_interval=1)], ids=["lbfgs", "sophia"]
)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda tx: fnopt.freeze(tx, "fixed"),
        lambda tx: fnopt.partition({"free": tx, "held": fnopt.set_to_zero()}, OTHERS),
        lambda tx: fnopt.freeze(fnopt.flatten(tx), "fixed"),
    ],
    ids=["freeze", "partition", "flatten"],
)
def test_what_evaluates_the_loss_works_under_masks_and_as_a_vector(make, wrap):
    flat = "flatten" in repr(wrap(make()))
    expected = trained(fnopt.flatten(make()) if flat else make(), without, FREE)
    ours = trained(wrap(make()))
    assert ours["fixed"] == 2
    for name in FREE:
        np.testing.assert_allclose(ours[name], expected[name], rtol=2e-5, atol=1e-6)
    if flat and make is fnopt.lbfgs:  # all leaves are one problem to it, however they lie
        np.testing.assert_allclose(ours["a"], trained(make(), without, FREE)["a"], rtol=1e-3)


def test_a_line_search_for_pairs_of_real_parts():
    params = {"z": jnp.asarray([3.0 + 1.0j, -1.0j]), "r": jnp.asarray(2.0)}

    def loss(params):
        return jnp.sum(jnp.abs(params["z"] - 1.0j) ** 2) + (params["r"] - 1.0) ** 2

    found = trained(fnopt.split_real_and_imaginary(fnopt.lbfgs()), loss, params)
    np.testing.assert_allclose(found["z"], [1.0j, 1.0j], atol=1e-3)
    np.testing.assert_allclose(found["r"], 1.0, atol=1e-3)
