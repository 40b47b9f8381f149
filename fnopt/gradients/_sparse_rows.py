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
    """Placeholder of an embedding table in a program.

    Attributes:
        name: The path of the leaf.
        place: Index of the leaf among the leaves of the params.
        array: The table.
        casts: Dtypes to which the looked-up rows are cast, in order.
    """

    name: str
    place: int
    array: Any
    casts: tuple[Any, ...] = ()


class Lookup(NamedTuple):
    """A lookup of rows in the program.

    Attributes:
        indices: The row indices, each at least 0. An index equal to the number of rows marks a
            lookup without a gradient.
        kind: Shape and dtype of the looked-up rows, before casts.
        back: The axes of the result that index the entries of a row, in the order of the table.
    """

    indices: jax.Array
    kind: Any
    back: tuple[int, ...]

    def rows(self, cotangent: jax.Array) -> jax.Array:
        """Reshape the cotangent of the result to one row per index."""
        n = cotangent.ndim
        ends = tuple(range(n - len(self.back), n))
        by_row = jnp.moveaxis(cotangent, self.back, ends)
        return by_row.reshape(self.indices.size, -1)


class Lookups:
    """Interpreter that records every lookup of rows and adds a shift to the result.

    Args:
        shifts: For every table, the shifts of its lookups in program order; None without shifts.

    Attributes:
        by_table: The recorded lookups of every table in program order, keyed by `Table.place`.
    """

    def __init__(self, shifts: Sequence[Sequence[Any]] | None) -> None:
        self._shifts = shifts
        self.by_table: dict[int, list[Lookup]] = {}

    def evaluate(self, closed: jex.ClosedJaxpr, values: Sequence[Any]) -> list[Any]:
        """Evaluate the program for inputs that may be tables."""
        outs = jaxprs.interpret(closed.jaxpr, closed.consts, values, self._evaluate_equation)
        for x in outs:
            if isinstance(x, Table):
                raise _unsupported_use(x, "returned")
        return outs

    def _evaluate_equation(self, eqn: jex.JaxprEqn, ins: list[Any]) -> list[Any]:
        tables = [x for x in ins if isinstance(x, Table)]
        if not tables:
            return jaxprs.bind(eqn, ins)
        table, name = tables[0], eqn.primitive.name
        if len(tables) > 1 or ins[0] is not table:
            raise _unsupported_use(table, f"used by {name!r}")
        dtype: Any = getattr(eqn.outvars[0].aval, "dtype", None)
        if name == "convert_element_type" and jnp.issubdtype(dtype, jnp.inexact):
            return [table._replace(casts=(*table.casts, dtype))]
        reader = {
            "gather": _rows_of_gather,
            "dynamic_slice": _rows_of_dynamic_slice,
            "slice": _rows_of_slice,
        }.get(name)
        indices_and_axes = reader(eqn, ins) if reader is not None else None
        if indices_and_axes is None:
            raise _unsupported_use(table, f"used by {name!r}")
        return [self._look_up(table, *indices_and_axes, eqn, ins[1:])]

    def _look_up(
        self, table: Table, indices: Any, back: tuple[int, ...], eqn: Any, others: list[Any]
    ) -> jax.Array:
        (rows,) = jaxprs.bind(eqn, [table.array, *others])
        lookups = self.by_table.setdefault(table.place, [])
        # The gradient of a row is the gradient of a zero shift. Differentiation with respect to the
        # table would form a dense gradient.
        if self._shifts is not None:
            rows = rows + self._shifts[table.place][len(lookups)]
        lookups.append(Lookup(indices, jax.typeof(rows), back))
        for dtype in table.casts:
            rows = rows.astype(dtype)
        return rows


def _unsupported_use(table: Table, what: str) -> TypeError:
    return TypeError(
        f"{_NAME}: the table {table.name!r} is {what}, expected only lookups of rows, such as "
        "table[ids] or jnp.take(table, ids, axis=0), outside of scan, cond, jax.checkpoint and "
        "functions with custom derivatives. For other uses, compute the dense gradient."
    )


def _selects_whole_rows(shape: tuple[int, ...], sizes: Sequence[int]) -> bool:
    return len(shape) > 0 and tuple(sizes[1:]) == tuple(shape[1:])


def _rows_of_gather(eqn: Any, ins: list[Any]) -> tuple[jax.Array, tuple[int, ...]] | None:
    """Row indices of a gather of single rows, and the axes of the row's entries; else None."""
    shape, numbers = eqn.invars[0].aval.shape, eqn.params["dimension_numbers"]
    sizes, mode = eqn.params["slice_sizes"], eqn.params["mode"]
    starts = tuple(numbers.start_index_map)
    if not _selects_whole_rows(shape, sizes) or sizes[0] != 1 or 0 not in starts:
        return None
    clips = mode == jax.lax.GatherScatterMode.CLIP
    promised = mode == jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    # A gather may also index the axes of a row. With clipping, these starts are 0, because the
    # slices are whole rows. Otherwise, an out-of-bounds start would drop the row.
    if numbers.operand_batching_dims or not (clips or promised or starts == (0,)):
        return None
    index = ins[1][..., starts.index(0)].astype(jnp.int32)
    return _clip_or_drop(index, shape[0], clips), tuple(numbers.offset_dims)


def _rows_of_dynamic_slice(eqn: Any, ins: list[Any]) -> tuple[jax.Array, tuple[int, ...]] | None:
    """Row indices of a dynamic slice, whose start JAX clamps to the table; else None."""
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    if not _selects_whole_rows(shape, sizes):
        return None
    first = jnp.asarray(ins[1]).astype(jnp.int32)
    zero, last = jnp.zeros_like(first), jnp.full_like(first, shape[0] - sizes[0])
    index = jnp.clip(first, zero, last) + jnp.arange(sizes[0], dtype=jnp.int32)
    return index, tuple(range(1, len(shape)))


def _rows_of_slice(eqn: Any, ins: list[Any]) -> tuple[jax.Array, tuple[int, ...]] | None:
    """Row indices of a slice of whole rows; else None."""
    del ins
    shape, p = eqn.invars[0].aval.shape, eqn.params
    strides = p["strides"] or (1,) * len(shape)
    if not _selects_whole_rows(shape, eqn.outvars[0].aval.shape):
        return None
    index = jnp.arange(p["start_indices"][0], p["limit_indices"][0], strides[0], dtype=jnp.int32)
    return index, tuple(range(1, len(shape)))


def _clip_or_drop(index: jax.Array, size: int, clips: bool) -> jax.Array:
    """Clip out-of-bounds indices, or replace them by the number of rows (no gradient)."""
    zero, n = jnp.zeros_like(index), jnp.full_like(index, size)
    # With JAX's mode 'clip', an out-of-bounds lookup contributes to the gradient of the last row.
    if clips:
        return jnp.clip(index, zero, n - 1)
    return jnp.where((index < 0) | (index >= size), n, index)


def sparse_value_and_grad(
    fun: Callable[..., Any], tables: str | tuple[str, ...], has_aux: bool = False
) -> Callable[..., Any]:
    r"""Compute the value and the gradient of a loss, with row-sparse gradients of embedding tables.

    .. math:: \frac{\partial L}{\partial \theta_i} = \sum_{j:\, \mathrm{ids}_j = i}
              \frac{\partial L}{\partial r_j}, \qquad r_j = \theta_{\mathrm{ids}_j}

    The loss is differentiated with respect to the rows that it looks up. A lookup is `table[ids]`,
    `jnp.take(table, ids, axis=0)`, or an embedding layer of flax or Equinox. No gradient of the
    table's size is formed. Gradients of repeated rows are summed.

    Any other use of a table raises an error, so that the gradient is always complete. Examples are
    a product with the whole table (tied output weights), and a lookup inside `scan`, `cond` or
    `jax.checkpoint`.

    Args:
        fun: A loss `fun(params, *args) -> scalar`, or `(scalar, aux)`.
        tables: The leaf path of a table, a glob such as `'*/embedding'`, or a tuple of paths and
            globs.
        has_aux: Whether `fun` returns `(scalar, aux)`.

    Returns:
        A function `(params, *args) -> (value, grads)` as in `jax.value_and_grad`. The gradient of a
        table is a `fnopt.core.Rows`, for the optimizer `fnopt.sparse_rows`.

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
        is_table = [any(matches(name, p) for p in patterns) for name, _ in pairs]
        stand_ins = [
            Table(name, i, jnp.asarray(leaf)) if is_table[i] else None
            for i, (name, leaf) in enumerate(pairs)
        ]
        others = [None if t else leaf for t, (_, leaf) in zip(is_table, pairs, strict=True)]
        closed, unflatten = _program(fun, [leaf for _, leaf in pairs], treedef, args, kwargs)

        def evaluate(others: list[Any], shifts: Any) -> tuple[Any, Any, dict[int, list[Lookup]]]:
            lookups = Lookups(shifts)
            values = [x if t is None else t for t, x in zip(stand_ins, others, strict=True)]
            out = unflatten(lookups.evaluate(closed, values))
            value, aux = out if has_aux else (out, None)
            return value, aux, lookups.by_table

        def evaluate_shifted(others: list[Any], shifts: list[Any]) -> Any:
            value, aux, by_table = evaluate(others, shifts)
            return value, (aux, {i: [x.indices for x in xs] for i, xs in by_table.items()})

        shifts, backs = _zero_shifts(evaluate, others)
        derive = jax.value_and_grad(evaluate_shifted, (0, 1), has_aux=True)
        (value, (aux, indices)), (grads, by_row) = derive(others, shifts)
        leaves = [
            _rows(leaf, indices.get(i, []), by_row[i], backs[i]) if is_table[i] else grads[i]
            for i, (_, leaf) in enumerate(pairs)
        ]
        return ((value, aux) if has_aux else value), treedef.unflatten(leaves)

    return value_and_grad


def _zero_shifts(evaluate: Callable[..., Any], others: list[Any]) -> tuple[list[Any], list[Any]]:
    """Zero shifts of the lookups per table, and the `Lookup.back` of the lookups per table."""
    shapes: list[Any] = [[] for _ in others]
    backs: list[Any] = [[] for _ in others]

    def record_lookups(others: list[Any]) -> None:
        for i, lookups in evaluate(others, None)[2].items():
            shapes[i] = [lookup.kind for lookup in lookups]
            backs[i] = [lookup.back for lookup in lookups]

    # The number of lookups and their shapes are known only after an abstract evaluation.
    jax.eval_shape(record_lookups, others)
    return [[jnp.zeros(kind.shape, kind.dtype) for kind in kinds] for kinds in shapes], backs


def _check_patterns(patterns: tuple[str, ...], names: list[str]) -> None:
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ValueError(
                f"{_NAME}: no leaf of the params is named {pattern!r}, expected one of "
                f"{names_text(names)}."
            )


def _program(fun: Any, leaves: list[Any], treedef: Any, args: Any, kwargs: Any) -> Any:
    """Jaxpr of a function of leaves, and the function that converts its outputs to the result."""
    output_info: list[Any] = []

    def run_flat(leaves: list[Any]) -> list[Any]:
        out, structure = jax.tree.flatten(fun(treedef.unflatten(leaves), *args, **kwargs))
        # A jaxpr returns arrays only; `unflatten` inserts the other outputs.
        is_array = [isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in out]
        others = [None if a else x for a, x in zip(is_array, out, strict=True)]
        output_info[:] = [structure, others, is_array]
        return [x for a, x in zip(is_array, out, strict=True) if a]

    closed = jax.make_jaxpr(run_flat)(leaves)

    def unflatten(outs: list[Any]) -> Any:
        structure, others, is_array = output_info
        arrays = iter(outs)
        return structure.unflatten(
            [next(arrays) if a else x for a, x in zip(is_array, others, strict=True)]
        )

    return closed, unflatten


def _rows(table: Any, indices: list[jax.Array], values: list[jax.Array], backs: list[Any]) -> Rows:
    """Row-sparse gradient of a table: cotangents of all lookups, summed over equal rows."""
    size, shape = jnp.shape(table)[0], jnp.shape(table)[1:]
    if not values:
        return Rows(jnp.zeros(0, jnp.int32), jnp.zeros((0, *shape), jnp.result_type(table)), size)
    lookups = [Lookup(i, None, back) for i, back in zip(indices, backs, strict=True)]
    parts = [x.rows(v).reshape(-1, *shape) for x, v in zip(lookups, values, strict=True)]
    return Rows(
        jnp.concatenate([i.reshape(-1) for i in indices]), jnp.concatenate(parts), size
    ).summed()
