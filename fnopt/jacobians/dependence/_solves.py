"""Dependence rules of linear solves."""

from __future__ import annotations

import numpy as np

from fnopt.jacobians.dependence._entry import Entry
from fnopt.jacobians.dependence._rule import Operation
from fnopt.jacobians.dependence._sets import Sets
from fnopt.jacobians.dependence._sums import cumulated, mixed


def triangular_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`triangular_solve`: forward or backward substitution for every right-hand side."""
    p, (matrix, right) = op.params, inputs
    if matrix.ids is not None:
        return mixed(sets, op.shapes, inputs)
    left = p["left_side"]
    forward = (p["lower"] != p["transpose_a"]) == left
    return [cumulated(sets, right.sets, right.sets.ndim - (2 if left else 1), not forward)]


def tridiagonal_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`tridiagonal_solve`: each right-hand side by itself."""
    *diagonals, right = inputs
    if any(entry.ids is not None for entry in diagonals):
        return mixed(sets, op.shapes, inputs)
    axis = right.sets.ndim - 2
    union = sets.union_along(right.sets, (axis,))
    return [np.broadcast_to(np.expand_dims(union, axis), op.shape)]


def linear_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.custom_linear_solve`: the dependence of its program for the solution."""
    lengths, solve = op.params["const_lengths"], op.params["jaxprs"].solve
    count = sum(lengths)
    before = lengths.matvec + lengths.vecmat
    consts, right = inputs[before : before + lengths.solve], inputs[count:]
    if any(entry.ids is not None for entry in inputs[:count]):
        return mixed(sets, op.shapes, inputs)
    return [entry.sets for entry in op.run(solve, consts + right)]
