"""Declarations and initial values of a state's slots and step count."""

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
"""A slot whose shapes differ from the params' shapes: a number per leaf, factors of a matrix."""

EventCount = Annotated[jax.Array, _EVENTS]
"""Annotates a field `count` that counts other events than steps."""


# The result is cached, because evaluating annotations takes longer than a step.
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
    except NameError:  # names in the annotations of a class inside a function can't be looked up
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
            slow averages lose their increments in 16 bits. A real dtype applies only to real
            leaves; slots of complex leaves stay complex.
        fill: The initial value, a scalar.
        real: Whether complex leaves get a real slot (second moments).

    Returns:
        A tree of strongly typed arrays, sharded like `params`.

    Raises:
        TypeError: If a leaf isn't floating; the message names the leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.core import slot_zeros
        >>> slot_zeros({"w": jnp.ones(2, jnp.bfloat16)})
        {'w': Array([0., 0.], dtype=float32)}
    """
    check_inexact(params, "params")

    def zeros_leaf(p: Any) -> jax.Array:
        slot_dtype = _storage_dtype(dtype, p, real)
        return sharded_full_like(p, jnp.array(fill, slot_dtype), slot_dtype)

    return jax.tree.map(zeros_leaf, params)


def first_slot(tx: Any, name: str, params: Any) -> Any:
    """Make the initial value of a slot of `tx.State`, according to `tx.fill` and `tx.storage`."""
    if name not in declared_slots(tx.State):
        raise NotImplementedError(
            f"{where()}the field {name!r} of {tx.State.__name__} isn't a Slot, expected "
            "a Slot, or a method init(self, params) that returns the initial state."
        )
    dtype = getattr(tx, tx.storage.get(name, f"{name}_dtype"), None)
    fill = tx.fill.get(name, 0.0)
    if fill == "params":
        return slot_copy(params, dtype)
    fill = getattr(tx, fill) if isinstance(fill, str) else fill
    return slot_zeros(params, dtype, fill=fill, real=declared_slots(tx.State)[name])


def slot_copy(params: Any, dtype: Any = None) -> Any:
    """Make a slot whose initial value is a copy of the params, at least float32 by default.

    The slot doesn't share arrays with the params, so a jitted step may donate both.
    """
    check_inexact(params, "params")

    return jax.tree.map(lambda p: jnp.array(p, _storage_dtype(dtype, p), copy=True), params)


def _storage_dtype(dtype: Any, p: Any, real: bool = False) -> Any:
    """Storage dtype of a slot for the leaf `p`; complex for complex leaves unless `real`."""
    leaf_dtype = jnp.result_type(p)
    if real:
        return real_dtype(dtype or compute_dtype(leaf_dtype))
    # A real storage dtype would drop the imaginary part of a complex leaf.
    is_complex = jnp.issubdtype(leaf_dtype, jnp.complexfloating)
    is_allowed = dtype and (jnp.issubdtype(dtype, jnp.complexfloating) or not is_complex)
    return dtype if is_allowed else compute_dtype(leaf_dtype)


def scheduled(tx: Any) -> tuple[str, ...]:
    """Names of a transform's hyper-parameters that are schedules.

    Only an instance of `Schedule` is a schedule. Numbers, arrays and traced numbers are constants.
    """
    names, values = tx._leaf_names, tx._flatten()[0]
    return tuple(n for n, x in zip(names, values, strict=True) if isinstance(x, Schedule))


def needs_count(tx: Any) -> bool:
    """Whether a transform needs the step number."""
    if tx.reads_step:
        return True
    for x in tx._flatten()[0]:  # noqa: SIM110  (faster than `any` in an eager update)
        if isinstance(x, Schedule):
            return True
    return False


def first_count(tx: Any) -> jax.Array | None:
    """Initial step count: zero, or None if the transform needs no count."""
    return zero_count() if needs_count(tx) else None


def next_count(count: jax.Array | None) -> jax.Array | None:
    """Step count after a step; None stays None."""
    return None if count is None else safe_increment(count)


def count_of(tx: Any, state: Any) -> jax.Array | None:
    """Step count of a state, or None. Raises a ValueError if the transform needs a count.

    A count increments even if the transform doesn't need a count anymore, so a later transform with
    a schedule can use the state.
    """
    if state.count is None and needs_count(tx):
        raise missing_count(tx)
    return state.count


def missing_count(tx: Any) -> ValueError:
    """Make the error for a state that lacks a required count."""
    names = ", ".join(scheduled(tx))
    why = f"{names} follows a schedule" if names else "its formula reads the step number"
    return ValueError(
        f"{where()}{type(tx).__name__} needs a count of steps ({why}), but the count in its state "
        "is None, because an optimizer without a count made the state. Convert the state with "
        "state, report = fnopt.tree.restore(tx.init(params), state, count=n), where n is the "
        "number of previous steps."
    )


def is_abstract(params: Any) -> bool:
    """Whether at least one leaf is a `jax.ShapeDtypeStruct`."""
    return any(isinstance(p, jax.ShapeDtypeStruct) for p in jax.tree.leaves(params))


def abstract_to_zeros(init: Callable[[Any], Any], params: Any, caller: str = "") -> Any:
    """Replace abstract params by zeros, if the state doesn't depend on the values of the params.

    Args:
        init: Function that makes the state from params.
        params: The params, of which at least one leaf is a `jax.ShapeDtypeStruct`.
        caller: Prefix of the message: the name of the function that the user called.

    Raises:
        ValueError: If the state depends on values; the message names the leaves of the state.
    """
    names = _leaves_from_values(init, params)
    if names:
        raise ValueError(
            f"{caller}{where()}the initial values of the slots {names_text(names)} are the values "
            "of the params, but the params are jax.ShapeDtypeStruct, expected arrays. Pass the "
            "params as arrays, or call jax.eval_shape(tx.init, params) for the shapes of the "
            "state."
        )
    return jax.tree.map(
        lambda p: jnp.zeros(p.shape, p.dtype, device=p.sharding) if is_abstract(p) else p, params
    )


def _leaves_from_values(init: Callable[[Any], Any], params: Any) -> list[str]:
    """Names of the leaves of the state that depend on values of the params."""
    # Forward reachability in the jaxpr: an output of an equation depends on the params if one of
    # the equation's operands does. All operands of `jnp.zeros(p.shape)` are literals, so a zero
    # slot doesn't depend on the params.
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p)), params)
    closed, state = jax.make_jaxpr(init, return_shape=True)(shapes)
    dependent = {*closed.jaxpr.invars}
    for eqn in closed.jaxpr.eqns:
        if dependent & {x for x in eqn.invars if not isinstance(x, jex.Literal)}:
            dependent |= {*eqn.outvars}
    outputs = zip(leaves_with_names(state)[0], closed.jaxpr.outvars, strict=True)
    return [name for (name, _), x in outputs if not isinstance(x, jex.Literal) and x in dependent]
