"""Three networks for scikit-learn's digits: perceptron, autoencoder and convolutional network."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import data
from benchmarks.training.task import (
    Task,
    dense,
    label_loss,
    layers,
    perceptron,
    shuffled_rows,
)

NO_RESIDUALS = {
    "gauss_newton": "the loss isn't a sum of squares",
    "lbfgs": "each step has a new batch",
}
LIKE_KFAC = {"kfac": "kfac_rare represents kfac"}
LIKE_GAUSS_NEWTON = {"natural_gradient": "equals gauss_newton for sums of squares"}
TOO_LARGE = {"natural_gradient": "a step solves a system with all outputs of a batch"}
LIKE_OURS = {"optax.adamw": "same updates as adamw", "optax.muon": "same updates as muon"}


def _images() -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    digits = data.digits()

    def arrays(x: Any, y: Any) -> dict[str, jax.Array]:
        return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.int32)}

    return arrays(digits.x, digits.y), arrays(digits.x_test, digits.y_test)


def _on_digits(batch: int, skip: dict[str, str], **fields: Any) -> Task:
    train, test = _images()
    draft = Task(
        draw=shuffled_rows(len(train["x"]), batch),
        take=lambda rows: jax.tree.map(lambda a: a[rows], train),
        train=train,
        test=lambda params: jnp.zeros(()),
        skip=NO_RESIDUALS | skip,
        **fields,
    )
    return draft._replace(test=lambda params: draft.loss(params, test))


def classifier(smoke: bool) -> Task:
    """Create a perceptron with two hidden layers."""
    widths = (64, 8, 10) if smoke else (64, 64, 64, 10)
    return _on_digits(
        32 if smoke else 128,
        LIKE_KFAC,
        name="digits_mlp",
        title="digits, MLP",
        test_title="test loss",
        init=perceptron(widths),
        model=lambda params, example: layers(params, example["x"], (len(widths) - 2,)),
        criterion=lambda logits, example: label_loss(logits, example["y"]),
        steps=4 if smoke else 200,
        every=2 if smoke else 4,
        size="64-64-64-10, tanh, softmax; batches of 128 of 1,438 images",
    )


def autoencoder(smoke: bool) -> Task:
    """Create the classical deep autoencoder, an ill-conditioned problem."""
    widths = (64, 4, 64) if smoke else (64, 100, 50, 25, 6, 25, 50, 100, 64)
    last = len(widths) - 2
    return _on_digits(
        32 if smoke else 256,
        LIKE_OURS | TOO_LARGE,
        name="autoencoder",
        title="digits, deep autoencoder",
        test_title="test loss",
        init=perceptron(widths),
        model=lambda params, example: layers(params, example["x"], (last // 2, last)),
        criterion=lambda z, example: jnp.sum(jax.nn.softplus(z) - example["x"] * z),
        steps=4 if smoke else 200,
        every=2,
        size="64-100-50-25-6-25-50-100-64, tanh, sigmoid cross-entropy; batches of 256 of 1,438",
    )


def _convolved(kernel: dict[str, jax.Array], x: jax.Array, stride: int) -> jax.Array:
    out = jax.lax.conv_general_dilated(
        x[None],
        kernel["w"],
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return jax.nn.relu(out[0] + kernel["b"])


def convolutional(smoke: bool) -> Task:
    """Create a network of three convolutions and a dense layer."""
    channels = (1, 2, 2, 2) if smoke else (1, 8, 16, 32)

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, 4)
        params = {}
        for i, (n, m) in enumerate(itertools.pairwise(channels)):
            kernel = jax.random.normal(keys[i], (3, 3, n, m)) * (2 / (9 * n)) ** 0.5
            params[f"conv{i}"] = {"w": kernel, "b": jnp.zeros(m)}
        return params | {"head": dense(keys[3], 4 * channels[-1], 10)}

    def model(params: Any, example: Any) -> jax.Array:
        x = example["x"].reshape(8, 8, 1)
        for i, stride in enumerate((1, 2, 2)):
            x = _convolved(params[f"conv{i}"], x, stride)
        return x.reshape(-1) @ params["head"]["w"] + params["head"]["b"]

    return _on_digits(
        16 if smoke else 128,
        LIKE_KFAC | LIKE_OURS | TOO_LARGE,
        name="digits_cnn",
        title="digits, CNN",
        test_title="test loss",
        init=init,
        model=model,
        criterion=lambda logits, example: label_loss(logits, example["y"]),
        steps=4 if smoke else 120,
        every=2 if smoke else 3,
        size="3 x 3 convolutions to 8, 16, 32 channels, strides 1, 2, 2, relu; batches of 128",
    )
