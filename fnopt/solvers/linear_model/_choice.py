"""Choice of the linear model by the shape and the sparsity of the Jacobian."""

from __future__ import annotations

from fnopt.jacobians import LARGEST_DENSE
from fnopt.linear import linear_solver
from fnopt.residuals import FlatResidual
from fnopt.sharding import row_axes
from fnopt.solvers.linear_model._base import LinearModel
from fnopt.solvers.linear_model._dense import LiftedModel, TriangleModel, WideGramModel
from fnopt.solvers.linear_model._gram import RowsModel, TallGramModel
from fnopt.solvers.linear_model._krylov import KrylovModel
from fnopt.solvers.linear_model._sparse_gram import sparse_gram_model

# For each linear solver: the model of a tall (or square) Jacobian, and the model of a wide one.
_MODELS: dict[str, tuple[type[LinearModel], type[LinearModel]]] = {
    "qr": (TriangleModel, LiftedModel),
    "cholesky": (TallGramModel, WideGramModel),
    "cg": (KrylovModel, KrylovModel),
}


def linear_model(flat: FlatResidual, solver: str, mode: str, chunk_size: int | None) -> LinearModel:
    """Choose at trace time how to linearize residuals and how to store the Jacobian.

    Args:
        flat: The residual function of a vector.
        solver: `'auto'`, `'qr'`, `'cholesky'` or `'cg'`.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of tangents or cotangents to propagate at once; None for all.

    Returns:
        The model.
    """
    m, n = flat.rows, flat.n
    name = linear_solver(solver, m, n)
    if flat.gram is not None:
        return RowsModel(flat, mode, chunk_size)
    if solver == "auto" and is_large_and_sparse(flat):
        model = sparse_gram_model(flat, mode, chunk_size)
        if model is not None:
            return model
        name = "cg"
    if row_axes() and m < n:
        # No device has all rows, so the models in the row space aren't available.
        wide = TallGramModel if solver == "cholesky" else KrylovModel
        return wide(flat, mode, chunk_size)
    return _MODELS[name][m < n](flat, mode, chunk_size)


def is_large_and_sparse(flat: FlatResidual) -> bool:
    """Whether the Jacobian is sparse, and too large for a dense matrix."""
    derivative = flat.derivative
    if derivative is None or not derivative.sparse:
        return False
    return min(flat.rows, flat.n) > LARGEST_DENSE
