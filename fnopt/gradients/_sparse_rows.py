"""Gradients of embedding tables that never exist as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Rows, leaves_with_names, listing, matches

_NAME = "sparse_value_and_grad"


class TableToLookUp:
    """A table that can be looked up and nothing else; every lookup is noted."""

    def __init__(self, name: str, table: Any, lookups: list[Any], shifts: list[Any] | None) -> None:
        self._name, self._table = name, jnp.asarray(table)
        self._lookups, self._shifts = lookups, shifts

    @property
    def shape(self) -> tuple[int, ...]:
        return self._table.shape

    @property
    def ndim(self) -> int:
        return self._table.ndim

    @property
    def dtype(self) -> Any:
        return self._table.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> jax.Array:
        whole = hasattr(index, "dtype") or isinstance(index, (int, list))
        index = jnp.asarray(index) if whole and not isinstance(index, bool) else None
        if index is None or not jnp.issubdtype(index.dtype, jnp.integer):
            raise TypeError(
                f"{_NAME}: the table {self._name!r} is looked up by whole numbers only, as in "
                f"table[ids]; this loss needs more of it, and so the dense gradient."
            )
        # As in an array of JAX: negative numbers count from the end; those beyond an end mean the
        # row there, and have no part in the gradient.
        index, size = index.astype(jnp.int32), jnp.asarray(len(self), jnp.int32)
        index = jnp.where(index < 0, index + size, index)
        rows = self._table[jnp.clip(index, jnp.zeros_like(size), size - 1)]
        index = jnp.where((index < 0) | (index >= size), size, index)
        shift = None if self._shifts is None else self._shifts[len(self._lookups)]
        self._lookups.append((index, jax.typeof(rows)))
        return rows if shift is None else rows + shift

    def take(self, index: Any, axis: int | None = None, **options: Any) -> jax.Array:
        """`table[index]`, if the axis is the first."""
        if axis != 0 or options:
            raise TypeError(f"{_NAME}: the table {self._name!r} has take(ids, axis=0) only.")
        return self[index]


def sparse_value_and_grad(
    fun: Callable[..., Any], tables: str | tuple[str, ...], has_aux: bool = False
) -> Callable[..., Any]:
    r"""A loss and its gradient, with only the rows of embedding tables that the loss looked up.

    .. math:: \frac{\partial L}{\partial \theta_i} = \sum_{j:\, \mathrm{ids}_j = i}
              \frac{\partial L}{\partial r_j}, \qquad r_j = \theta_{\mathrm{ids}_j}

    Where the loss writes `params["table"][ids]`, the gradient is taken with respect to the rows
    that this gives, so that an array of the table's size is never made. Rows that were looked up
    several times are summed. The function is run twice while it is traced: the first time to see
    what is looked up.

    The tables are no arrays inside `fun`: they can be looked up by arrays of whole numbers, in the
    function itself, not inside `jit`, `vmap`, `scan` or `jax.checkpoint` there. Anything else is an
    error and never a gradient with parts missing.

    Args:
        fun: A loss `fun(params, *args) -> scalar`, or `(scalar, aux)`.
        tables: The leaf path of a table, or a glob such as `'*/embedding'`, or several.
        has_aux: Whether `fun` returns `(scalar, aux)`.

    Returns:
        A function `(params, *args) -> (value, grads)` like that of `jax.value_and_grad`; `grads`
        has `fnopt.core.Rows` in place of the tables, for `fnopt.sparse_rows`.

    Raises:
        ValueError: If a name fits no leaf of the params.
        TypeError: If a table is used otherwise than by `table[ids]`.

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
        chosen = [any(matches(name, p) for p in patterns) for name, _ in pairs]
        _check_patterns(patterns, [name for name, _ in pairs])
        others = [None if c else leaf for c, (_, leaf) in zip(chosen, pairs, strict=True)]

        def run(others: list[Any], shifts: list[Any] | None) -> tuple[Any, Any, list[Any]]:
            lookups: list[list[Any]] = [[] for _ in pairs]
            leaves = [
                TableToLookUp(name, leaf, lookups[i], None if shifts is None else shifts[i])
                if chosen[i]
                else others[i]
                for i, (name, leaf) in enumerate(pairs)
            ]
            out = fun(treedef.unflatten(leaves), *args, **kwargs)
            value, aux = out if has_aux else (out, None)
            return value, aux, lookups

        seen: list[Any] = []

        def first(others: list[Any]) -> Any:
            seen[:] = [[kind for _, kind in rows] for rows in run(others, None)[2]]

        jax.eval_shape(first, others)
        shifts = [[jnp.zeros(kind.shape, kind.dtype) for kind in kinds] for kinds in seen]

        def second(others: list[Any], shifts: list[Any]) -> Any:
            value, aux, lookups = run(others, shifts)
            return value, (aux, [[index for index, _ in rows] for rows in lookups])

        (value, (aux, indices)), (grads, by_row) = jax.value_and_grad(second, (0, 1), has_aux=True)(
            others, shifts
        )
        leaves = [
            _rows(leaf, indices[i], by_row[i]) if chosen[i] else grads[i]
            for i, (_, leaf) in enumerate(pairs)
        ]
        return ((value, aux) if has_aux else value), treedef.unflatten(leaves)

    return value_and_grad


def _check_patterns(patterns: tuple[str, ...], names: list[str]) -> None:
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ValueError(
                f"{_NAME}: no leaf of the params is named {pattern!r}; they are {listing(names)}."
            )


def _rows(table: Any, indices: list[jax.Array], values: list[jax.Array]) -> Rows:
    """The cotangents of all lookups of a table, those of equal rows summed."""
    size, shape = jnp.shape(table)[0], jnp.shape(table)[1:]
    flat = [index.reshape(-1) for index in indices]
    parts = [value.reshape(-1, *shape) for value in values]
    if not parts:
        return Rows(jnp.zeros(0, jnp.int32), jnp.zeros((0, *shape), jnp.result_type(table)), size)
    return Rows(jnp.concatenate(flat), jnp.concatenate(parts), size).summed()
