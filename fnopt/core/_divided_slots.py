"""Steps on explicit meshes whose slots are divided further than their params."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding

from fnopt.core._owners import owners
from fnopt.core._spread import axes_of, is_spread, laid_like

Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def step_despite_types(
    error: Exception, step: Step, init: Callable[[Any], Any], given: tuple[Any, Any, Any]
) -> tuple[Any, Any]:
    """The step again, with all arrays in the sharding of one of them (ZeRO).

    On an explicit mesh the sum of a gradient and of a slot that is divided over one more axis has
    no type. First gradients and params are laid as the slots of their shape lie, so that the
    arithmetic is divided; where that has no type either (factors of matrices, codes), the state is
    laid as `init` makes it, and put back afterwards. Nothing is looked at until JAX says so, for
    the types of thousands of leaves take their time.

    Args:
        error: What the step raised.
        step: `step(updates, state, params)`, which returns updates and a state.
        init: Makes a state from params.
        given: Gradients, state, and params or None.

    Returns:
        What `step` returns, updates lying as the gradients did and slots as they were.

    Raises:
        Exception: `error`, if it is about something else, or slots lie as their params.
    """
    if not _is_of_types(error):
        raise error
    updates, state, params = given
    fresh = jax.eval_shape(init, updates if params is None else params)
    if not _lies_otherwise(state, fresh):
        raise error
    like = _like_slots(updates, state)
    try:
        moved = None if params is None else _laid(params, like)
        new, after = step(_laid(updates, like), state, moved)
    except Exception:  # JAX has several for what has no type
        new, after = step(updates, _laid(state, fresh), params)
    return new, _laid(after, state)


def as_others_lie(leaves: list[Any], others: list[Any]) -> list[Any]:
    """The leaves in the shardings of others, on an explicit mesh: terms of a sum need the same."""
    return [*map(laid_like, leaves, others)] if is_typed(others) else leaves


def is_typed(leaves: list[Any]) -> bool:
    """Whether types say how leaves lie, by the first of them."""
    if not leaves or not isinstance(leaves[0], jax.Array):
        return False
    # An array knows it sooner than its type does, which eager steps would wait for.
    x = leaves[0]
    place = jax.typeof(x).sharding if isinstance(x, Tracer) else x.sharding
    return isinstance(place, NamedSharding) and AxisType.Explicit in place.mesh.axis_types


def _is_of_types(error: Exception) -> bool:
    return "Sharding" in type(error).__name__ or "Incompatible types" in str(error)


def _laid(tree: Any, like: Any) -> Any:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
    return jax.tree.unflatten(jax.tree.structure(tree), [laid_like(x, y) for x, y in pairs])


def _lies_otherwise(state: Any, fresh: Any) -> bool:
    same = jax.tree.structure(state) == jax.tree.structure(fresh)
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(fresh), strict=False)
    return same and any(axes_of(x) != _axes_of_shape(y) for x, y in pairs)


def _axes_of_shape(x: Any) -> tuple[Any, ...]:
    spec = tuple(x.sharding.spec) if isinstance(x.sharding, NamedSharding) else ()
    return spec + (None,) * (len(x.shape) - len(spec))


def _like_slots(updates: Any, state: Any) -> Any:
    """For every gradient a slot of its shape in another sharding, or the gradient itself."""
    found: dict[int, Any] = {}
    for _, x, owner in owners(state, updates):
        alike = owner is not None and jax.numpy.shape(x) == jax.numpy.shape(owner)
        if alike and is_spread(x) and axes_of(x) != axes_of(owner):
            found.setdefault(id(owner), x)
    return jax.tree.map(lambda g: found.get(id(g), g), updates)
