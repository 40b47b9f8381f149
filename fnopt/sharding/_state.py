"""Optimizer states sharded like their params, and steps with slots over additional axes (ZeRO).

The slots of a fresh state have the shardings of their params; counts and other numbers are
replicated over the params' mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding, reshard
from jax.tree_util import keystr, tree_flatten_with_path

from fnopt.sharding._explicit import explicit_spec, is_sharded, reshard_like


def match_params(state: Any, params: Any) -> list[tuple[str, Any, Any]]:
    """Match every leaf of a state to its param, as (name, leaf, param's leaf or None).

    A slot repeats the structure of the params, so the names of its leaves end with names of params:
    `'0/mu/dense/kernel'` belongs to `'dense/kernel'`. A leaf without such a name (a count, the
    factors of a matrix) matches no param. `fits_param` compares the shapes.

    Args:
        state: The state of any optimizer; arrays or shapes.
        params: The params of this state; arrays or shapes.
    """
    by_name = dict(_named_leaves(params))
    return [
        (name, leaf, _matching_param(name, leaf, by_name)) for name, leaf in _named_leaves(state)
    ]


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    paths = tree_flatten_with_path(tree)[0]
    return [(keystr(path, simple=True, separator="/"), leaf) for path, leaf in paths]


def _matching_param(name: str, leaf: Any, by_name: dict[str, Any]) -> Any:
    keys = name.split("/")
    suffixes = ["/".join(keys[i:]) for i in range(len(keys) + 1)]  # longest suffix first
    matches = [suffix for suffix in suffixes if suffix in by_name]
    matches.sort(key=lambda suffix: not fits_param(leaf, by_name[suffix]))
    # If the params are a single leaf, its name is empty, and every name ends with it.
    return next((by_name[s] for s in matches if s or fits_param(leaf, by_name[s])), None)


def fits_param(leaf: Any, param: Any) -> bool:
    """Whether a leaf of a state has its param's shape, or a further leading axis (a history)."""
    shape = jnp.shape(leaf)
    return jnp.shape(param) in (shape, shape[1:])


def place_state(state: Any, params: Any) -> Any:
    """Put the arrays of a fresh state on the devices of the params.

    Slots are sharded like their params. Counts and other numbers depend on no param, so JAX would
    place them on the first device; they are replicated over the params' mesh instead. In a traced
    function (`jax.jit(tx.init)`) the result has sharding constraints. Without constraints, the
    compiler would put the whole state on one device, because zeros depend on no input.

    Args:
        state: The result of an `init`.
        params: The params of this `init` call. If they have no mesh and are not committed to a
            device, the state is returned unchanged.
    """
    replicated = next(_replicated_shardings(params), None)
    if replicated is None:
        return state
    if isinstance(replicated, NamedSharding) and isinstance(
        replicated.mesh, jax.sharding.AbstractMesh
    ):
        return _constrain_state(state, params, replicated)

    def put(x: Any) -> Any:
        if isinstance(x, Tracer) or not isinstance(x, jax.Array):
            return x
        # Uncommitted arrays are moved too: the next step would commit them, and thus compile again.
        is_placed = x.committed and x.sharding.device_set == replicated.device_set
        return x if is_placed else jax.device_put(x, replicated)

    return jax.tree.map(put, state)


def _replicated_shardings(params: Any) -> Iterator[Any]:
    """Yield the replicated sharding on the devices and in the memory kind of every placed leaf."""
    for p in jax.tree.leaves(params):
        if isinstance(p, Tracer):
            mesh = jax.typeof(p).sharding.mesh
            if not mesh.empty and AxisType.Manual not in mesh.axis_types:
                yield NamedSharding(mesh, PartitionSpec())
        elif isinstance(p, jax.Array):
            if isinstance(p.sharding, NamedSharding):
                yield NamedSharding(
                    p.sharding.mesh, PartitionSpec(), memory_kind=p.sharding.memory_kind
                )
            elif isinstance(p.sharding, SingleDeviceSharding) and p.committed:
                yield p.sharding


def _constrain_state(state: Any, params: Any, replicated: NamedSharding) -> Any:
    matched = match_params(state, params)
    leaves = [
        _constrain_replicated(x, replicated) if p is None else _constrain_like(x, p)
        for _, x, p in matched
    ]
    if leaves and not any(p is not None and fits_param(x, p) for _, x, p in matched):
        # If no output depends on a param, the compiled function doesn't know the params' devices.
        # The barrier makes all outputs depend on the smallest param.
        arrays = [p for p in jax.tree.leaves(params) if isinstance(p, jax.Array)]
        *leaves, _ = jax.lax.optimization_barrier((*leaves, min(arrays, key=jnp.size)))
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def _constrain_like(x: Any, p: Any) -> Any:
    # For a slot of another shape or in another memory kind, the compiler chooses the placement.
    if not fits_param(x, p) or _memory_space(x) != _memory_space(p):
        return x
    p = jnp.broadcast_to(jnp.real(p), jnp.shape(x)).astype(x.dtype)
    if explicit_spec(p) != explicit_spec(x):
        return x if is_sharded(x) else reshard_like(x, p)
    # The compiler gives both operands of a select the same sharding. The barrier hides from the
    # compiler that `x` is always selected.
    always_false = jax.lax.optimization_barrier(jnp.zeros((), bool))
    return jnp.where(always_false, p, x)


def _memory_space(x: Any) -> Any:
    return getattr(jax.typeof(x), "memory_space", None)  # types of JAX 0.7 lack it


def _constrain_replicated(x: Any, replicated: NamedSharding) -> Any:
    if not jax.typeof(x).sharding.mesh.empty:  # its type has a sharding already
        return x
    # A constraint applies to automatic axes only; arrays on explicit axes are resharded.
    if AxisType.Explicit in replicated.mesh.axis_types:
        return reshard(x, replicated)
    return jax.lax.with_sharding_constraint(x, replicated)


Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def step_with_divided_slots(
    step: Step, init: Callable[[Any], Any], updates: Any, state: Any, params: Any
) -> tuple[Any, Any]:
    """Take a step with gradients and params in the sharding of the slots.

    On an explicit mesh, a gradient can't be added to a slot that is sharded over an additional
    axis. If all slots have the params' shapes, gradients and params are resharded like the slots,
    which divides the arithmetic. A state with other arrays (factors of matrices, codes, histories)
    is resharded like a new state before the step, and resharded back after the step.

    Args:
        step: `step(updates, state, params)`, which returns updates and a state.
        init: The function that makes a state from params.
        updates: The gradients.
        state: The state before the step.
        params: The params, or None.

    Returns:
        The result of `step`, with the state sharded as before.
    """
    pairs = [(x, g) for _, x, g in match_params(state, updates)]
    if all(_is_placed(x, g) for x, g in pairs):
        return step(updates, state, params)
    slot_of = {id(g): x for x, g in pairs if g is not None and jnp.shape(x) == jnp.shape(g)}
    # If every array of the state is a slot of its gradient's shape, the state isn't resharded.
    if all(jnp.ndim(x) == 0 or _has_type_of(x, slot_of.get(id(g))) for x, g in pairs):
        like = jax.tree.map(lambda g: slot_of.get(id(g), g), updates)
        params_like_slots = None if params is None else _reshard_tree(params, like)
        new_updates, new_state = step(_reshard_tree(updates, like), state, params_like_slots)
        return new_updates, _reshard_tree(new_state, state)
    fresh = jax.eval_shape(init, updates if params is None else params)
    # A new state of another structure doesn't determine the shardings.
    if jax.tree.structure(fresh) != jax.tree.structure(state):
        return step(updates, state, params)
    new_updates, new_state = step(updates, _reshard_tree(state, fresh), params)
    return new_updates, _reshard_tree(new_state, state)


def _is_placed(x: Any, g: Any) -> bool:
    """Whether a leaf is sharded like its gradient, or unsharded if it matches no gradient."""
    if g is None or not fits_param(x, g):
        return not is_sharded(x)
    return explicit_spec(x) == (None,) * (jnp.ndim(x) - jnp.ndim(g)) + explicit_spec(g)


def _has_type_of(x: Any, slot: Any) -> bool:
    same_shape = slot is not None and jnp.shape(x) == jnp.shape(slot)
    return same_shape and explicit_spec(x) == explicit_spec(slot)


def _reshard_tree(tree: Any, like: Any) -> Any:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
    return jax.tree.unflatten(jax.tree.structure(tree), [reshard_like(x, y) for x, y in pairs])


def is_on_mesh(x: Any) -> bool:
    """Whether an array is placed on a mesh."""
    return _axis_types(x) != ()


def is_on_explicit_mesh(leaves: list[Any]) -> bool:
    """Whether the first of the leaves is on a mesh with explicit axes."""
    return bool(leaves) and AxisType.Explicit in _axis_types(leaves[0])


def _axis_types(x: Any) -> tuple[AxisType, ...]:
    """Types of the mesh axes of an array; empty without a mesh."""
    if not isinstance(x, jax.Array):
        return ()
    # `x.sharding` takes 0.1 us and `jax.typeof(x)` 2.6 us, for every leaf in every eager step.
    sharding = jax.typeof(x).sharding if isinstance(x, Tracer) else x.sharding
    return sharding.mesh.axis_types if isinstance(sharding, NamedSharding) else ()
