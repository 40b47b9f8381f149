"""Rule for lookups of rows of a table, such as embeddings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from fnopt.gradients.ghost._factors import Dense, FactorLayout, OneHot, Pair
from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._weights import without_transposes


def layout(site: Site) -> FactorLayout:
    """Layout: `D` is the axis of the lookup, `K` consists of all other axes."""
    base, perm = without_transposes(site.weight)
    order = [perm[0], *sorted(perm[1:])]
    shape = base.aval.shape
    split = tuple(shape[d] for d in order)
    return FactorLayout(
        base, split, (0, 1, len(order) - 1), tuple(int(i) for i in np.argsort(order)), shape
    )


def pair(site: Site, indices: jax.Array, g: jax.Array) -> Pair:
    """Factors of one example: one-hot row indices, and the rows of the cotangent."""
    _, perm = without_transposes(site.weight)
    numbers = site.eqn.params["dimension_numbers"]
    # If the axis of the lookup isn't collapsed, it is the first axis, with size 1.
    offsets = numbers.offset_dims[len(numbers.offset_dims) - len(perm) + 1 :]
    row_axes = [offsets[i] for i in np.argsort(perm[1:])]
    positions = [d for d in range(g.ndim) if d not in row_axes]
    starts = numbers.start_index_map
    indices = indices.reshape(-1, len(starts))
    index = indices[:, starts.index(0)]
    g = g.transpose(*positions, *row_axes).reshape(index.size, -1)
    shape, sizes = site.weight.aval.shape, site.eqn.params["slice_sizes"]
    if site.eqn.params["mode"] != GatherScatterMode.CLIP:
        # As in JAX, an out-of-bounds `table[index]` contributes no gradient.
        last = np.asarray([shape[d] - sizes[d] for d in starts], indices.dtype)
        inside = jnp.all((indices >= 0) & (indices <= last), axis=1)
        g = jnp.where(inside[:, None], g, jnp.zeros((), g.dtype))
    return Pair(OneHot(jnp.clip(index, 0, shape[0] - 1)[None]), Dense((g[None],)))
