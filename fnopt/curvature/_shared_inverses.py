"""Inverses of many matrices, distributed over the devices of a mesh."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from fnopt.core import matmul
from fnopt.sharding import all_gather, concatenate, psum, pvary_like, replicate, sequential


def inverses_of_all(stacks: Sequence[jax.Array], axis_name: Any = None) -> list[jax.Array]:
    """The inverses of positive definite matrices, `[k, n, n]` each.

    Those of one size are inverted together. On a mesh every device inverts its share, by the cube
    of the size, and all get all: one all-gather. So do the devices of a named axis.
    """
    sizes = sorted({x.shape[-1] for x in stacks}, reverse=True)
    by_size = [[i for i, x in enumerate(stacks) if x.shape[-1] == n] for n in sizes]
    together = [concatenate([replicate(stacks[i]) for i in same]) for same in by_size]
    mesh, several = _mesh_of(together), sum(map(len, together)) > 1
    if axis_name is not None and several and psum(1, axis_name) > 1:
        inverses = _share_over_axis(together, axis_name)
    else:
        inverses = _one_by_one(together) if mesh is None else _share_over_mesh(together, mesh)
    found: dict[int, jax.Array] = {}
    for same, inverse in zip(by_size, inverses, strict=True):
        ends = np.cumsum([stacks[i].shape[0] for i in same])[:-1].tolist()
        found |= dict(zip(same, jnp.split(inverse, ends), strict=True))
    return [found[i] for i in range(len(stacks))]


def _one_by_one(stacks: Sequence[jax.Array]) -> list[jax.Array]:
    return [*map(sequential(_inverse), stacks)]


def _inverse(A: jax.Array) -> jax.Array:
    root = jnp.linalg.cholesky(A)
    eyes = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    half = jax.lax.linalg.triangular_solve(root, eyes, left_side=True, lower=True)
    return matmul(jnp.swapaxes(half, -1, -2), half)


def _mesh_of(arrays: Sequence[Any]) -> Any:
    """The mesh of the types of arrays, if several of its devices get work."""
    if sum(len(x) for x in arrays) < 2:
        return None
    mesh = jax.typeof(arrays[0]).sharding.mesh
    if mesh.empty or mesh.size < 2 or AxisType.Manual in mesh.axis_types:
        return None
    return mesh


def shares(counts: Sequence[int], sizes: Sequence[int], devices: int) -> list[list[list[int]]]:
    """Indices of the matrices of each device, by size.

    The next one, in the order of size, goes to the device with the least work so far.
    """
    work, found = [0] * devices, [[[] for _ in sizes] for _ in range(devices)]
    for group in sorted(range(len(sizes)), key=lambda j: -sizes[j]):
        for i in range(counts[group]):
            device = min(range(devices), key=work.__getitem__)
            work[device] += sizes[group] ** 3
            found[device][group].append(i)
    return found


def _share_over_mesh(stacks: list[jax.Array], mesh: Any) -> list[jax.Array]:
    axes, owned = tuple(mesh.axis_names), _assign(stacks, mesh.size)

    def device(stacks: list[jax.Array]) -> jax.Array:
        return jax.lax.all_gather(_own_inverses(stacks, owned, axes), axes)

    every = jax.shard_map(device, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(stacks)
    return _restore_order(every, owned, stacks)


def _share_over_axis(stacks: list[jax.Array], axis_name: Any) -> list[jax.Array]:
    owned = _assign(stacks, psum(1, axis_name))
    here = pvary_like(stacks, jax.lax.axis_index(axis_name))
    return _restore_order(
        all_gather(_own_inverses(here, owned, axis_name), axis_name), owned, stacks
    )


def _assign(stacks: list[jax.Array], devices: int) -> list[list[list[int]]]:
    return shares([len(x) for x in stacks], [x.shape[-1] for x in stacks], devices)


def _own_inverses(stacks: list[jax.Array], owned: list[list[list[int]]], axes: Any) -> jax.Array:
    """This device's inverses in a row."""
    sizes = [x.shape[-1] for x in stacks]
    lengths = [sum(len(g) * n * n for g, n in zip(own, sizes, strict=True)) for own in owned]
    longest = max(lengths)

    def inverses_in_row(own: list[list[int]], length: int, stacks: list[jax.Array]) -> jax.Array:
        some = [(x, jnp.asarray(i)) for x, i in zip(stacks, own, strict=True) if i]
        mine = [jnp.take(x, i, axis=0, mode="clip") for x, i in some]
        rows = [x.reshape(-1) for x in _one_by_one(mine)]
        rest = pvary_like(jnp.zeros(longest - length, stacks[0].dtype), stacks)
        return jnp.concatenate([*rows, rest])

    pairs = zip(owned, lengths, strict=True)
    branches = [functools.partial(inverses_in_row, own, length) for own, length in pairs]
    return jax.lax.switch(jax.lax.axis_index(axes), branches, stacks)


def _restore_order(
    every: jax.Array, owned: list[list[list[int]]], stacks: list[jax.Array]
) -> list[jax.Array]:
    """Reorder the inverses of all devices, `[devices, length]`, like their matrices."""
    sizes = [x.shape[-1] for x in stacks]
    found = [[] for _ in stacks]
    for i, own in enumerate(owned):
        row, start = every[i], 0
        for group, n in enumerate(sizes):
            stop = start + len(own[group]) * n * n
            found[group].append(row[start:stop].reshape(-1, n, n))
            start = stop
    order = [[i for own in owned for i in own[j]] for j in range(len(sizes))]
    order = [np.argsort(i, kind="stable") for i in order]
    return [
        jnp.take(jnp.concatenate(parts), jnp.asarray(i), axis=0, mode="clip")
        for parts, i in zip(found, order, strict=True)
    ]
