"""Dion: orthonormal updates of low rank by one power iteration, with error feedback."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import CustomSlot, Scalar, Slot, hyper, static
from fnopt.numerics import as_dtype, matmul, nonzero
from fnopt.optimizers._matrix_factors import frobenius_norm, only_finite, transpose
from fnopt.optimizers._matrix_functions import orthonormal_columns
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise


def _share(given: Any) -> float:
    share = float(given)
    if not 0 < share <= 1:
        raise ValueError(f"scale_by_dion: rank = {given}, expected a fraction of the shorter side.")
    return share


class ScaleByDionState(NamedTuple):
    """Step count, the momentum, and for every matrix a basis of its shorter side.

    Attributes:
        count: Number of steps.
        mu: The momentum minus the applied fractions of previous updates.
        basis: Columns of length 1, `[m, r]`.
    """

    count: jax.Array
    mu: Slot
    basis: CustomSlot


class scale_by_dion(Matrixwise):
    r"""Orthonormalize a low-rank part of each matrix's momentum, with error feedback.

    .. math::
        B_t &= M_{t-1} + G_t, \qquad P_t = \mathrm{qr}(B_t Q_{t-1}), \qquad R_t = B_t^\top P_t \\
        M_t &= B_t - (1-\mu)\, P_t R_t^\top, \qquad
        Q_t = R_t / \lVert R_t \rVert_{\text{columns}}, \qquad u_t = P_t Q_t^\top

    In this formula, rows are the longer side, so `Q` belongs to the shorter side. The state has `m
    n + m r` numbers for a matrix with the shorter side `m`. To scale updates by the shape as in the
    paper, chain `scale_by_matrix_shape` after this transform.

    Args:
        rank: The rank `r` as a fraction of the shorter side.
        decay: :math:`\mu`, the fraction of an applied update that stays in the momentum.
        random_seed: An integer, the seed of the first basis.
        mu_dtype: Storage dtype of the momentum; by default the dtype of the params, at least
            float32.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Raises:
        ValueError: In use, if a leaf isn't a matrix.
        TypeError: From `init`, for complex params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_dion(), {"w": jnp.diag(jnp.asarray([9.0, -0.1]))}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> for _ in range(9):  # power iterations
        ...     updates, state = tx.update(g, state)
        >>> print(updates["w"].round(2) + 0.0)
        [[ 1.  0.]
         [ 0. -1.]]

    Reference:
        Ahn, Xu, Abreu and Langford, 2025, arXiv:2504.05295, algorithm 1.
    """

    State = ScaleByDionState

    rank: float = static(default=1.0, convert=_share)
    decay: Scalar = hyper(default=0.95, ge=0, le=1)
    random_seed: int = static(default=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def start(self, slot: str, shape: tuple[int, int, int], dtype: Any) -> jax.Array:
        """Return random columns of length 1, equal for all matrices of a shape."""
        k, m, _ = shape
        r = max(1, round(self.rank * m))
        Q = jax.random.normal(jax.random.key(self.random_seed), (1, m, r), dtype)
        return jnp.tile(Q / frobenius_norm(Q, (1,)), (k, 1, 1))

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        B = transpose(slots.mu + g)
        P = orthonormal_columns(matmul(B, slots.basis))
        R = matmul(transpose(B), P)
        mu = transpose(B - (1 - h.decay) * matmul(P, transpose(R)))
        # A column of zeros (a gradient of lower rank) keeps its direction for the next iteration.
        length = frobenius_norm(R, (1,))
        Q = jnp.where(length == 0, slots.basis, R / nonzero(length))
        # A nonfinite gradient affects the update and the momentum, but not the basis.
        return matmul(Q, transpose(P)), {"mu": mu, "basis": only_finite(Q, slots.basis)}
