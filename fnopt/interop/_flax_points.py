"""Params on manifolds in flax's bytes."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.manifolds import on


def register_flax_points() -> None:
    """Let `flax.serialization` save params made by :func:`fnopt.manifolds.on`.

    flax knows the classes that are registered with it alone. The bytes hold the array; the manifold
    comes from the tree that they are restored into. Pickle and orbax need no registration.

    Example:
        >>> import flax.serialization, fnopt, jax.numpy as jnp
        >>> from fnopt.manifolds import SO2, on
        >>> fnopt.interop.register_flax_points()
        >>> params = on(SO2, jnp.eye(2))
        >>> saved = flax.serialization.to_bytes(params)
        >>> flax.serialization.from_bytes(params, saved) == params
        True
    """
    from flax import serialization

    def read(target: on, state: Any) -> on:
        # Slots of an optimizer hold tangents, which aren't on the manifold.
        value = serialization.from_state_dict(target.value, state["value"])
        return jax.tree.unflatten(jax.tree.structure(target), [value])

    serialization.register_serialization_state(
        on, lambda point: {"value": point.value}, read, override=True
    )
