"""Products of this device's rows with those of all devices, which go round from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.curvature._formed import FormedRows
from fnopt.gradients.ghost import GhostRows
from fnopt.sharding import pvary_like


def rows_of_all_devices(
    product: Callable[[Any], jax.Array], rows: GhostRows | FormedRows, axis_name: Any
) -> jax.Array:
    """The products with the rows of all devices side by side, `[n, devices m]`.

    In every round the rows move on by one device, so that none ever has those of more than two.

    Args:
        product: From rows to the products of this device's with them, `[n, m]`.
        rows: What this device sends.
        axis_name: The named axis of the devices.
    """
    count, here = jax.lax.psum(1, axis_name), jax.lax.axis_index(axis_name)
    # Of a tape the arrays go round; its plan is the same everywhere.
    formed = isinstance(rows, FormedRows)
    arrays, treedef = jax.tree.flatten(rows if formed else (rows.tape, rows.formed))
    ring = [(i, (i + 1) % count) for i in range(count)]

    def pass_on(arrays: list[jax.Array], i: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        theirs = treedef.unflatten(arrays)
        found = theirs if formed else rows._replace(tape=theirs[0], formed=theirs[1])
        return [jax.lax.ppermute(x, axis_name, ring) for x in arrays], product(found)

    arrays = pvary_like(arrays, here)
    blocks = jax.lax.scan(pass_on, arrays, None, length=count)[1]
    # In round i came the rows of the device that is i before this one.
    order = jnp.mod(here - jnp.arange(count, dtype=here.dtype), count)
    blocks = jnp.take(blocks, order, axis=0, mode="clip")  # its own inverse
    return jnp.moveaxis(blocks, 0, 1).reshape(blocks.shape[1], -1)
