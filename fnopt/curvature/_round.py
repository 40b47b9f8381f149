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
    arrays, treedef = jax.tree.flatten(_sent(rows))
    ring = [(i, (i + 1) % count) for i in range(count)]

    def around(arrays: list[jax.Array], i: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        found = product(_received(rows, treedef.unflatten(arrays)))
        return [jax.lax.ppermute(x, axis_name, ring) for x in arrays], found

    arrays = pvary_like(arrays, here)
    blocks = jax.lax.scan(around, arrays, None, length=count)[1]
    # In round i came the rows of the device that is i before this one.
    order = jnp.mod(here - jnp.arange(count, dtype=here.dtype), count)
    blocks = jnp.take(blocks, order, axis=0, mode="clip")  # its own inverse
    return jnp.moveaxis(blocks, 0, 1).reshape(blocks.shape[1], -1)


def _sent(rows: GhostRows | FormedRows) -> Any:
    return rows if isinstance(rows, FormedRows) else (rows.tape, rows.formed)


def _received(rows: GhostRows | FormedRows, sent: Any) -> GhostRows | FormedRows:
    if isinstance(rows, FormedRows):
        return sent
    return rows._replace(tape=sent[0], formed=sent[1])
