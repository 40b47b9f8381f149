"""What the messages say when a call is wrong; all of it while tracing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import (
    clipped_grad,
    gradient_similarity,
    gradient_statistics,
    hardest_examples,
    per_example_grads,
    per_example_norms,
    value_and_per_example_grads,
    value_and_weighted_grad,
    weighted_grad,
)


def loss(w, x):
    return jnp.sum(w * x)


W, X = jnp.ones(2), jnp.ones((3, 2))
BUILD = {
    "per_example_grads": per_example_grads,
    "value_and_per_example_grads": value_and_per_example_grads,
    "weighted_grad": weighted_grad,
    "value_and_weighted_grad": value_and_weighted_grad,
    "clipped_grad": lambda fn, **options: clipped_grad(fn, 1.0, **options),
    "per_example_norms": per_example_norms,
    "gradient_statistics": gradient_statistics,
    "gradient_similarity": gradient_similarity,
    "hardest_examples": lambda fn, **options: hardest_examples(fn, 2, **options),
}


@pytest.fixture(params=BUILD)
def name(request):
    return request.param


def call(name, fn, params, batch, **options):
    run = jax.jit(BUILD[name](fn, **options))
    weights = (jnp.ones(3),) if "weighted" in name else ()
    return run(params, batch, *weights)


def test_example_axes_that_disagree(name):
    batch = {"x": jnp.ones((3, 2)), "y": jnp.ones(4)}
    with pytest.raises(
        ValueError, match=rf"^{name}: .* different lengths: .*'x': 3.*'y': 4.*per example"
    ):
        call(name, loss, W, batch)


def test_a_batch_leaf_without_an_example_axis(name):
    with pytest.raises(ValueError, match="argument 1, leaf 'temperature' of the batch is float32"):
        call(name, loss, W, {"temperature": jnp.float32(1.0), "x": X})


@pytest.mark.parametrize("value", [1.0, "text", None])
def test_a_batch_that_is_no_array(value):
    with pytest.raises(ValueError, match=r"without an example axis|contains no array"):
        per_example_grads(loss)(W, value)


def test_an_empty_batch(name):
    with pytest.raises(ValueError, match=r"batch is empty: argument 1, .* is float32\[0,2\]"):
        call(name, loss, W, X[:0])


def test_a_loss_of_the_whole_batch(name):
    with pytest.raises(TypeError, match=r"ONE example returned float32\[2\], expected a scalar"):
        call(name, lambda w, x: w * x, W, X)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (lambda s: (s, s), "returned tuple.*has_aux=True if it returns"),
        (lambda s: None, "returned NoneType"),
        (lambda s: s.astype(jnp.int32), r"returned int32\[\], expected a real float"),
        (lambda s: s.astype(jnp.complex64), r"returned complex64\[\], expected a real float"),
    ],
)
def test_a_loss_that_is_no_real_scalar(name, output, text):
    with pytest.raises(TypeError, match=text):
        call(name, lambda w, x: output(loss(w, x)), W, X)


def test_has_aux_without_aux(name):
    with pytest.raises(
        TypeError, match=r"the loss returned .*, expected a pair \(value, aux\), because has_aux"
    ):
        call(name, loss, W, X, has_aux=True)


def test_integer_params(name):
    params = {"layers": [W, jnp.arange(2)]}
    with pytest.raises(TypeError, match=r"leaf 'layers/1' is int32\[2\], which has no gradient"):
        call(name, lambda p, x: loss(p["layers"][0], x), params, X)


def test_params_with_a_function_in_them():
    with pytest.raises(TypeError, match=r"leaf 'act' is .*equinox.partition"):
        per_example_grads(lambda p, x: loss(p["w"], x))({"w": W, "act": jnp.tanh}, X)


@pytest.mark.parametrize(
    ("chunk_size", "error", "text"),
    [
        (0, ValueError, "chunk_size is 0, expected at least 1, or None for the default"),
        (-2, ValueError, "chunk_size is -2"),
        (2.0, TypeError, "chunk_size is 2.0, expected an int, or None for the default"),
        (True, TypeError, "chunk_size is True"),
    ],
)
def test_chunk_size(name, chunk_size, error, text):
    with pytest.raises(error, match=f"^{name}: {text}"):
        BUILD[name](loss, chunk_size=chunk_size)


def test_a_chunk_size_of_numpy_is_fine():
    assert per_example_grads(loss, chunk_size=np.int64(2))(W, X).shape == (3, 2)


def test_a_loss_that_is_no_function(name):
    with pytest.raises(TypeError, match=r"the loss is Array.*, expected a function"):
        BUILD[name](W)


@pytest.mark.parametrize(
    "weights", [jnp.ones(4), jnp.ones((3, 1)), jnp.float32(1.0), 1.0], ids=repr
)
def test_weights_of_the_wrong_shape(weights):
    with pytest.raises(ValueError, match=r"weights are .*, expected shape \(3,\): one weight per"):
        weighted_grad(loss)(W, X, weights)


def test_complex_weights():
    with pytest.raises(TypeError, match=r"weights are complex64\[3\], expected real"):
        weighted_grad(loss)(W, X, jnp.ones(3, jnp.complex64))


def test_positions():
    with pytest.raises(TypeError, match="got 1 positional argument and no batch"):
        per_example_grads(loss)(W)
    with pytest.raises(TypeError, match=r"2 positional arguments, expected .*, weights"):
        weighted_grad(loss)(W, X)
    with pytest.raises(TypeError, match=r"expected \(params, batch, ..., weights\)"):
        weighted_grad(loss)()
    with pytest.raises(TypeError, match=r"3 positional arguments, expected .*, weights"):
        weighted_grad(lambda w, x, y: loss(w, x) - y)(W, X, jnp.ones(3))
    with pytest.raises(TypeError, match=r"2 positional arguments, .* as the last positional"):
        weighted_grad(loss)(W, X, weights=jnp.ones(3))
    with pytest.raises(ValueError, match=r"argnums is \(2,\), expected indices of the 2"):
        per_example_grads(loss, argnums=2)(W, X)
    with pytest.raises(ValueError, match=r"batch_argnums is \(5,\), expected indices of the 2"):
        per_example_grads(loss, batch_argnums=5)(W, X)
    with pytest.raises(ValueError, match="argument 1 is in argnums and in batch_argnums"):
        per_example_grads(loss, argnums=1, batch_argnums=1)(W, X)
    with pytest.raises(ValueError, match="which contains an argument twice"):
        per_example_grads(loss, argnums=(0, -2))(W, X)


def test_keys():
    def noisy(w, x, *, key):
        return loss(w, x) * jax.random.normal(key)

    for key in (jax.random.split(jax.random.key(0), 3), jnp.ones(2), 3):
        with pytest.raises(TypeError, match="expected one PRNG key"):
            per_example_grads(noisy)(W, X, key=key)
    with pytest.raises(
        TypeError, match=r"norms: key is None, expected a PRNG .*key=jax\.random\.key"
    ):
        per_example_norms(noisy)(W, X)
    with pytest.raises(TypeError, match="positional argument"):  # another fault than a key
        per_example_norms(noisy)(W, X, X, key=jax.random.key(0))


@pytest.mark.parametrize("name", ["clipped_grad", "per_example_norms"])
def test_methods(name):
    with pytest.raises(
        ValueError, match="'gost', expected one of 'auto', 'vmap', 'chunked', 'ghost'"
    ):
        BUILD[name](loss, method="gost")
    with pytest.raises(ValueError, match=r"chunk_size = 2 with method = 'vmap'"):
        BUILD[name](loss, method="vmap", chunk_size=2)


def test_reductions():
    with pytest.raises(ValueError, match=r"^weighted_grad: reduction is 'avg', .*'sum', 'mean'"):
        weighted_grad(loss, reduction="avg")
    with pytest.raises(ValueError, match=r"^clipped_grad: reduction is None, expected one of"):
        clipped_grad(loss, 1.0, reduction=None)


@pytest.mark.parametrize("clip_norm", [0.0, -1, float("nan"), jnp.float32(0.0)], ids=repr)
def test_clip_norms_that_are_not_positive(clip_norm):
    with pytest.raises(ValueError, match=r"clip_norm is .*, expected a positive number"):
        clipped_grad(loss, clip_norm)


@pytest.mark.parametrize("clip_norm", ["1", None, True, jnp.ones(2), {}, {"w": "1"}], ids=repr)
def test_clip_norms_that_are_no_number(clip_norm):
    with pytest.raises(TypeError, match=r"clip_norm is .*, expected one number"):
        clipped_grad(loss, clip_norm)


def test_clip_norms_that_are_another_tree_than_the_params():
    with pytest.raises(ValueError, match=r"clip_norm is .*'w'.*expected one number, or a tree"):
        clipped_grad(loss, {"w": 1.0})(W, X)
    with pytest.raises(ValueError, match=r"^clipped_grad: leaf 'w': clip_norm is -1"):
        clipped_grad(loss, {"w": -1})


def test_rules():
    with pytest.raises(ValueError, match=r"^clipped_grad: rule is 'hard', .*'clip', 'automatic'"):
        clipped_grad(loss, 1.0, rule="hard")


@pytest.mark.parametrize("where", [True, jnp.ones(3), jnp.ones(2, jnp.bool_)], ids=repr)
def test_where(where):
    with pytest.raises(ValueError, match=r"`where` is .*, expected bool\[3\]"):
        clipped_grad(loss, 1.0)(W, X, where=where)
