"""Dion: orthonormal low-rank updates from one power iteration, with error feedback."""

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


def _rank_fraction(rank: Any) -> float:
    fraction = float(rank)
    if not 0 < fraction <= 1:
        raise ValueError(
            f"scale_by_dion: rank = {rank}, expected a fraction of the shorter side, 0 < rank <= 1."
        )
    return fraction


class ScaleByDionState(NamedTuple):
    """State of `scale_by_dion`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`M_t`, the sum of gradients minus the fractions that updates have applied.
        basis: :math:`Q_t` of every matrix, `[m, r]`, with columns of length 1.
    """

    count: jax.Array
    mu: Slot
    basis: CustomSlot


class scale_by_dion(Matrixwise):
    r"""Orthonormalize a low-rank approximation of each matrix's momentum, with error feedback.

    .. math::
        B_t &= M_{t-1} + G_t, \qquad P_t = \mathrm{qr}(B_t Q_{t-1}), \qquad R_t = B_t^\top P_t \\
        M_t &= B_t - (1-\mu)\, P_t R_t^\top, \qquad
        Q_t = R_t / \lVert R_t \rVert_{\text{columns}}, \qquad u_t = P_t Q_t^\top

    where rows are the longer side of a matrix, so `Q` is a basis of the shorter side. For a matrix
    with the shorter side `m` and the longer side `n`, the state has `m n + m r` numbers. To scale
    updates by the shape as in the paper, chain `scale_by_matrix_shape` after this transform.

    Args:
        rank: The rank `r` of the update, as a fraction of the shorter side.
        decay: :math:`\mu`, the fraction of an applied update that stays in the momentum.
        random_seed: The integer seed of the initial basis.
        mu_dtype: Storage dtype of :math:`M`; None uses the wider of float32 and the params' dtype.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Raises:
        ValueError: In use, if a leaf isn't a matrix.
        TypeError: From `init`, for complex params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_dion(), {"w": jnp.diag(jnp.asarray([9.0, -0.1]))}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> for _ in range(9):  # each update makes one power iteration
        ...     updates, state = tx.update(g, state)
        >>> print(updates["w"].round(2) + 0.0)
        [[ 1.  0.]
         [ 0. -1.]]

    Reference:
        Ahn, Xu, Abreu and Langford, 2025, arXiv:2504.05295, algorithm 1.
    """

    State = ScaleByDionState

    rank: float = static(default=1.0, convert=_rank_fraction)
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
        # If the gradient has a lower rank, columns of R are zero, and the old columns of Q remain.
        norms = frobenius_norm(R, (1,))
        Q = jnp.where(norms == 0, slots.basis, R / nonzero(norms))
        # A non-finite gradient affects the update and the momentum, but not the basis.
        return matmul(Q, transpose(P)), {"mu": mu, "basis": only_finite(Q, slots.basis)}
