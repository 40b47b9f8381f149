"""Steps on explicit meshes whose slots are sharded over more axes than their params (ZeRO)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding

from fnopt.sharding._explicit import explicit_spec, is_sharded, reshard_like
from fnopt.sharding._state import fits_param, match_params

Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def step_with_divided_slots(
    step: Step, init: Callable[[Any], Any], updates: Any, state: Any, params: Any
) -> tuple[Any, Any]:
    """Take a step with gradients, params and slots in one sharding.

    On an explicit mesh the sum of a gradient and of a slot that is sharded over one more axis has
    no type. Where the state has nothing but slots of the params' shapes, gradients and params are
    resharded like them, so that the arithmetic is divided. With other arrays in it (factors of
    matrices, codes, memories) the state is resharded as `init` makes it, and back afterwards.

    Args:
        step: `step(updates, state, params)`, which returns updates and a state.
        init: Makes a state from params.
        updates: The gradients.
        state: The state.
        params: The params, or None.

    Returns:
        The result of `step`, with the state sharded as before.
    """
    pairs = [(x, g) for _, x, g in match_params(state, updates)]
    if all(_is_placed(x, g) for x, g in pairs):
        return step(updates, state, params)
    divided = {id(g): x for x, g in pairs if g is not None and jnp.shape(x) == jnp.shape(g)}
    if all(jnp.ndim(x) == 0 or _has_type_of(x, divided.get(id(g))) for x, g in pairs):
        like = jax.tree.map(lambda g: divided.get(id(g), g), updates)
        moved = None if params is None else _reshard_tree(params, like)
        new, after = step(_reshard_tree(updates, like), state, moved)
        return new, _reshard_tree(after, state)
    fresh = jax.eval_shape(init, updates if params is None else params)
    if jax.tree.structure(fresh) != jax.tree.structure(state):
        return step(updates, state, params)
    new, after = step(updates, _reshard_tree(state, fresh), params)
    return new, _reshard_tree(after, state)


def _is_placed(x: Any, g: Any) -> bool:
    """Whether a leaf of a state is sharded as a fresh one: like its gradient, or not at all."""
    if g is None or not fits_param(x, g):
        return not is_sharded(x)
    return explicit_spec(x) == (None,) * (jnp.ndim(x) - jnp.ndim(g)) + explicit_spec(g)


def _has_type_of(x: Any, slot: Any) -> bool:
    is_slot = slot is not None and jnp.shape(x) == jnp.shape(slot)
    return is_slot and explicit_spec(x) == explicit_spec(slot)


def _reshard_tree(tree: Any, like: Any) -> Any:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
    return jax.tree.unflatten(jax.tree.structure(tree), [reshard_like(x, y) for x, y in pairs])


def reshard_leaves_like(leaves: list[Any], others: list[Any]) -> list[Any]:
    """Reshard leaves like others on an explicit mesh: terms of a sum need the same sharding."""
    return [*map(reshard_like, leaves, others)] if is_on_explicit_mesh(others) else leaves


def is_on_explicit_mesh(leaves: list[Any]) -> bool:
    """Whether types say how leaves are sharded, by the first of them."""
    if not leaves or not isinstance(leaves[0], jax.Array):
        return False
    # The sharding of an array is known sooner than its type, which eager steps would wait for.
    x = leaves[0]
    sharding = jax.typeof(x).sharding if isinstance(x, Tracer) else x.sharding
    return isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types
