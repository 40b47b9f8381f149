"""Slots and step counts of a state: declaration and initial values, from params or their shapes."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from fnopt.core._value import Schedule
from fnopt.errors import check_inexact, leaves_with_names, names_text, where
from fnopt.numerics import compute_dtype, real_dtype, safe_increment, zero_count
from fnopt.sharding import sharded_full_like

_SLOT, _REAL, _CUSTOM, _EVENTS = "fnopt slot", "real", "custom", "fnopt events"

Slot = Annotated[Any, _SLOT]
"""Annotates a field of a state NamedTuple as a slot: a tree of the params' structure."""

RealSlot = Annotated[Any, _SLOT, _REAL]
"""A `Slot` that is real even for complex params: second moments, norms."""

CustomSlot = Annotated[Any, _SLOT, _CUSTOM]
"""A slot with shapes other than the params: a number for every leaf, factors of a matrix."""

EventCount = Annotated[jax.Array, _EVENTS]
"""Annotates a field `count` of a state that doesn't count steps."""


# These properties of a class are cached, because evaluating annotations takes longer than a step.
@functools.cache
def counts_steps(state: Any) -> bool:
    """Whether a state has a field `count` that is the number of steps."""
    return "count" in state._fields and _EVENTS not in _marks(state).get("count", ())


@functools.cache
def custom_slots(state: type) -> frozenset[str]:
    """Fields of a state class that are annotated as `CustomSlot`."""
    return frozenset(name for name, mark in _marks(state).items() if _CUSTOM in mark)


@functools.cache
def declared_slots(state: type) -> dict[str, bool]:
    """Fields of a state class annotated as slots, and whether each field is a `RealSlot`."""
    return {name: _REAL in mark for name, mark in _marks(state).items() if _SLOT in mark}


def _marks(state: type) -> dict[str, Any]:
    """Slot annotations of the fields of a state class."""
    try:
        hints = typing.get_type_hints(state, include_extras=True)
    except NameError:  # a class made inside a function: its annotations can't be looked up
        hints = {name: _by_name(hint) for name, hint in state.__annotations__.items()}
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}


def _by_name(hint: Any) -> Any:
    text = str(getattr(hint, "__forward_arg__", hint)).rpartition(".")[2]
    return {"Slot": Slot, "RealSlot": RealSlot, "CustomSlot": CustomSlot}.get(text, hint)


def slot_zeros(params: Any, dtype: Any = None, *, fill: Any = 0.0, real: bool = False) -> Any:
    """Make an initial slot: a tree like `params`, filled with one value.

    Args:
        params: A tree of floating arrays (abstract ones too).
        dtype: The storage dtype; by default the dtype of each leaf, but at least float32, because
            slow averages lose their increments in 16 bits. A real dtype applies to real leaves;
            slots of complex leaves stay complex.
        fill: The initial value, a scalar.
        real: Whether complex leaves get a real slot (second moments).

    Returns:
        A tree of strongly typed arrays, sharded like `params`.

    Raises:
        TypeError: If a leaf isn't floating; the message names it.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.core import slot_zeros
        >>> slot_zeros({"w": jnp.ones(2, jnp.bfloat16)})
        {'w': Array([0., 0.], dtype=float32)}
    """
    check_inexact(params, "params")

    def zeros_leaf(p: Any) -> jax.Array:
        slot_dtype = _stored(dtype, p, real)
        return sharded_full_like(p, jnp.array(fill, slot_dtype), slot_dtype)

    return jax.tree.map(zeros_leaf, params)


def first_slot(tx: Any, name: str, params: Any) -> Any:
    """Make a slot of `tx.State`, with the `fill` and the `storage` of the transform."""
    if name not in declared_slots(tx.State):
        raise NotImplementedError(
            f"{where()}the field {name!r} of {tx.State.__name__} isn't a Slot, expected "
            "one, or a method init(self, params) that returns the first state."
        )
    dtype = getattr(tx, tx.storage.get(name, f"{name}_dtype"), None)
    fill = tx.fill.get(name, 0.0)
    if fill == "params":
        return slot_copy(params, dtype)
    fill = getattr(tx, fill) if isinstance(fill, str) else fill
    return slot_zeros(params, dtype, fill=fill, real=declared_slots(tx.State)[name])


def slot_copy(params: Any, dtype: Any = None) -> Any:
    """Make a slot that starts as a copy of the params, at least float32 by default.

    The slot doesn't share arrays with the params, so a step may donate both.
    """
    check_inexact(params, "params")

    return jax.tree.map(lambda p: jnp.array(p, _stored(dtype, p), copy=True), params)


def _stored(dtype: Any, p: Any, real: bool = False) -> Any:
    """The storage dtype of a slot, complex for complex leaves."""
    own = jnp.result_type(p)
    if real:
        return real_dtype(dtype or compute_dtype(own))
    # A real storage dtype would drop the imaginary part of a complex leaf.
    is_complex = jnp.issubdtype(own, jnp.complexfloating)
    fits = dtype and (jnp.issubdtype(dtype, jnp.complexfloating) or not is_complex)
    return dtype if fits else compute_dtype(own)


def scheduled(tx: Any) -> tuple[str, ...]:
    """Names of a transform's hyper-parameters that are schedules.

    A hyper-parameter is a schedule if its value is a `Schedule`. Numbers, arrays and traced numbers
    are constants.
    """
    names, values = tx._leaf_names, tx._flatten()[0]
    return tuple(n for n, x in zip(names, values, strict=True) if isinstance(x, Schedule))


def needs_count(tx: Any) -> bool:
    """Whether a transform needs the step number."""
    if tx.reads_step:
        return True
    for x in tx._flatten()[0]:  # noqa: SIM110  (an eager update asks it of every member)
        if isinstance(x, Schedule):
            return True
    return False


def first_count(tx: Any) -> jax.Array | None:
    """Count of a new state: zero, or None if the transform needs no count."""
    return zero_count() if needs_count(tx) else None


def next_count(count: jax.Array | None) -> jax.Array | None:
    """Count after a step; None stays None."""
    return None if count is None else safe_increment(count)


def count_of(tx: Any, state: Any) -> jax.Array | None:
    """Count of a state; None if it has no count. Raises a ValueError if the transform needs one.

    A count that is no longer needed still increments, so a schedule may be used again later.
    """
    if state.count is None and needs_count(tx):
        raise missing_count(tx)
    return state.count


def missing_count(tx: Any) -> ValueError:
    """Make the error for a state that lacks a required count."""
    names = ", ".join(scheduled(tx))
    why = f"{names} follows a schedule" if names else "it reads the number of the step"
    return ValueError(
        f"{where()}{type(tx).__name__} needs a count of steps ({why}), but its state has "
        "none. An optimizer without a count made the state. Convert it by state, report = "
        "fnopt.tree.restore(tx.init(params), state, count=n), where n is the number of "
        "steps so far."
    )


def is_abstract(params: Any) -> bool:
    """Whether a leaf is a `jax.ShapeDtypeStruct`."""
    return any(isinstance(p, jax.ShapeDtypeStruct) for p in jax.tree.leaves(params))


def zeros_for(init: Callable[[Any], Any], params: Any, caller: str = "") -> Any:
    """Call `init` with zeros for shapes, if the state doesn't depend on the params' values.

    Args:
        init: Function that makes the state from params.
        params: The params, of which at least one leaf is a `jax.ShapeDtypeStruct`.
        caller: The name of the function in the message.

    Raises:
        ValueError: If the state depends on values; the message names its leaves.
    """
    names = _leaves_from_values(init, params)
    if names:
        raise ValueError(
            f"{caller}{where()}the state's {names_text(names)} begin with values of the "
            "params, but only shapes were given. Pass the params as arrays, or call "
            "jax.eval_shape(tx.init, params) for the shapes of the state."
        )
    return jax.tree.map(
        lambda p: jnp.zeros(p.shape, p.dtype, device=p.sharding) if is_abstract(p) else p, params
    )


def _leaves_from_values(init: Callable[[Any], Any], params: Any) -> list[str]:
    # Forward reachability in the jaxpr: a value depends on the params if one of its operands does.
    # Literals and constants have no equation, so zeros of any shape stay outside.
    bare = jax.tree.map(lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p)), params)
    closed, state = jax.make_jaxpr(init, return_shape=True)(bare)
    known = {*closed.jaxpr.invars}
    for eqn in closed.jaxpr.eqns:
        if known & {x for x in eqn.invars if not isinstance(x, jex.Literal)}:
            known |= {*eqn.outvars}
    named = zip(leaves_with_names(state)[0], closed.jaxpr.outvars, strict=True)
    return [name for (name, _), x in named if not isinstance(x, jex.Literal) and x in known]
