"""Row-sparse gradients of embedding tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Rows, leaves_with_names, matches, names_text
from fnopt.gradients._lookups import Lookup, Lookups, Table

_NAME = "sparse_value_and_grad"


def sparse_value_and_grad(
    fun: Callable[..., Any], tables: str | tuple[str, ...], has_aux: bool = False
) -> Callable[..., Any]:
    r"""Value and gradient of a loss, with row-sparse gradients of embedding tables.

    .. math:: \frac{\partial L}{\partial \theta_i} = \sum_{j:\, \mathrm{ids}_j = i}
              \frac{\partial L}{\partial r_j}, \qquad r_j = \theta_{\mathrm{ids}_j}

    The loss is differentiated with respect to the rows that it looks up: by `table[ids]`,
    `jnp.take(table, ids, axis=0)`, or an embedding layer of flax or Equinox. An array of the
    table's size is never formed. Rows that were looked up several times are summed.

    Any other use of a table raises an error: a product with all of it (tied output weights), or a
    lookup inside of `scan`, `cond` or `jax.checkpoint`. So a gradient is never incomplete.

    Args:
        fun: A loss `fun(params, *args) -> scalar`, or `(scalar, aux)`.
        tables: The leaf path of a table, or a glob such as `'*/embedding'`, or several.
        has_aux: Whether `fun` returns `(scalar, aux)`.

    Returns:
        A function `(params, *args) -> (value, grads)` like that of `jax.value_and_grad`; `grads`
        has `fnopt.core.Rows` in place of the tables, for `fnopt.sparse_rows`.

    Raises:
        ValueError: If a name fits no leaf of the params.
        TypeError: If a table is used for anything but lookups of rows.

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
    """Zeros to add to what lookups give, by table, and the ways back from their cotangents."""
    seen: list[Any] = [[] for _ in others]
    backs: list[Any] = [[] for _ in others]

    def note_lookups(others: list[Any]) -> None:
        for i, found in evaluate(others, None)[2].items():
            seen[i] = [lookup.kind for lookup in found]
            backs[i] = [lookup.back for lookup in found]

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
    """The program of a function of leaves, and what makes its result of the outputs."""
    kept: list[Any] = []

    def flat(leaves: list[Any]) -> list[Any]:
        out, structure = jax.tree.flatten(fun(treedef.unflatten(leaves), *args, **kwargs))
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
    """The cotangents of all lookups of a table, those of equal rows summed."""
    size, shape = jnp.shape(table)[0], jnp.shape(table)[1:]
    if not values:
        return Rows(jnp.zeros(0, jnp.int32), jnp.zeros((0, *shape), jnp.result_type(table)), size)
    lookups = [Lookup(i, None, back) for i, back in zip(indices, backs, strict=True)]
    parts = [x.rows(v).reshape(-1, *shape) for x, v in zip(lookups, values, strict=True)]
    return Rows(
        jnp.concatenate([i.reshape(-1) for i in indices]), jnp.concatenate(parts), size
    ).summed()
