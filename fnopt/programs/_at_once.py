"""Batching of similar operations in a program, on stacked operands."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from fnopt.programs import _read as jaxprs
from fnopt.programs._key import UnidentifiedError, equation_key, rule_key
from fnopt.programs._order import Sum, dependent, levels, numbers
from fnopt.programs._stacks import FEW, Lane, end_to_end, lanes, plain, summed, windows

_LARGEST = 4096  # numbers of an array: work on larger ones would need much memory at once
_WITH_RULE = "custom_jvp_call"
_SLOWER = {"conv_general_dilated", "optimization_barrier", "sharding_constraint"}
# Under `jax.vmap` they give other numbers (keys that aren't threefry's), or nothing.
_OTHERS = {
    *("custom_vmap_call", "ffi_call", "pure_callback", "random_bits", "random_fold_in"),
    *("random_split", "rng_bit_generator"),
}


class AtOnce:
    """A program, run level by level; what is alike in a level at once, by `jax.vmap`."""

    def __init__(self, closed: jex.ClosedJaxpr) -> None:
        self.jaxpr, self.consts = closed.jaxpr, closed.consts
        self.dependent = dependent(closed.jaxpr)

    def run(self, x: jax.Array) -> list[Any]:
        """The outputs of the program."""
        self.env = jaxprs.Environment(self.jaxpr, self.consts, [x])
        for level in levels(self.jaxpr):
            groups: dict[Any, list[Any]] = {}
            for i, eqn in enumerate(level):
                groups.setdefault(self._key(eqn) or i, []).append(eqn)
            for group in groups.values():
                for alike in _by_rule(group):
                    self._run(alike)
        return list(map(plain, self.env.read(self.jaxpr.outvars)))

    def _run(self, group: list[Any]) -> None:
        columns = list(zip(*(self.env.read(eqn.invars) for eqn in group), strict=True))
        if len(group) < FEW:
            results = [_alone(eqn, self.env.read(eqn.invars)) for eqn in group]
        elif columns and _is_window(group[0], columns[0][0]):
            results = _windows(group, columns[0][0])
        else:
            results = _at_once(group, columns)
        for eqn, outs in zip(group, results, strict=True):
            self.env.write(eqn.outvars, outs)

    def _key(self, eqn: Any) -> Any:
        """Equal for equations that can be run at once; None for one that can't."""
        if isinstance(eqn, Sum) or _is_one_by_one(eqn):
            return None
        if eqn.primitive.name == "slice" and _is_window(eqn, *self.env.read(eqn.invars)):
            return "window", eqn.invars[0], eqn.outvars[0].aval.shape
        try:
            return equation_key(eqn), *map(self._source, eqn.invars)
        except UnidentifiedError:
            return None

    def _source(self, atom: Any) -> Any:
        """What the inputs of equations that are run at once have in common."""
        if isinstance(atom, jex.Literal):
            return None
        (value,) = self.env.read([atom])
        if isinstance(value, Lane):
            return value.stack
        return atom if atom in self.dependent else None


def _is_one_by_one(eqn: Any) -> bool:
    """Whether an operation is left as it is: `jax.vmap` may not take it, or to no avail."""
    subs, name = jaxprs.sub_jaxprs(eqn), eqn.primitive.name
    if eqn.effects or name in _SLOWER | _OTHERS or (subs and name != _WITH_RULE):
        return True
    inside = (inner.primitive.name for sub in subs for inner in jaxprs.equations(sub.jaxpr))
    if not _OTHERS.isdisjoint(inside):
        return True
    largest = max(map(numbers, (*eqn.invars, *eqn.outvars)), default=0)
    return eqn.primitive.name != "slice" and largest > _LARGEST


def _by_rule(group: list[Any]) -> list[list[Any]]:
    """Alike equations, those apart whose derivatives a user has given by different rules."""
    if len(group) < FEW or group[0].primitive.name != _WITH_RULE:
        return [group]  # to look at a rule takes milliseconds
    found: dict[Any, list[Any]] = {}
    for i, eqn in enumerate(group):
        try:
            key: Any = rule_key(eqn)
        except UnidentifiedError:
            key = i
        found.setdefault(key, []).append(eqn)
    return list(found.values())


def _is_window(eqn: jex.JaxprEqn, operand: Any) -> bool:
    """Whether an equation cuts a block out of an array that is no lane."""
    if eqn.primitive.name != "slice" or isinstance(operand, Lane):
        return False
    return all(step == 1 for step in eqn.params["strides"] or ())


def _windows(group: list[Any], operand: jax.Array) -> list[list[Any]]:
    starts = [eqn.params["start_indices"] for eqn in group]
    return [[lane] for lane in lanes(windows(operand, starts, group[0].outvars[0].aval.shape))]


def _at_once(group: list[Any], columns: list[tuple[Any, ...]]) -> list[Any]:
    """The outputs of alike equations."""
    eqn = group[0]
    pairs = zip(columns, eqn.invars, strict=True)
    inputs = [_stacked(column, atom.aval.dtype) for column, atom in pairs]
    axes = [axis for _, axis in inputs]
    if not any(axis == 0 for axis in axes):  # all are the same
        return [jaxprs.bind(eqn, [value for value, _ in inputs])] * len(group)
    outs = jax.vmap(lambda *ins: jaxprs.bind(eqn, ins), axes)(*(value for value, _ in inputs))
    return list(zip(*map(lanes, outs), strict=True))


def _stacked(column: tuple[Any, ...], dtype: Any) -> tuple[Any, int | None]:
    """An input of alike equations: one array for all, or one with a leading axis of them."""
    first = column[0]
    if all(value is first for value in column):
        return plain(first), None
    if isinstance(first, Lane):
        return first.stack.take([lane.index for lane in column]), 0
    if any(isinstance(value, jax.Array) for value in column):
        return jnp.stack([jnp.asarray(value, dtype) for value in column]), 0
    numbers = np.stack([np.asarray(value, dtype) for value in column])
    alike = len({number.tobytes() for number in numbers}) == 1
    return (first, None) if alike else (numbers, 0)


def _alone(eqn: Any, values: list[Any]) -> list[Any]:
    """The outputs of one equation."""
    if isinstance(eqn, Sum):
        return [summed(values)]
    match eqn.primitive.name:
        case "concatenate":
            return [end_to_end(values, eqn.params["dimension"])]
        case "stack":
            return [end_to_end(values, eqn.params["axis"], new=True)]
        case "unstack":
            return list(lanes(jnp.moveaxis(plain(values[0]), eqn.params["axis"], 0)))
        case "split":
            return _split(plain(values[0]), eqn.params["axis"], eqn.params["sizes"])
    return jaxprs.bind(eqn, map(plain, values))


def _split(array: jax.Array, axis: int, sizes: tuple[int, ...]) -> list[Any]:
    """The parts of an array, those of one size as lanes."""
    ends = np.cumsum(sizes)
    parts: list[Any] = [None] * len(sizes)
    for size in set(sizes):
        places = [i for i, other in enumerate(sizes) if other == size]
        before, after = (0,) * axis, (0,) * (array.ndim - axis - 1)
        starts = [(*before, int(ends[i]) - size, *after) for i in places]
        shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])
        for i, lane in zip(places, lanes(windows(array, starts, shape)), strict=True):
            parts[i] = lane
    return parts
