"""Params and gradients of the contract tests, with all kinds of leaves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SHAPES = {
    "dense": {"kernel": (3, 2), "bias": (2,)},
    "scale": (),
    "absent": None,
    "empty": (0, 3),
    "blocks": [(4,), (1, 1)],
}

DTYPES = {
    "f32": lambda i: jnp.float32,
    "bf16": lambda i: jnp.bfloat16,
    "mixed": lambda i: (jnp.float32, jnp.bfloat16, jnp.float16)[i % 3],
    "f64": lambda i: jnp.float64,
    # "mixed" and "others" are dtypes of params and gradients with different dtypes in each leaf
    "others": lambda i: (jnp.bfloat16, jnp.float32, jnp.float32, jnp.float16)[i % 4],
    "wide_mixed": lambda i: (jnp.float64, jnp.float32, jnp.bfloat16)[i % 3],
    "wide_others": lambda i: (jnp.float32, jnp.float64, jnp.float64, jnp.bfloat16)[i % 4],
}


def make_tree(seed: int, kind: str = "f32", shapes: Any = SHAPES) -> Any:
    """Draw a tree of random numbers with magnitudes between 0.1 and 1."""
    rng = np.random.default_rng(seed)
    shapes, treedef = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))

    def leaf(i: int, shape: tuple[int, ...]) -> jax.Array:
        x = rng.uniform(0.1, 1.0, shape) * rng.choice([-1.0, 1.0], shape)
        return jnp.asarray(x, DTYPES[kind](i))

    return jax.tree.unflatten(treedef, [leaf(i, s) for i, s in enumerate(shapes)])


def many_leaves(count: int, dtype: Any = jnp.float32, size: float = 1.0) -> Any:
    """Draw leaves of four alternating shapes, scaled by `size`; every tenth leaf is zero."""
    rng = np.random.default_rng(0)
    shapes = ((), (3,), (2, 3), (100, 50))
    draw = [rng.standard_normal(shapes[i % 4]) for i in range(count)]
    scaled = [x * 0 if i % 10 == 0 else x * size for i, x in enumerate(draw)]
    return {f"leaf_{i:02d}": jnp.asarray(x, dtype) for i, x in enumerate(scaled)}


def signature(tree: Any) -> Any:
    """Return structure, shapes, dtypes and weak types, which must not change between steps."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [(x.shape, x.dtype, x.weak_type) for x in leaves]


def assert_close(
    actual: Any, expected: Any, rtol: float, atol: float = 0.0, of_largest: float = 0.0
) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = (np.asarray(x).astype(np.float64) for x in (a, e))
        largest = np.max(np.abs(e), initial=0, where=np.isfinite(e))
        np.testing.assert_allclose(a, e, rtol=rtol, atol=max(atol, of_largest * largest))


def assert_identical(actual: Any, expected: Any) -> None:
    assert signature(actual) == signature(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(e).tobytes()


def assert_buffers_of_their_own(tree: Any) -> None:
    """Assert that no two arrays share a buffer, as XLA requires for donated arrays."""
    names: dict[int, str] = {}
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        is_key = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        if isinstance(x, jax.Array) and not is_key and x.size:
            name = jax.tree_util.keystr(path)
            assert names.setdefault(x.unsafe_buffer_pointer(), name) == name
