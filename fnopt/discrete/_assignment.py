"""The linear assignment problem: pairs of rows and columns with the minimum total cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import type_text
from fnopt.numerics import compute_dtype


class _PathSearch(NamedTuple):
    """State of a shortest-path search from an unassigned row."""

    distance: jax.Array  # [m] length of the shortest path to every column
    parent: jax.Array  # [m] the preceding row on the shortest path to every column
    done: jax.Array  # [m] bools: whether the distance of the column is final
    rows: jax.Array  # [n] bools: whether the search reached the row
    last: jax.Array  # the column reached last
    length: jax.Array  # the distance of the column reached last


def _shortest_path(
    cost: jax.Array, u: jax.Array, v: jax.Array, owner: jax.Array, row: Any
) -> _PathSearch:
    """Run Dijkstra's algorithm over reduced costs until it reaches an unassigned column.

    Nodes are rows and columns. An edge from a row to a column has the reduced cost `cost - u - v`,
    which is nonnegative. An edge from a column to its assigned row has the cost 0.

    Args:
        cost: `[n, m]`.
        u: Dual potentials of the rows, `[n]`.
        v: Dual potentials of the columns, `[m]`.
        owner: The row to which each column is assigned, `[m]`; -1 for an unassigned column.
        row: The unassigned row at which the search starts.
    """
    n, m = cost.shape
    infinity = jnp.asarray(jnp.inf, cost.dtype)

    def reach(search: _PathSearch, row: Any) -> _PathSearch:
        distance_via_row = search.length + (cost[row] - u[row]) - v
        is_shorter = ~search.done & (distance_via_row < search.distance)
        distance = jnp.where(is_shorter, distance_via_row, search.distance)
        parent = jnp.where(is_shorter, row, search.parent)
        last = jnp.argmin(jnp.where(search.done, infinity, distance)).astype(jnp.int32)
        # If no finite distance remains, `argmin` may return a finished column again. The search
        # then continues with the first unfinished column, so that the loop ends.
        last = jnp.where(search.done[last], jnp.argmin(search.done).astype(jnp.int32), last)
        return _PathSearch(
            distance,
            parent,
            search.done.at[last].set(True),
            search.rows.at[row].set(True),
            last,
            distance[last],
        )

    initial = _PathSearch(
        jnp.full(m, infinity),
        jnp.full(m, row, jnp.int32),
        jnp.zeros(m, bool),
        jnp.zeros(n, bool),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), cost.dtype),
    )
    start = reach(initial, row)
    return jax.lax.while_loop(
        lambda s: owner[s.last] >= 0, lambda s: reach(s, owner[s.last]), start
    )


def _flip_path(search: _PathSearch, owner: jax.Array, column: jax.Array, row: Any) -> Any:
    """Reassign every column on the shortest path to its parent row, from the end to the start."""

    # Each row on the path takes over the next column, and its previous column goes to the row
    # before it.
    def augment(carry: Any) -> Any:
        owner, column, end, _ = carry
        row_on_path = search.parent[end]
        previous = column[row_on_path]
        return (
            owner.at[end].set(row_on_path),
            column.at[row_on_path].set(end),
            previous,
            row_on_path != row,
        )

    initial = owner, column, search.last, jnp.asarray(True)
    owner, column, _, _ = jax.lax.while_loop(lambda carry: carry[3], augment, initial)
    return owner, column


def _solve(cost: jax.Array) -> jax.Array:
    """Column assigned to every row, `[n]`; requires at least as many columns as rows."""
    # Successive shortest paths: the potentials keep all reduced costs nonnegative, and zero for
    # assigned pairs. Each row extends the assignment along a shortest path to an unassigned column.
    n, m = cost.shape

    def assign_row(row: Any, carry: Any) -> Any:
        u, v, owner, column = carry
        search = _shortest_path(cost, u, v, owner, row)
        decrease = search.length - search.distance
        finite = search.done & jnp.isfinite(decrease)
        v = v - jnp.where(finite, decrease, 0).astype(v.dtype)
        # A reached row's potential increases by the decrease of its assigned column's potential, so
        # that the reduced cost of the assigned pair remains zero.
        assigned = jnp.where(column >= 0, column, 0)
        increase = jnp.where(finite[assigned], decrease[assigned], 0).astype(u.dtype)
        increase = jnp.where(jnp.arange(n) == row, search.length, increase)
        u = u + jnp.where(search.rows & jnp.isfinite(increase), increase, 0).astype(u.dtype)
        owner, column = _flip_path(search, owner, column, row)
        return u, v, owner, column

    start = (
        jnp.zeros(n, cost.dtype),
        jnp.zeros(m, cost.dtype),
        jnp.full(m, -1, jnp.int32),
        jnp.full(n, -1, jnp.int32),
    )
    return jax.lax.fori_loop(0, n, assign_row, start)[3]


def hungarian_algorithm(cost_matrix: Any) -> tuple[jax.Array, jax.Array]:
    r"""Find the minimum-cost assignment of rows to columns.

    .. math:: \min_\pi \sum_i C_{i\, \pi(i)}

    over all assignments of distinct columns to rows (or of distinct rows to columns, if there are
    fewer columns). One shortest-path search per row extends the assignment; all searches together
    take :math:`O(n^2 m)` operations for :math:`n \le m`. The function runs under `jit` and `vmap`.

    Args:
        cost_matrix: :math:`C`, real `[n, m]`. A pair with infinite or NaN cost is assigned only if
            this is unavoidable. Integers are converted to JAX's default float, float32 or float64,
            which represents integers up to 2^24 or 2^53 exactly.

    Returns:
        Row and column indices `(i, j)`, each `[min(n, m)]` of int32, with the rows in increasing
        order. The total cost is `C[i, j].sum()`.

    Raises:
        TypeError: If the costs aren't real.
        ValueError: If `cost_matrix` isn't a matrix.

    Example:
        >>> from fnopt.discrete import hungarian_algorithm
        >>> cost = jnp.asarray([[8.0, 4.0, 7.0], [5.0, 2.0, 3.0], [9.0, 4.0, 8.0]])
        >>> i, j = hungarian_algorithm(cost)
        >>> j, cost[i, j].sum()
        (Array([0, 2, 1], dtype=int32), Array(15., dtype=float32))

    Reference:
        Kuhn, 1955, Naval Research Logistics 2; Jonker and Volgenant, 1987, Computing 38.
    """
    cost = jnp.asarray(cost_matrix)
    if cost.ndim != 2:
        raise ValueError(
            f"hungarian_algorithm: cost_matrix is {type_text(cost)}, expected a matrix [n, m]."
        )
    if jnp.issubdtype(cost.dtype, jnp.complexfloating):
        raise TypeError(
            f"hungarian_algorithm: cost_matrix is {type_text(cost)}, expected real numbers."
        )
    is_integer = not jnp.issubdtype(cost.dtype, jnp.floating)
    # The assignment is piecewise constant in the costs, so its derivative is zero.
    cost = jax.lax.stop_gradient(
        cost.astype(compute_dtype() if is_integer else compute_dtype(cost.dtype))
    )
    cost = jnp.where(jnp.isnan(cost), jnp.asarray(jnp.inf, cost.dtype), cost)
    n, m = cost.shape
    if min(n, m) == 0:
        return jnp.zeros(0, jnp.int32), jnp.zeros(0, jnp.int32)
    if n <= m:
        return jnp.arange(n, dtype=jnp.int32), _solve(cost)
    # `_solve` needs at least as many columns as rows.
    rows = _solve(cost.T)
    order = jnp.argsort(rows)
    return rows[order], order.astype(jnp.int32)
