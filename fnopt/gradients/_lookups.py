"""Programs in which rows of tables are looked up, and nothing else is done with the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from fnopt.programs import jaxprs

_NAME = "sparse_value_and_grad"


class Table(NamedTuple):
    """A table that stands in a program in place of an array."""

    name: str
    place: int  # among the leaves of the params
    array: Any
    casts: tuple[Any, ...] = ()  # what its rows are cast to, once they are looked up


class Lookup(NamedTuple):
    """A lookup of rows in the program.

    Attributes:
        indices: The rows, each at least 0; the number of rows where a row has no gradient.
        kind: Shape and dtype of what comes out, before it is cast.
        back: The axes of what comes out that run over a row, in order.
    """

    indices: jax.Array
    kind: Any
    back: tuple[int, ...]

    def rows(self, cotangent: jax.Array) -> jax.Array:
        """The cotangent, a row for every index."""
        n = cotangent.ndim
        ends = tuple(range(n - len(self.back), n))
        by_row = jnp.moveaxis(cotangent, self.back, ends)
        return by_row.reshape(self.indices.size, -1)


class Lookups:
    """Runs a program, notes every lookup, and adds a shift to what each of them gives.

    Args:
        shifts: For every table the shifts of its lookups in order, or None for none.
    """

    def __init__(self, shifts: Sequence[Sequence[Any]] | None) -> None:
        self._shifts = shifts
        self.found: dict[int, list[Lookup]] = {}

    def evaluate(self, closed: jex.ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
        """The outputs for inputs of which some are tables."""
        outs = jaxprs.interpret(closed.jaxpr, closed.consts, values, self._evaluate_equation)
        for x in outs:
            if isinstance(x, Table):
                raise _unsupported_use(x, "returned")
        return outs

    def _evaluate_equation(self, eqn: jex.JaxprEqn, ins: list[Any]) -> list[Any]:
        used = [x for x in ins if isinstance(x, Table)]
        if not used:
            return jaxprs.bind(eqn, ins)
        table, name = used[0], eqn.primitive.name
        if len(used) > 1 or ins[0] is not table:
            raise _unsupported_use(table, f"used by {name!r}")
        dtype: Any = getattr(eqn.outvars[0].aval, "dtype", None)
        if name == "convert_element_type" and jnp.issubdtype(dtype, jnp.inexact):
            return [table._replace(casts=(*table.casts, dtype))]
        reader = {
            "gather": _rows_of_gather,
            "dynamic_slice": _rows_of_dynamic_slice,
            "slice": _rows_of_slice,
        }.get(name)
        found = reader(eqn, ins) if reader is not None else None
        if found is None:
            raise _unsupported_use(table, f"used by {name!r}")
        return [self._look_up(table, *found, eqn, ins[1:])]

    def _look_up(
        self, table: Table, indices: Any, back: tuple[int, ...], eqn: Any, others: list[Any]
    ) -> jax.Array:
        (rows,) = jaxprs.bind(eqn, [table.array, *others])
        seen = self.found.setdefault(table.place, [])
        if self._shifts is not None:
            rows = rows + self._shifts[table.place][len(seen)]
        seen.append(Lookup(indices, jax.typeof(rows), back))
        for dtype in table.casts:
            rows = rows.astype(dtype)
        return rows


def _unsupported_use(table: Table, what: str) -> TypeError:
    return TypeError(
        f"{_NAME}: the table {table.name!r} is {what}; expected nothing but lookups of rows, as "
        "table[ids] or jnp.take(table, ids, axis=0), outside of scan, cond, jax.checkpoint and "
        "functions with derivatives of their own. This loss needs more of the table, and so the "
        "dense gradient."
    )


def _whole_rows(shape: tuple[int, ...], sizes: Sequence[int]) -> bool:
    return len(shape) > 0 and tuple(sizes[1:]) == tuple(shape[1:])


def _rows_of_gather(eqn: Any, ins: list[Any]) -> tuple[jax.Array, tuple[int, ...]] | None:
    """The rows of a gather of whole rows, one for each index."""
    shape, numbers = eqn.invars[0].aval.shape, eqn.params["dimension_numbers"]
    sizes, mode = eqn.params["slice_sizes"], eqn.params["mode"]
    starts = tuple(numbers.start_index_map)
    if not _whole_rows(shape, sizes) or sizes[0] != 1 or 0 not in starts:
        return None
    clips = mode == jax.lax.GatherScatterMode.CLIP
    promised = mode == jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    # A start along a row moves whole rows only if it may be out of bounds.
    if numbers.operand_batching_dims or not (clips or promised or starts == (0,)):
        return None
    index = ins[1][..., starts.index(0)].astype(jnp.int32)
    return _clip_or_drop(index, shape[0], clips), tuple(numbers.offset_dims)


def _rows_of_dynamic_slice(eqn: Any, ins: list[Any]) -> tuple[jax.Array, tuple[int, ...]] | None:
    """The rows of a dynamic slice, which is clamped to the table."""
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    if not _whole_rows(shape, sizes):
        return None
    first = jnp.asarray(ins[1]).astype(jnp.int32)
    zero, last = jnp.zeros_like(first), jnp.full_like(first, shape[0] - sizes[0])
    index = jnp.clip(first, zero, last) + jnp.arange(sizes[0], dtype=jnp.int32)
    return index, tuple(range(1, len(shape)))


def _rows_of_slice(eqn: Any, ins: list[Any]) -> tuple[jax.Array, tuple[int, ...]] | None:
    """The rows of a slice."""
    del ins
    shape, p = eqn.invars[0].aval.shape, eqn.params
    strides = p["strides"] or (1,) * len(shape)
    if not _whole_rows(shape, eqn.outvars[0].aval.shape) or not shape:
        return None
    index = jnp.arange(p["start_indices"][0], p["limit_indices"][0], strides[0], dtype=jnp.int32)
    return index, tuple(range(1, len(shape)))


def _clip_or_drop(index: jax.Array, size: int, clips: bool) -> jax.Array:
    """Rows beyond an end: the row there, or the number of rows, which has no gradient."""
    zero, n = jnp.zeros_like(index), jnp.full_like(index, size)
    if clips:
        return jnp.clip(index, zero, n - 1)
    return jnp.where((index < 0) | (index >= size), n, index)
