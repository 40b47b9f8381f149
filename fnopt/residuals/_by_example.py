"""Residuals that are given by example, in the form that the linear algebra takes."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.core import row_axes, where
from fnopt.linear import linear_solver
from fnopt.residuals._examples import Examples
from fnopt.residuals._flat import FlatResidual
from fnopt.residuals._given import given_derivative


def by_example(
    flat: FlatResidual,
    x: jax.Array,
    examples: Examples,
    solver: str,
    method: str = "auto",
    chunk_size: int | None = None,
) -> FlatResidual:
    """The flat residuals of examples, with the Gram matrix or the chunks of their Jacobian's rows.

    Args:
        flat: Those of the batch, by the free variables.
        x: A point.
        examples: The examples, by the free variables.
        solver: The name of the linear solver.
        method: How the rows are known where steps come from their Gram matrix; see
            :func:`fnopt.curvature.batch_jacobian`.
        chunk_size: How many examples are taken at once; `None` for all.

    Returns:
        With the Gram matrix of the rows, where that is all that steps need and a tape of the
        functions stores less than the rows; else with the rows, or neither for products alone.
    """
    name, wide = linear_solver(solver, flat.rows, flat.n), flat.rows < flat.n
    if row_axes() and wide and solver != "cholesky":
        name = "cg"  # where rows are divided, J J^T isn't a sum of what devices have
    if name == "cg":
        return flat
    by_rows = name == "cholesky" and wide and not row_axes()
    if by_rows and (method == "formed" or _taped(flat, x, examples)):
        _check_size(flat.m, x.dtype)

        def gram(x: jax.Array, factor: Any = None) -> jax.Array:
            return examples.gram(flat.unravel(x), method, chunk_size, factor).astype(x.dtype)

        return flat._replace(gram=gram)
    shapes = jax.eval_shape(flat.unflatten, jax.ShapeDtypeStruct((flat.m,), x.dtype))
    jac = examples.jacobian(chunk_size)
    return flat._replace(derivative=given_derivative(jac, shapes, flat.unravel(x), (), x.dtype))


def _taped(flat: FlatResidual, x: jax.Array, examples: Examples) -> bool:
    found = []

    def look(x: jax.Array) -> jax.Array:
        found.append(examples.taped(flat.unravel(x)))
        return x

    jax.eval_shape(look, x)
    return found[0]


def _check_size(m: int, dtype: Any) -> None:
    from fnopt.curvature import check_rows  # an import only for Gram matrices

    check_rows(m, "residuals", dtype, where(), "linear_solver='cg'")
