from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import add_noise, clipped_grad, sensitivity

KEY = jax.random.key(0)


def test_the_noise_is_normal_with_the_deviation_that_is_reported():
    zeros = {"a": jnp.zeros((100, 100)), "b": jnp.zeros(10_000)}
    noisy, info = add_noise(zeros, KEY, 1.5, clip_norm=2.0)
    assert info == (3.0, 2.0)
    a, b = np.ravel(noisy["a"]), np.asarray(noisy["b"])
    for x in (a, b):
        np.testing.assert_allclose([x.mean(), x.std()], [0.0, 3.0], atol=0.1)
    kurtosis = np.mean(a**4) / np.mean(a**2) ** 2
    np.testing.assert_allclose(kurtosis, 3.0, atol=0.2)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.05  # every leaf has its own


def test_it_is_added():
    grads = {"w": jnp.arange(4.0)}
    with_noise, _ = add_noise(grads, KEY, 0.1, 1.0)
    alone, _ = add_noise({"w": jnp.zeros(4)}, KEY, 0.1, 1.0)
    np.testing.assert_allclose(with_noise["w"], grads["w"] + alone["w"], rtol=1e-6)
    silent, info = add_noise(grads, KEY, 0.0, 1.0)
    np.testing.assert_array_equal(silent["w"], grads["w"])
    assert info.stddev == 0


def test_every_step_has_its_own_noise():
    zeros = jnp.zeros(3)
    first, again, second = (add_noise(zeros, KEY, 1.0, 1.0, step=s)[0] for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not jnp.any(first == second)
    assert not jnp.any(first == add_noise(zeros, KEY, 1.0, 1.0)[0])


def test_sensitivity():
    zeros = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    _, info = add_noise(zeros, KEY, 2.0, {"a": 3.0, "b": 4.0}, batch_size=10)
    np.testing.assert_allclose([info.sensitivity, info.stddev], [0.5, 1.0], rtol=1e-6)


def test_no_example_moves_the_sum_by_more_than_the_sensitivity():
    limits = {"a": 0.3, "b": 0.4}
    params = {"a": jnp.ones(3), "b": jnp.ones(3)}
    x = 10 * jax.random.normal(KEY, (6, 3))

    def loss(params, x):
        return jnp.tanh(params["a"] @ x) + jnp.sum((params["b"] * x) ** 2)

    total, _ = clipped_grad(loss, limits)(params, x)
    without, _ = clipped_grad(loss, limits)(params, x[1:])
    _, info = add_noise(total, KEY, 1.0, limits)
    moved = sum(np.sum((total[k] - without[k]) ** 2) for k in limits) ** 0.5
    assert moved <= info.sensitivity * (1 + 1e-5)


def test_under_jit_and_in_low_precision():
    @jax.jit
    def run(grads, multiplier, step):
        return add_noise(grads, KEY, multiplier, jnp.float32(1.0), step=step)

    noisy, info = run({"w": jnp.zeros(3, jnp.bfloat16)}, jnp.float32(2.0), jnp.int32(7))
    assert (noisy["w"].dtype, info.stddev.dtype) == (jnp.bfloat16, jnp.float32)
    assert info.stddev == 2.0


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((KEY, -1.0, 1.0), ValueError, "noise_multiplier is -1.0, expected a number >= 0"),
        ((KEY, float("nan"), 1.0), ValueError, "noise_multiplier is nan"),
        ((KEY, "1", 1.0), TypeError, "noise_multiplier is str, expected one number"),
        ((KEY, jnp.ones(2), 1.0), TypeError, "noise_multiplier is float32.2., expected one"),
        (
            (KEY, 1.0, {"a": 1.0, "b": jnp.inf}),
            ValueError,
            "clip_norm is inf, expected a finite number",
        ),
        ((KEY, 1.0, 0.0), ValueError, "clip_norm is 0.0, expected a positive number"),
        ((3, 1.0, 1.0), TypeError, "add_noise: key is int, expected one PRNG key"),
    ],
)
def test_errors(args, error, text):
    with pytest.raises(error, match=text):
        add_noise(jnp.zeros(2), *args)


def test_errors_in_other_arguments():
    with pytest.raises(TypeError, match="add_noise: grads: leaf 'n' is int32"):
        add_noise({"n": jnp.zeros(2, jnp.int32)}, KEY, 1.0, 1.0)
    with pytest.raises(ValueError, match="batch_size is 0, expected a positive number"):
        add_noise(jnp.zeros(2), KEY, 1.0, 1.0, batch_size=0)
    with pytest.raises(TypeError, match=r"`step` is float32\[\], expected one integer"):
        add_noise(jnp.zeros(2), KEY, 1.0, 1.0, step=1.5)


def test_sensitivity_is_that_of_the_noise():
    limits = {"a": 3.0, "b": 4.0}
    grads = {"a": jnp.zeros(2), "b": {"w": jnp.zeros(3)}}
    _, info = add_noise(grads, jax.random.key(0), 1.0, limits, batch_size=2)
    assert float(sensitivity(limits, batch_size=2)) == float(info.sensitivity) == 2.5
    with pytest.raises(ValueError, match=r"add_noise: clip_norm is .*expected one number"):
        add_noise({"a": jnp.zeros(2)}, jax.random.key(0), 1.0, {"b": 1e-6})
    with pytest.raises(ValueError, match="sensitivity: clip_norm is inf"):
        sensitivity(jnp.inf)
