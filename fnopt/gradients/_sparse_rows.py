"""Row-sparse gradients of embedding tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from fnopt.core import Rows
from fnopt.errors import leaves_with_names, matches, names_text
from fnopt.programs import jaxprs

_NAME = "sparse_value_and_grad"


class Table(NamedTuple):
    """Placeholder of an embedding table in a program."""

    name: str
    place: int  # index among the leaves of the params
    array: Any
    casts: tuple[Any, ...] = ()  # dtypes to which the rows are cast after the lookup


class Lookup(NamedTuple):
    """A lookup of rows in the program.

    Attributes:
        indices: The row indices, each at least 0. An index equal to the number of rows marks a
            lookup without a gradient.
        kind: Shape and dtype of the looked-up rows, before casts.
        back: The axes of the result that index the entries of a row, in order.
    """

    indices: jax.Array
    kind: Any
    back: tuple[int, ...]

    def rows(self, cotangent: jax.Array) -> jax.Array:
        """Reshape the cotangent to one row per index."""
        n = cotangent.ndim
        ends = tuple(range(n - len(self.back), n))
        by_row = jnp.moveaxis(cotangent, self.back, ends)
        return by_row.reshape(self.indices.size, -1)


class Lookups:
    """Interpreter that records every lookup of rows and adds a shift to the result.

    Args:
        shifts: For every table, the shifts of its lookups in program order; None without shifts.
    """

    def __init__(self, shifts: Sequence[Sequence[Any]] | None) -> None:
        self._shifts = shifts
        self.found: dict[int, list[Lookup]] = {}

    def evaluate(self, closed: jex.ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
        """Evaluate the program for inputs that may include tables."""
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
        # The gradient of a row is the gradient of a zero shift; the table itself isn't
        # differentiated.
        if self._shifts is not None:
            rows = rows + self._shifts[table.place][len(seen)]
        seen.append(Lookup(indices, jax.typeof(rows), back))
        for dtype in table.casts:
            rows = rows.astype(dtype)
        return rows


def _unsupported_use(table: Table, what: str) -> TypeError:
    return TypeError(
        f"{_NAME}: the table {table.name!r} is {what}; expected nothing but lookups of "
        "rows, as table[ids] or jnp.take(table, ids, axis=0), outside of scan, cond, "
        "jax.checkpoint and functions with derivatives of their own. This loss needs the "
        "dense gradient."
    )


def _whole_rows(shape: tuple[int, ...], sizes: Sequence[int]) -> bool:
    return len(shape) > 0 and tuple(sizes[1:]) == tuple(shape[1:])


def _rows_of_gather(eqn: Any, ins: list[Any]) -> tuple[jax.Array, tuple[int, ...]] | None:
    """Row indices of a gather of whole rows, one per index."""
    shape, numbers = eqn.invars[0].aval.shape, eqn.params["dimension_numbers"]
    sizes, mode = eqn.params["slice_sizes"], eqn.params["mode"]
    starts = tuple(numbers.start_index_map)
    if not _whole_rows(shape, sizes) or sizes[0] != 1 or 0 not in starts:
        return None
    clips = mode == jax.lax.GatherScatterMode.CLIP
    promised = mode == jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    # If starts are clipped, a start along a row is 0, because slices are whole rows. Otherwise it
    # may be out of bounds, which drops the row.
    if numbers.operand_batching_dims or not (clips or promised or starts == (0,)):
        return None
    index = ins[1][..., starts.index(0)].astype(jnp.int32)
    return _clip_or_drop(index, shape[0], clips), tuple(numbers.offset_dims)


def _rows_of_dynamic_slice(eqn: Any, ins: list[Any]) -> tuple[jax.Array, tuple[int, ...]] | None:
    """Row indices of a dynamic slice, which is clamped to the table."""
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    if not _whole_rows(shape, sizes):
        return None
    first = jnp.asarray(ins[1]).astype(jnp.int32)
    zero, last = jnp.zeros_like(first), jnp.full_like(first, shape[0] - sizes[0])
    index = jnp.clip(first, zero, last) + jnp.arange(sizes[0], dtype=jnp.int32)
    return index, tuple(range(1, len(shape)))


def _rows_of_slice(eqn: Any, ins: list[Any]) -> tuple[jax.Array, tuple[int, ...]] | None:
    """Row indices of a slice."""
    del ins
    shape, p = eqn.invars[0].aval.shape, eqn.params
    strides = p["strides"] or (1,) * len(shape)
    if not _whole_rows(shape, eqn.outvars[0].aval.shape) or not shape:
        return None
    index = jnp.arange(p["start_indices"][0], p["limit_indices"][0], strides[0], dtype=jnp.int32)
    return index, tuple(range(1, len(shape)))


def _clip_or_drop(index: jax.Array, size: int, clips: bool) -> jax.Array:
    """Clip out-of-bounds indices, or replace them by the number of rows (no gradient)."""
    zero, n = jnp.zeros_like(index), jnp.full_like(index, size)
    # The two modes of JAX's gather: clipped indices have the gradient of the last row.
    if clips:
        return jnp.clip(index, zero, n - 1)
    return jnp.where((index < 0) | (index >= size), n, index)


def sparse_value_and_grad(
    fun: Callable[..., Any], tables: str | tuple[str, ...], has_aux: bool = False
) -> Callable[..., Any]:
    r"""Compute value and gradient of a loss, with row-sparse gradients of embedding tables.

    .. math:: \frac{\partial L}{\partial \theta_i} = \sum_{j:\, \mathrm{ids}_j = i}
              \frac{\partial L}{\partial r_j}, \qquad r_j = \theta_{\mathrm{ids}_j}

    The loss is differentiated with respect to the rows that it looks up. A lookup is `table[ids]`,
    `jnp.take(table, ids, axis=0)`, or an embedding layer of flax or Equinox. No gradient of the
    table's size is formed. Gradients of repeated rows are summed.

    Any other use of a table raises an error: a product with the whole table (tied output weights),
    or a lookup inside `scan`, `cond` or `jax.checkpoint`. The gradient is therefore always
    complete.

    Args:
        fun: A loss `fun(params, *args) -> scalar`, or `(scalar, aux)`.
        tables: The leaf path of a table, a glob such as `'*/embedding'`, or several of them.
        has_aux: Whether `fun` returns `(scalar, aux)`.

    Returns:
        A function `(params, *args) -> (value, grads)` as in `jax.value_and_grad`; `grads` has
        `fnopt.core.Rows` in place of the tables, for `fnopt.sparse_rows`.

    Raises:
        ValueError: If a name matches no leaf of the params.
        TypeError: If a table is used other than by lookups of rows.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def loss(params, ids):
        ...     return jnp.sum(params["table"][ids] ** 2)
        >>> params = {"table": jnp.ones((1000, 2))}
        >>> grad = fnopt.sparse_value_and_grad(loss, "table")
        >>> value, grads = grad(params, jnp.asarray([7, 3, 7]))
        >>> grads["table"].indices[:2], grads["table"].values[:2, 0]
        (Array([3, 7], dtype=int32), Array([2., 4.], dtype=float32))
    """
    patterns = (tables,) if isinstance(tables, str) else tuple(tables)

    def value_and_grad(params: Any, *args: Any, **kwargs: Any) -> Any:
        pairs, treedef = leaves_with_names(params)
        _check_patterns(patterns, [name for name, _ in pairs])
        chosen = [any(matches(name, p) for p in patterns) for name, _ in pairs]
        stand_ins = [
            Table(name, i, jnp.asarray(leaf)) if chosen[i] else None
            for i, (name, leaf) in enumerate(pairs)
        ]
        others = [None if c else leaf for c, (_, leaf) in zip(chosen, pairs, strict=True)]
        closed, unflatten = _program(fun, [leaf for _, leaf in pairs], treedef, args, kwargs)

        def evaluate(others: list[Any], shifts: Any) -> tuple[Any, Any, dict[int, list[Lookup]]]:
            lookups = Lookups(shifts)
            values = [x if t is None else t for t, x in zip(stand_ins, others, strict=True)]
            out = unflatten(lookups.evaluate(closed, values))
            value, aux = out if has_aux else (out, None)
            return value, aux, lookups.found

        def evaluate_shifted(others: list[Any], shifts: list[Any]) -> Any:
            value, aux, found = evaluate(others, shifts)
            return value, (aux, {i: [x.indices for x in xs] for i, xs in found.items()})

        shifts, backs = _shifts(evaluate, others)
        derive = jax.value_and_grad(evaluate_shifted, (0, 1), has_aux=True)
        (value, (aux, indices)), (grads, by_row) = derive(others, shifts)
        leaves = [
            _rows(leaf, indices.get(i, []), by_row[i], backs[i]) if chosen[i] else grads[i]
            for i, (_, leaf) in enumerate(pairs)
        ]
        return ((value, aux) if has_aux else value), treedef.unflatten(leaves)

    return value_and_grad


def _shifts(evaluate: Callable[..., Any], others: list[Any]) -> tuple[list[Any], list[Any]]:
    """Zero shifts of the lookups per table, and functions that convert cotangents to `Rows`."""
    seen: list[Any] = [[] for _ in others]
    backs: list[Any] = [[] for _ in others]

    def note_lookups(others: list[Any]) -> None:
        for i, found in evaluate(others, None)[2].items():
            seen[i] = [lookup.kind for lookup in found]
            backs[i] = [lookup.back for lookup in found]

    # One abstract evaluation gives the number of lookups and their shapes.
    jax.eval_shape(note_lookups, others)
    return [[jnp.zeros(kind.shape, kind.dtype) for kind in kinds] for kinds in seen], backs


def _check_patterns(patterns: tuple[str, ...], names: list[str]) -> None:
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ValueError(
                f"{_NAME}: no leaf of the params is named {pattern!r}; they are "
                f"{names_text(names)}."
            )


def _program(fun: Any, leaves: list[Any], treedef: Any, args: Any, kwargs: Any) -> Any:
    """Jaxpr of a function of leaves, and the function that converts its outputs to the result."""
    kept: list[Any] = []

    def flat(leaves: list[Any]) -> list[Any]:
        out, structure = jax.tree.flatten(fun(treedef.unflatten(leaves), *args, **kwargs))
        # A jaxpr returns arrays only; `unflatten` puts other outputs back.
        is_array = [isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in out]
        kept[:] = [structure, [None if a else x for a, x in zip(is_array, out, strict=True)]]
        kept.append(is_array)
        return [x for a, x in zip(is_array, out, strict=True) if a]

    closed = jax.make_jaxpr(flat)(leaves)

    def unflatten(outs: list[Any]) -> Any:
        structure, others, is_array = kept
        arrays = iter(outs)
        return structure.unflatten(
            [next(arrays) if a else x for a, x in zip(is_array, others, strict=True)]
        )

    return closed, unflatten


def _rows(table: Any, indices: list[jax.Array], values: list[jax.Array], backs: list[Any]) -> Rows:
    """Cotangents of all lookups of a table, summed over equal rows."""
    size, shape = jnp.shape(table)[0], jnp.shape(table)[1:]
    if not values:
        return Rows(jnp.zeros(0, jnp.int32), jnp.zeros((0, *shape), jnp.result_type(table)), size)
    lookups = [Lookup(i, None, back) for i, back in zip(indices, backs, strict=True)]
    parts = [x.rows(v).reshape(-1, *shape) for x, v in zip(lookups, values, strict=True)]
    return Rows(
        jnp.concatenate([i.reshape(-1) for i in indices]), jnp.concatenate(parts), size
    ).summed()
