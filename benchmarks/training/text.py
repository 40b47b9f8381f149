"""Character transformers, trained on texts of scikit-learn or of Python's help."""

from __future__ import annotations

import pydoc_data.topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import peer
from benchmarks.training.digits import LIKE_KFAC, NO_RESIDUALS, TOO_LARGE
from benchmarks.training.task import Task, label_loss

NAMES = ("iris", "diabetes", "wine", "breast_cancer")  # descriptions of scikit-learn's data sets
HELD_OUT = 0.1  # fraction of the text, at its end, for the test


def _descriptions() -> str:
    datasets = peer("sklearn.datasets")
    return "\n".join(getattr(datasets, f"load_{name}")().DESCR for name in NAMES)


def _codes(text: str) -> tuple[np.ndarray, int]:
    characters = sorted(set(text))
    return np.array([characters.index(c) for c in text], np.int32), len(characters)


def _norm(gain: Any, x: jax.Array) -> jax.Array:
    return gain * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def _attend(p: Any, x: jax.Array, heads: int) -> jax.Array:
    q, k, v = jnp.split((x @ p["qkv"]).reshape(len(x), heads, -1), 3, axis=-1)
    scores = jnp.einsum("thd,shd->hts", q, k) / q.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones((len(x), len(x)), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.einsum("hts,shd->thd", weights, v).reshape(x.shape) @ p["out"]


def _pieces(codes: np.ndarray, starts: Any, length: int) -> dict[str, jax.Array]:
    pieces = jnp.asarray(codes)[starts[..., None] + jnp.arange(length + 1)]
    return {"letters": pieces[..., :-1], "next": pieces[..., 1:]}


def transformer(smoke: bool) -> Task:
    """Create a transformer for the descriptions of scikit-learn's data sets."""
    return _transformer(smoke, _descriptions(), "transformer", "character transformer")


def topics(smoke: bool) -> Task:
    """Create a transformer for the help texts of Python's `pydoc_data.topics`."""
    text = "\n".join(pydoc_data.topics.topics.values())
    return _transformer(smoke, text, "topics", "character transformer, help texts of Python")


def _transformer(smoke: bool, text: str, name: str, title: str) -> Task:
    """Create a transformer of two blocks; Muon treats embeddings and head as vectors."""
    codes, count = _codes(text)
    width, heads, length, blocks, batch = (8, 2, 8, 1, 2) if smoke else (32, 2, 32, 2, 16)
    cut = int(len(codes) * (1 - HELD_OUT))

    def init(key: jax.Array) -> Any:
        keys = iter(jax.random.split(key, 4 * blocks + 3))

        def matrix(*shape: int) -> jax.Array:
            return jax.random.normal(next(keys), shape) * shape[0] ** -0.5

        def block() -> dict[str, jax.Array]:
            return {
                "qkv": matrix(width, 3 * width),
                "out": matrix(width, width),
                "up": matrix(width, 4 * width),
                "down": matrix(4 * width, width),
                "gain1": jnp.ones(width),
                "gain2": jnp.ones(width),
            }

        return {
            "embed": {"letter": 0.3 * matrix(count, width), "place": 0.3 * matrix(length, width)},
            "blocks": [block() for _ in range(blocks)],
            "head": {"w": matrix(width, count), "b": jnp.zeros(count)},
        }

    def model(params: Any, example: Any) -> jax.Array:
        letters = example["letters"]
        x = params["embed"]["letter"][letters] + params["embed"]["place"]
        for p in params["blocks"]:
            x = x + _attend(p, _norm(p["gain1"], x), heads)
            x = x + jax.nn.gelu(_norm(p["gain2"], x) @ p["up"]) @ p["down"]
        return _norm(1.0, x) @ params["head"]["w"] + params["head"]["b"]

    def spread(text: np.ndarray, number: int) -> Any:
        starts = np.linspace(0, len(text) - length - 1, number).astype(np.int32)
        return _pieces(text, starts, length)

    draft = Task(
        name=name,
        title=title,
        test_title="test loss",
        init=init,
        draw=lambda rng, steps: rng.integers(0, cut - length - 1, (steps, batch), np.int32),
        take=lambda starts: _pieces(codes[:cut], starts, length),
        model=model,
        criterion=lambda logits, example: label_loss(logits, example["next"]),
        train=spread(codes[:cut], 4 if smoke else 64),
        test=lambda params: jnp.zeros(()),
        steps=4 if smoke else 200,
        every=2 if smoke else 5,
        size=f"2 blocks of width 32, 2 heads; batches of 16 x 32 characters of {cut:,}",
        skip=NO_RESIDUALS | LIKE_KFAC | TOO_LARGE,
    )
    test = spread(codes[cut:], 4 if smoke else 32)
    return draft._replace(test=lambda params: draft.loss(params, test))
