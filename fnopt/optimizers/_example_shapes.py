"""The shapes and dtypes of an example of a batch, as a value that can be hashed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import check_batch, leaf_text, leaves_with_names


class ExampleShapes(NamedTuple):
    """Shapes and dtypes of the leaves of a batch, without the example axis."""

    tree: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]

    @property
    def batch(self) -> Any:
        """A batch of one example, as shapes."""
        leaves = [jax.ShapeDtypeStruct((1, *shape), dtype) for shape, dtype in self.leaves]
        return jax.tree.unflatten(self.tree, leaves)


def example_shapes(batch: Any, name: str) -> ExampleShapes:
    """The shapes of one example, from a batch or the shapes of a batch."""
    if isinstance(batch, ExampleShapes):
        return batch
    batch = jax.tree.map(lambda x: x if hasattr(x, "dtype") else jnp.asarray(x), batch)
    check_batch([(leaf_text(path), leaf) for path, leaf in leaves_with_names(batch)[0]], name)
    leaves, tree = jax.tree.flatten(batch)
    return ExampleShapes(tree, tuple((tuple(x.shape[1:]), x.dtype) for x in leaves))
