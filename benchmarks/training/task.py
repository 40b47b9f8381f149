"""What is trained, in the form that every method can use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Task(NamedTuple):
    """A model, its data and how long it is trained; the same for all methods.

    Attributes:
        name: As the command line has it.
        title: For tables and pictures.
        test_title: What `test` is.
        init: `init(key) -> params`.
        draw: `draw(rng, steps)` gives what makes the batches, a tree of arrays `[steps, ...]`.
        take: `take(item) -> batch`, a tree of arrays with a leading axis of examples.
        model: `model(params, example) -> outputs`, of one example.
        criterion: `criterion(outputs, example) -> scalar`; the loss is its mean.
        train: The batch that the training loss of the record is read on.
        test: `test(params) -> scalar`, on data that no method has seen.
        steps: How many.
        every: How many steps there are between two readings.
        size: How large it is, in words.
        skip: Methods that it isn't made for, and why.
        untuned: Methods whose trainings take too long for trials: their two numbers.
        residuals: Residual functions of one example, and `rows(batch)`, the examples of each.
        full: The one batch of the methods that need a function which stays the same.
        wide: Whether it is trained in float64.
    """

    name: str
    title: str
    test_title: str
    init: Callable[[jax.Array], Any]
    draw: Callable[[np.random.Generator, int], Any]
    take: Callable[[Any], Any]
    model: Callable[[Any, Any], Any]
    criterion: Callable[[Any, Any], jax.Array]
    train: Any
    test: Callable[[Any], jax.Array]
    steps: int
    every: int
    size: str
    skip: dict[str, str]
    untuned: tuple[tuple[str, tuple[float, float]], ...] = ()
    residuals: tuple[Any, Callable[[Any], Any]] | None = None
    full: Any = None
    wide: bool = False

    def loss(self, params: Any, batch: Any) -> jax.Array:
        """The mean of the criterion."""
        outputs = jax.vmap(self.model, (None, 0))(params, batch)
        return jnp.mean(jax.vmap(self.criterion)(outputs, batch))


def dense(key: jax.Array, n: int, m: int) -> dict[str, jax.Array]:
    """A random matrix whose outputs have the size of its inputs, and a bias of zero."""
    return {"w": jax.random.normal(key, (n, m)) / n**0.5, "b": jnp.zeros(m)}


def perceptron(widths: tuple[int, ...]) -> Callable[[jax.Array], Any]:
    """`init(key) -> params` of dense layers."""

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, len(widths) - 1)
        return [dense(k, n, m) for k, n, m in zip(keys, widths[:-1], widths[1:], strict=True)]

    return init


def layers(params: Any, x: jax.Array, linear: tuple[int, ...]) -> jax.Array:
    """Dense layers with tanh behind all but some."""
    for k, layer in enumerate(params):
        x = x @ layer["w"] + layer["b"]
        x = x if k in linear else jnp.tanh(x)
    return x


def label_loss(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Cross-entropy with a label at every position."""
    chosen = jnp.take_along_axis(logits, label[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def shuffled_rows(count: int, batch: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    """`draw` of rows: epoch after epoch, each in another order."""

    def draw(rng: np.random.Generator, steps: int) -> np.ndarray:
        per_epoch = count // batch
        epochs = [
            rng.permutation(count)[: per_epoch * batch].reshape(per_epoch, batch)
            for _ in range(-(-steps // per_epoch))
        ]
        return np.concatenate(epochs)[:steps].astype(np.int32)

    return draw
