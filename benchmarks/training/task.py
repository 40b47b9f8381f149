"""Training tasks in a form that every method can use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Task(NamedTuple):
    """A model, its data and the number of steps, which are the same for all methods.

    Attributes:
        name: Name on the command line.
        title: Title in tables and pictures.
        test_title: Description of `test`.
        init: `init(key) -> params`.
        draw: `draw(rng, steps) -> items`, a tree of arrays `[steps, ...]` that define the batches.
        take: `take(item) -> batch`, a tree of arrays with a leading axis of examples.
        model: `model(params, example) -> outputs` for one example.
        criterion: `criterion(outputs, example) -> scalar`; the loss is the mean over examples.
        train: Batch on which the recorded training loss is evaluated.
        test: `test(params) -> scalar`, evaluated on data that isn't used in training.
        steps: Number of steps.
        every: Number of steps between two readings.
        size: Description of the model and the batches.
        skip: Methods that don't run on the task, with the reasons.
        untuned: Hyper-parameters of methods whose runs take too long for tuning.
        residuals: Residual functions of one example, and `rows(batch)`, the examples of each.
        full: Fixed batch for methods that need the same function in every step.
        wide: Whether to train in float64.
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
        """Return the mean of the criterion over a batch."""
        outputs = jax.vmap(self.model, (None, 0))(params, batch)
        return jnp.mean(jax.vmap(self.criterion)(outputs, batch))


def dense(key: jax.Array, n: int, m: int) -> dict[str, jax.Array]:
    """Draw a random matrix that preserves the magnitude of its inputs, with a zero bias."""
    return {"w": jax.random.normal(key, (n, m)) / n**0.5, "b": jnp.zeros(m)}


def perceptron(widths: tuple[int, ...]) -> Callable[[jax.Array], Any]:
    """Return `init(key) -> params` for dense layers."""

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, len(widths) - 1)
        return [dense(k, n, m) for k, n, m in zip(keys, widths[:-1], widths[1:], strict=True)]

    return init


def layers(params: Any, x: jax.Array, linear: tuple[int, ...]) -> jax.Array:
    """Apply dense layers with tanh, except after the layers in `linear`."""
    for k, layer in enumerate(params):
        x = x @ layer["w"] + layer["b"]
        x = x if k in linear else jnp.tanh(x)
    return x


def label_loss(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Return the mean cross-entropy with a label at every position."""
    label_logits = jnp.take_along_axis(logits, label[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - label_logits)


def shuffled_rows(count: int, batch: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Return a `draw` function of row indices, with a new permutation in each epoch."""

    def draw(rng: np.random.Generator, steps: int) -> np.ndarray:
        per_epoch = count // batch
        epochs = [
            rng.permutation(count)[: per_epoch * batch].reshape(per_epoch, batch)
            for _ in range(-(-steps // per_epoch))
        ]
        return np.concatenate(epochs)[:steps].astype(np.int32)

    return draw
