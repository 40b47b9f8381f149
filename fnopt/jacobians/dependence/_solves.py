"""Systems of equations, and products with matrices that are kept by their entries."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from fnopt.core import per_row
from fnopt.jacobians.dependence._entry import Entry
from fnopt.jacobians.dependence._rule import Operation
from fnopt.jacobians.dependence._sets import Sets
from fnopt.jacobians.dependence._sums import cumulated, mixed


def triangular_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Systems of a batch, each right side by itself, solved from one end to the other."""
    p, (matrix, right) = op.params, inputs
    if matrix.ids is not None:
        return mixed(sets, op.shapes, inputs)
    left = p["left_side"]
    forward = (p["lower"] != p["transpose_a"]) == left
    return [cumulated(sets, right.sets, right.sets.ndim - (2 if left else 1), not forward)]


def tridiagonal_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Systems of a batch, each right side by itself."""
    *diagonals, right = inputs
    if any(entry.ids is not None for entry in diagonals):
        return mixed(sets, op.shapes, inputs)
    axis = right.sets.ndim - 2
    one = sets.union_along(right.sets, (axis,))
    return [np.broadcast_to(np.expand_dims(one, axis), op.shape)]


def linear_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.custom_linear_solve`: what its own program for the solution gives."""
    lengths, solve = op.params["const_lengths"], op.params["jaxprs"].solve
    count = sum(lengths)
    before = lengths.matvec + lengths.vecmat
    consts, right = inputs[before : before + lengths.solve], inputs[count:]
    if any(entry.ids is not None for entry in inputs[:count]):
        return mixed(sets, op.shapes, inputs)
    return [entry.sets for entry in op.run(solve, consts + right)]


def sparse_product(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`BCOO @ array`, by the entries of the matrix."""
    (contracted, batch), info = op.params["dimension_numbers"], op.params["lhs_spinfo"]
    data, indices, _ = op.given
    plain = data.ndim == 1 and indices.shape[1] == len(info.shape) and not batch[0]
    if not plain or not inputs[1].known:
        return mixed(sets, op.shapes, inputs)

    def product(data: jax.Array, indices: jax.Array, right: jax.Array) -> jax.Array:
        """Every entry is multiplied by what it meets, and added up."""
        met = tuple(indices[:, k] for k in contracted[0])
        kept = tuple(indices[:, k] for k in range(len(info.shape)) if k not in contracted[0])
        right = jnp.moveaxis(right, contracted[1], range(len(met)))
        rows = right.at[met].get(mode="fill", fill_value=0)  # [entries, ...]
        terms = per_row(data, rows).astype(rows.dtype) * rows
        if not kept:
            return jnp.sum(terms, 0)
        return jnp.zeros(op.shape, rows.dtype).at[kept].add(terms, mode="drop")

    return _walked(op, product, inputs)


def _walked(op: Operation, fn: Any, inputs: list[Entry]) -> list[np.ndarray]:
    """The sets of the outputs of an equation that is the same as a function."""
    given = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in op.given]
    program: jex.ClosedJaxpr = jax.make_jaxpr(fn)(*given)
    return [entry.sets for entry in op.run(program, inputs)]
