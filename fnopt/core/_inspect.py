"""Inspection of states: slots, members and current hyper-parameters by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core._foreign import as_transformation, from_pair
from fnopt.core._slots import counts_steps, declared_slots
from fnopt.core._transformation import Member, Transformation
from fnopt.numerics import default_float

_Path = tuple[str, ...]
_COUNTS = ("count", "step", "gradient_step")  # fields with the step count, in fnopt and optax


def _with_short_names(items: list[tuple[_Path, Any]]) -> dict[str, Any]:
    """Name items by the last part of their path, or by the whole path if ambiguous."""
    # Slots of two members of the same class have the same name, but different paths.
    occurrences = Counter(path[-1] for path, _ in items)
    return {(path[-1] if occurrences[path[-1]] == 1 else "/".join(path)): x for path, x in items}


def _contains_states(node: Any) -> bool:
    """Whether a NamedTuple is nested in a container, which then contains states, not arrays."""
    if hasattr(node, "_fields"):
        return True
    parts = node.values() if isinstance(node, dict) else node
    return isinstance(node, (tuple, list, dict)) and any(map(_contains_states, parts))


def _guess_slots(state: Any) -> set[str]:
    """Names of the slots of another library's state: fields with arrays, without scalars."""
    # Without annotations, a scalar may be a count, a rate or a key instead of a slot.
    return {
        name
        for name, x in state._asdict().items()
        if jax.tree.leaves(x) and getattr(x, "ndim", None) != 0 and not _contains_states(x)
    }


def _slot_fields(state: Any) -> set[str]:
    try:
        declared = set(declared_slots(type(state)))
    except (NameError, TypeError):  # annotations with names that can't be looked up here
        declared = set()
    is_fnopt = type(state).__module__.partition(".")[0] == "fnopt"
    return declared if declared or is_fnopt else _guess_slots(state)


def slots(state: Any) -> dict[str, Any]:
    """Return all trees in a state with the structure of the params, keyed by name.

    Args:
        state: The state of any transform, chain or wrapper, including optax's.

    Returns:
        A dict from names such as `'mu'`, `'nu'` and `'trace'` to trees of the params' structure. If
        slots of two members have the same name, the keys also contain the position (`'1/trace'`).

    Raises:
        TypeError: If `state` is an optimizer instead of a state.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adam(1e-3)
        >>> fnopt.slots(tx.init({"w": jnp.ones(2)}))["nu"]
        {'w': Array([0., 0.], dtype=float32)}
    """
    if isinstance(state, Transformation):
        raise TypeError(
            "slots: got an optimizer, expected its state, which tx.init(params) and tx.update "
            "return. For the names of the slots before init, use fnopt.slot_names(tx, params)."
        )
    items: list[tuple[_Path, Any]] = []
    map_slots(lambda path, slot: items.append((tuple(path.split("/")), slot)), state)
    return _with_short_names(items)


def slot_names(tx: Any, params: Any) -> tuple[str, ...]:
    """List the names of an optimizer's slots, before the first step.

    Args:
        tx: An optimizer.
        params: The params, real or abstract (`jax.ShapeDtypeStruct`); no memory is allocated.

    Returns:
        The keys of the result of `slots`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> fnopt.slot_names(fnopt.adam(1e-3), {"w": jnp.ones(2)})
        ('mu', 'nu')
    """
    tx = as_transformation(tx, "slot_names: tx")
    return tuple(slots(jax.eval_shape(tx.init, params)))


def _walk_members(tx: Transformation, state: Any, path: _Path) -> Iterator[tuple[_Path, Member]]:
    for member in tx.members(state):
        here = (*path, member.name)
        yield here, member
        yield from _walk_members(member.tx, member.state, here)


def named(tx: Transformation, state: Any) -> dict[str, Any]:
    """Return the states of all transforms inside an optimizer, keyed by name.

    Args:
        tx: An optimizer.
        state: Its state.

    Returns:
        A dict from the name of a member to its state. The name is the one passed to `chain`, the
        label of a `partition`, or else the name of the transform. Ambiguous names are replaced by
        whole paths.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adam(1e-3)
        >>> state = tx.init({"w": jnp.ones(2)})
        >>> list(fnopt.named(tx, state))
        ['scale_by_adam', 'scale_by_learning_rate']
        >>> fnopt.named(tx, state)["scale_by_adam"].count
        Array(0, dtype=int32)
    """
    tx = as_transformation(tx, "named: tx")
    items = [(path, member.state) for path, member in _walk_members(tx, state, ())]
    return _with_short_names(items)


def step_count(tx: Any, state: Any) -> jax.Array:
    """Return the number of steps that an optimizer has taken.

    A member counts steps if its formula or a schedule needs the step number. All members of a chain
    take a step in every call, so their counts are equal, and `step_count` returns the first count.
    If a transform skips calls of its inner transform (`accumulate`, `conditionally_mask`),
    `step_count` returns the wrapper's count. `accumulate` counts a step whenever it has accumulated
    all gradients of the step.

    Args:
        tx: An optimizer: a transformation, or any (init, update) pair.
        state: Its state.

    Returns:
        An integer scalar.

    Raises:
        ValueError: If no member counts, as in gradient descent with a constant rate.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.adamw(1e-3), {"w": jnp.ones(2)}
        >>> _, state = tx.update(params, tx.init(params), params)
        >>> fnopt.step_count(tx, state)
        Array(1, dtype=int32)
    """
    counts = _counts(as_transformation(tx, "step_count: tx"), state)
    first = next(counts, None)
    if first is None:
        raise ValueError(
            f"step_count: the state of {type(tx).__name__} has no step count. Count steps in the "
            "loop, or use a schedule as learning rate (fnopt.constant_schedule for a constant)."
        )
    return first


def step_counts(tree: Any) -> Iterator[Any]:
    """Yield the step counts of all states in a tree."""
    if hasattr(tree, "_fields") and counts_steps(type(tree)) and tree.count is not None:
        yield tree.count
    if isinstance(tree, (tuple, list, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from step_counts(part)


def _own_count(state: Any) -> Any:
    """Step count among the fields of a state, without inner states; None if there is none."""
    fields = state._asdict() if hasattr(state, "_fields") else {}
    if "count" in fields and not counts_steps(type(state)):
        return None
    values = (fields.get(name) for name in _COUNTS)
    return next((x for x in values if hasattr(x, "dtype")), None)


def _counts(tx: Transformation, state: Any) -> Iterator[Any]:
    """Yield the step counts of a transform and its members, the outermost first."""
    if (own := _own_count(state)) is not None:
        yield own
    for member in tx.members(state):
        yield from _counts(member.tx, member.state)
    if isinstance(tx, from_pair) and not hasattr(state, "_fields") and isinstance(state, tuple):
        for part in state:  # another library's chain
            yield from _counts(tx, part)


def _own_hyperparams(tx: Transformation, state: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    tx_now = tx.at(_own_count(state))
    for name in tx._leaf_names:
        value = getattr(tx_now, name)
        if isinstance(value, (float, jax.Array)):
            yield (*path, name), jnp.asarray(value, getattr(value, "dtype", default_float()))


def hyperparams(tx: Transformation, state: Any) -> dict[str, jax.Array]:
    """Return the current values of all numeric hyper-parameters, with schedules evaluated.

    Args:
        tx: An optimizer.
        state: Its state, which contains the step counts.

    Returns:
        A dict from names to scalars, the values that the *next* update uses.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.sgd(fnopt.linear_schedule(1.0, 0.0, transition_steps=10))
        >>> fnopt.hyperparams(tx, tx.init({"w": jnp.ones(2)}))
        {'learning_rate': Array(1., dtype=float32)}
    """
    tx = as_transformation(tx, "hyperparams: tx")
    items = list(_own_hyperparams(tx, state, ()))
    for path, member in _walk_members(tx, state, ()):
        items += _own_hyperparams(member.tx, member.state, path)
    return _with_short_names(items)


def map_slots(fn: Callable[[str, Any], Any], state: Any, path: tuple[str, ...] = ()) -> Any:
    """Replace every slot of a state by `fn(path, slot)`; a path is, for example, `'1/trace'`."""
    slot_fields: set[str] = set()
    parts: Any = state
    if hasattr(state, "_fields"):
        slot_fields, parts = _slot_fields(state), state._asdict()
    elif not isinstance(state, (tuple, dict)):
        return state
    items = parts.items() if isinstance(parts, dict) else enumerate(parts)
    new_parts = {}
    for name, part in items:
        here = (*path, str(name))
        new_parts[name] = (
            fn("/".join(here), part) if name in slot_fields else map_slots(fn, part, here)
        )
    if hasattr(state, "_fields"):
        return type(state)(**new_parts)
    return new_parts if isinstance(state, dict) else type(state)(new_parts.values())
