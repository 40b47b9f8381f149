"""Errors of users' functions, wherever these are called."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

PARAMS = {"dense": {"w": jnp.ones(3)}, "b": jnp.ones(3)}
BATCH = jnp.ones((4, 3))


def of_batch(make):
    return lambda fn: make(lambda params, example: jnp.sum(fn(params) * example))(PARAMS, BATCH)


CALLS = {
    "per_example_grads": of_batch(fnopt.per_example_grads),
    "clipped_grad": of_batch(lambda fn: fnopt.clipped_grad(fn, 1.0)),
    "per_example_norms": of_batch(fnopt.per_example_norms),
    "per_example_jacobian": of_batch(fnopt.per_example_jacobian),
    "fisher_vp": of_batch(
        lambda fn: lambda params, batch: fnopt.curvature.fisher_vp(fn)(params, params, batch)
    ),
    "jacobian": lambda fn: fnopt.jacobian(fn)(PARAMS),
    "sparse_jacobian": lambda fn: fnopt.sparse_jacobian(fn)(PARAMS),
    "capture": lambda fn: fnopt.capture(fn, "h")(PARAMS),
    "cost": lambda fn: fnopt.costs.cost(fn)(PARAMS),
    "least_squares": lambda fn: fnopt.least_squares(fn, PARAMS),
    "minimize": lambda fn: fnopt.minimize(lambda p: jnp.sum(fn(p)), PARAMS),
    "curve_fit_batch": lambda fn: fnopt.curve_fit_batch(
        lambda x, params: fn(params), BATCH[0], BATCH, {"b": 1.0}
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_written_for_jax_is_told_the_line(name):
    def numpy_function(params):
        return np.exp(params["b"])

    with pytest.raises(
        TypeError, match=rf"{name}: .* calls np\.exp; write jnp\.exp, because .*`return"
    ):
        CALLS[name](numpy_function)


@pytest.mark.parametrize("name", CALLS)
def test_a_missing_key_is_told_which_there_are(name):
    with pytest.raises(KeyError) as caught:
        CALLS[name](lambda params: params["bias"])
    keys = "['b']" if name == "curve_fit_batch" else "['b', 'dense/w']"
    assert f"params have the keys {keys}." in caught.value.__notes__


def test_an_attribute_of_a_dict_is_told_how_to_write_it():
    with pytest.raises(AttributeError) as caught:
        CALLS["per_example_grads"](lambda params: params.dense)
    assert "For a dict, write ['dense'] instead of .dense." in caught.value.__notes__


def test_a_decision_by_a_value_and_a_number_of_math():
    def branching(params):
        return params["b"] if params["b"][0] > 0 else -params["b"]

    with pytest.raises(
        TypeError, match=r"branches in Python on the value of an array; write jnp\.where"
    ):
        CALLS["clipped_grad"](branching)
    with pytest.raises(TypeError, match=r"calls math\.exp; write jnp\.exp"):
        CALLS["capture"](lambda params: math.exp(params["b"][0]))
