"""Checks of the inputs of losses, and the precision of their computation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype, type_text


def floats(name: str, **arrays: Any) -> tuple[Any, ...]:
    """The arguments of a loss in one compute dtype, at least float32; `None` stays `None`.

    The first is what a model says and must be floating; the others may be integers or bools. They
    must broadcast to the shape of one of them: a column against a row would give every pair.
    """
    given = {k: jnp.asarray(x) for k, x in arrays.items() if x is not None}
    first = next(iter(given))
    if not jnp.issubdtype(given[first].dtype, jnp.floating):
        raise TypeError(
            f"{name}: {first} is {type_text(given[first])}, expected a real floating array."
        )
    for key, x in given.items():
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            raise TypeError(f"{name}: {key} is {type_text(x)}, expected real numbers.")
    dtype = compute_dtype(
        *(x.dtype for x in given.values() if jnp.issubdtype(x.dtype, jnp.floating))
    )
    return tuple(None if x is None else given[k].astype(dtype) for k, x in arrays.items())


def check_broadcast(name: str, **arrays: jax.Array | None) -> None:
    """Refuses shapes that broadcast to something larger than each of them, or not at all."""
    shapes = {k: x.shape for k, x in arrays.items() if x is not None}
    try:
        together = jnp.broadcast_shapes(*shapes.values())
    except ValueError:
        together = None
    if together not in shapes.values():
        said = ", ".join(f"{k} has shape {s}" for k, s in shapes.items())
        raise ValueError(f"{name}: {said}, expected shapes that agree (or a scalar).")


def pairs(name: str, **arrays: Any) -> tuple[Any, ...]:
    """`floats` that are compared element by element."""
    found = floats(name, **arrays)
    check_broadcast(name, **dict(zip(arrays, found, strict=True)))
    return found


def class_labels(name: str, labels: Any, shape: tuple[int, ...]) -> jax.Array:
    """Labels that are class numbers, one for each of `shape`."""
    labels = jnp.asarray(labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"{name}: labels are {type_text(labels)}, expected integers.")
    if labels.shape != shape:
        raise ValueError(
            f"{name}: labels are {type_text(labels)}, expected shape {shape}: one class number "
            "for each row of scores."
        )
    return labels


def mask(where: Any, shape: Any, axis: Any) -> jax.Array | None:
    """`where` as bools of a shape; one without the reduced axes is repeated along them."""
    if where is None:
        return None
    where = jnp.asarray(where)
    if where.ndim != len(shape):
        where = jnp.expand_dims(where, tuple(range(len(shape))) if axis is None else axis)
    return jnp.broadcast_to(where.astype(bool), shape)


def zero_excluded(where: jax.Array | None, x: jax.Array) -> jax.Array:
    """`x` with zeros where the mask excludes, so that nothing that stands there is seen."""
    return x if where is None else jnp.where(where, x, jnp.zeros_like(x))
