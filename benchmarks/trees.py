"""Trees of parameters for measurements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _noise(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(0.02 * rng.standard_normal(shape, dtype=np.float32))


def one_leaf(size: int) -> dict[str, jax.Array]:
    """Create a tree with a single vector."""
    return {"w": _noise(np.random.default_rng(0), size)}


def transformer(width: int, layers: int, vocabulary: int) -> dict[str, Any]:
    """Create the parameters of a small decoder: a few large leaves and many small leaves."""
    rng = np.random.default_rng(0)

    def dense(n: int, m: int) -> dict[str, jax.Array]:
        return {"kernel": _noise(rng, n, m), "bias": _noise(rng, m)}

    def norm() -> dict[str, jax.Array]:
        return {"scale": _noise(rng, width), "bias": _noise(rng, width)}

    def layer() -> dict[str, Any]:
        attention = {name: dense(width, width) for name in ("query", "key", "value", "out")}
        mlp = {"up": dense(width, 4 * width), "down": dense(4 * width, width)}
        return {"norm_1": norm(), "attention": attention, "norm_2": norm(), "mlp": mlp}

    return {
        "embedding": _noise(rng, vocabulary, width),
        "layers": {f"layer_{i}": layer() for i in range(layers)},
        "norm": norm(),
        "head": dense(width, vocabulary),
    }


def like(tree: Any, seed: int = 1) -> Any:
    """Draw random gradients with the shapes of a tree."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: _noise(rng, *x.shape), tree)


def nbytes(tree: Any) -> int:
    """Return the total size of all leaves in bytes."""
    return sum(x.nbytes for x in jax.tree.leaves(tree))
