"""The linear model at a point, in the algebra that suits its shape."""

from __future__ import annotations

from fnopt.linear import linear_solver
from fnopt.residuals import FlatResidual
from fnopt.sharding import row_axes
from fnopt.solvers.linear_model._base import LinearModel
from fnopt.solvers.linear_model._dense import LiftedModel, TriangleModel, WideGramModel
from fnopt.solvers.linear_model._gram import RowsModel, TallGramModel
from fnopt.solvers.linear_model._krylov import KrylovModel
from fnopt.solvers.linear_model._sparse_gram import sparse_gram_model

_SPARSE = 256  # from that many unknowns on a sparse Jacobian isn't made a full matrix

# By the name of the algebra: of a Jacobian with at least as many rows as columns, and of others.
_MODELS: dict[str, tuple[type[LinearModel], type[LinearModel]]] = {
    "qr": (TriangleModel, LiftedModel),
    "cholesky": (TallGramModel, WideGramModel),
    "cg": (KrylovModel, KrylovModel),
}


def linear_model(flat: FlatResidual, solver: str, mode: str, chunk_size: int | None) -> LinearModel:
    """Chooses how residuals are linearised and what is kept of the Jacobian, when tracing.

    Args:
        flat: The residual function of a vector.
        solver: `'auto'`, `'qr'`, `'cholesky'` or `'cg'`.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of derivatives that are taken at once, or None.

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
        # Divided rows are only ever summed over, so nothing is made of the space that they span.
        wide = TallGramModel if solver == "cholesky" else KrylovModel
        return wide(flat, mode, chunk_size)
    return _MODELS[name][m < n](flat, mode, chunk_size)


def is_large_and_sparse(flat: FlatResidual) -> bool:
    """Whether the Jacobian is sparse, and too large to be made a full matrix."""
    given = flat.derivative
    return given is not None and given.sparse and min(flat.rows, flat.n) > _SPARSE
