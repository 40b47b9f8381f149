"""Many small arrays that leave a program as one vector, and are cut apart by the host.

XLA makes a kernel of each output of a program: with thousands of leaves they take longer to
compile than all that the program computes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import is_inexact

_FEW = 16  # arrays of one dtype, that are returned one by one
_SMALL = 1024  # numbers of an array that may be copied


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["alone", "vectors"],
    meta_fields=["layout", "structure"],
)
@dataclasses.dataclass(frozen=True)
class Parcel:
    """Arrays, the small ones of each dtype laid end to end."""

    alone: list[jax.Array]
    vectors: dict[str, jax.Array]
    layout: tuple[tuple[str | None, tuple[int, ...]], ...]  # of each: its vector, if any; its shape
    structure: Any


def packed(tree: Any) -> Parcel:
    """Lays many small arrays of a tree end to end, in a program of a single device."""
    arrays, structure = jax.tree.flatten(tree)
    kinds = list(map(_kind, arrays))
    many = {kind for kind, k in Counter(kinds).items() if kind is not None and k > _FEW}
    layout = [(kind if kind in many else None, a) for kind, a in zip(kinds, arrays, strict=True)]
    vectors = {
        kind: jnp.concatenate([a.reshape(-1) for its, a in layout if its == kind]) for kind in many
    }
    alone = [a for kind, a in layout if kind is None]
    shapes = tuple((kind, jnp.shape(a)) for kind, a in layout)
    return Parcel(alone, vectors, shapes, structure)


def unpacked(parcel: Parcel) -> Any:
    """The tree, when the program has run."""
    alone = iter(parcel.alone)
    parts = {
        kind: iter(_cut(vector, [shape for its, shape in parcel.layout if its == kind]))
        for kind, vector in parcel.vectors.items()
    }
    arrays = [next(alone if kind is None else parts[kind]) for kind, _ in parcel.layout]
    return jax.tree.unflatten(parcel.structure, arrays)


def _kind(x: Any) -> str | None:
    """The dtype of a small array, none of others and of those whose dtype isn't fixed."""
    small = isinstance(x, jax.Array) and is_inexact(x) and x.size <= _SMALL
    return str(x.dtype) if small and not jax.typeof(x).weak_type else None


def _cut(vector: jax.Array, shapes: list[tuple[int, ...]]) -> list[jax.Array]:
    ends = np.cumsum(list(map(math.prod, shapes)))[:-1]
    parts = np.split(np.asarray(vector), ends)
    where = vector.sharding if vector.committed else None
    return jax.device_put([p.reshape(s) for p, s in zip(parts, shapes, strict=True)], where)
