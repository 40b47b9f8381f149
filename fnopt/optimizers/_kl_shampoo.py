"""KL-Shampoo: Shampoo with the maximum-likelihood Kronecker covariance of the gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import CustomSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import as_dtype, clip_squarable, ema, matmul, positive_root
from fnopt.optimizers._matrix_factors import (
    Pair,
    identities,
    limit_rms,
    map_sides,
    only_finite,
    orthonormal,
    refresh_bases,
    rotate,
    rotate_back,
    rotation_error,
    sides,
    transpose,
    zeros,
)
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._partition_matrices import matrix_recipe
from fnopt.optimizers._recipe import recipe
from fnopt.sharding import sequential
from fnopt.transforms import partition

_SMALLEST_LIMIT = 10  # smallest bound of inverse roots, for short sides
_LARGEST_RMS = 10.0  # bound of an update's root mean square, which is usually at most 1


class ScaleByKlShampooState(NamedTuple):
    r"""State of `scale_by_kl_shampoo`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the gradient.
        factors: :math:`L_t` and :math:`R_t`, the covariances of the shorter and the longer side.
        bases: :math:`Q_L` and :math:`Q_R`, the factors' eigenvectors at the last refresh.
        values: :math:`\lambda_L` and :math:`\lambda_R`, the eigenvalues in these bases.
    """

    count: jax.Array
    mu: Slot
    factors: CustomSlot
    bases: CustomSlot
    values: CustomSlot


class scale_by_kl_shampoo(Matrixwise):
    r"""Multiply averaged gradients by the inverse root of the KL-optimal Kronecker covariance.

    .. math::
        L_t &= \beta_2 L_{t-1} + \tfrac{1-\beta_2}{n}\, G_t \tilde R^{-1} G_t^\top, \qquad
        R_t = \beta_2 R_{t-1} + \tfrac{1-\beta_2}{m}\, G_t^\top \tilde L^{-1} G_t \\
        u_t &= Q_L\, \frac{Q_L^\top \mu_t Q_R}{\sqrt{\lambda_L \lambda_R^\top} + \epsilon}\,
        Q_R^\top, \qquad
        \tilde L = Q_L \operatorname{diag}(\lambda_L)\, Q_L^\top

    for a matrix `[m, n]`. Each factor is the covariance of gradients whitened by the other factor.
    This minimizes the Kullback-Leibler divergence from the gradients' covariance to :math:`L
    \otimes R`. The preconditioner normalizes the step, so the method needs neither grafting nor a
    second moment. The eigenvalues :math:`\lambda` are moving averages of the covariances' diagonals
    in the bases `Q`, updated in every step. The bases are refreshed every `precondition_frequency`
    steps by a QR factorization.

    As in the authors' code, the first step only computes the bases, and its update is zero.
    :math:`\mu` has no bias correction, so the first updates are short. The eigenvalues don't
    include the current gradient, which may be arbitrarily large (in early steps, or for a bad
    batch). Therefore the root mean square of an update is limited to 10. The authors' code has no
    such bound.

    For a matrix `[m, n]`, the state has `m n + 2 (m^2 + n^2) + m + n` numbers. A non-finite
    gradient makes :math:`\mu` NaN, as in Adam, but doesn't change factors, bases and eigenvalues.
    To skip such steps, wrap the optimizer in `apply_if_finite`.

    Derivatives through the updates are correct if the factors have simple eigenvalues. If
    eigenvalues are equal, the method has no derivative, and the basis of the eigenspace is treated
    as a constant. This occurs for gradients of low rank, and for the longer side of the first
    gradient.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of factors and eigenvalues.
        eps: :math:`\epsilon`, added to the root of the eigenvalues' products.
        precondition_frequency: The number of steps between two refreshes of the bases.
        initial_value: The initial value of all eigenvalues :math:`\lambda`. The second update,
            which is the first nonzero update, is the averaged gradient divided by this value. If
            gradients aren't of order 1, pass their mean square.
        max_inverse_root: The largest bound of :math:`\lambda^{-1/2}`. The bound is the length of
            the eigenvalue's side, clipped between 10 and this value. It shortens the steps of small
            gradients. None disables the bound.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Raises:
        ValueError: In use, if a leaf isn't a matrix.
        TypeError: From `init`, for complex params.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_kl_shampoo(b1=0.0, b2=0.5), jnp.asarray([[4.0, 0.0], [0.0, 0.5]])
        >>> update, state = jax.jit(tx.update), tx.init(g)
        >>> for _ in range(30):
        ...     updates, state = update(g, state)
        >>> print(jnp.diag(updates).round(1))  # the root mean square of the matrix is 1
        [1.4 1.4]

    Reference:
        Lin, Lowe, Dangel, Eschenhagen, Xu and Grosse, 2025, arXiv:2509.03378.
    """

    State = ScaleByKlShampooState

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.98, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    precondition_frequency: int = static(default=10, least=1)
    initial_value: Scalar = hyper(default=0.1, gt=0)
    max_inverse_root: int | None = static(default=4000, least=1)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def start(self, slot: str, shape: tuple[int, int, int], dtype: Any) -> Pair:
        """Return zero factors, identity matrices as bases, and constant eigenvalues."""
        if slot != "values":
            return sides(identities if slot == "bases" else zeros, shape, dtype)
        value = jnp.asarray(self.initial_value).astype(dtype)
        k, m, n = shape
        return jnp.broadcast_to(value, (k, m)), jnp.broadcast_to(value, (k, n))

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        # Squares are divided by eigenvalues as small as 1e-2, so a factor of 100 avoids overflow.
        is_first, g = count == 0, clip_squarable(g, 100 * g.shape[1] * g.shape[2])
        mu = jnp.where(is_first, slots.mu, ema(slots.mu, g, h.b1))
        rows, columns = (positive_root(x) for x in slots.values)
        divisor = rows[:, :, None] * columns[:, None, :] + h.eps
        rotated = rotate(mu, slots.bases)
        # Rounding errors divided by small eigenvalues could exceed all other entries.
        is_zero = jnp.abs(rotated) < rotation_error(mu, slots.bases)
        u = rotate_back(jnp.where(is_zero, jnp.zeros_like(mu), rotated / divisor), slots.bases)
        # The first gradient isn't whitened.
        rows, columns = (jnp.where(is_first, jnp.ones_like(x), x) for x in (rows, columns))
        covariances, diagonals = _covariances(g, slots.bases, rows, columns)
        average = lambda old, x: only_finite(ema(old, x, h.b2), old)  # noqa: E731
        factors = map_sides(average, slots.factors, covariances)
        pairs = zip(slots.values, diagonals, strict=True)
        values = tuple(
            jnp.where(is_first, old, self._bound_eigenvalues(ema(old, x, h.b2), old))
            for old, x in pairs
        )
        every = self.precondition_frequency
        (bases,) = refresh_bases(count, every, _power_iteration, factors, slots.bases)
        new = {"mu": mu, "factors": factors, "bases": bases, "values": values}
        return jnp.where(is_first, jnp.zeros_like(u), limit_rms(u, _LARGEST_RMS)), new

    def _bound_eigenvalues(self, new: jax.Array, old: jax.Array) -> jax.Array:
        """Bound eigenvalues below; keep the old eigenvalues if a new eigenvalue isn't finite."""
        limit, smallest = self.max_inverse_root, float(jnp.finfo(new.dtype).tiny)
        if limit is not None:
            smallest = max(_SMALLEST_LIMIT, min(new.shape[1], limit)) ** -2.0
        # A row of zeros has the eigenvalue zero, whose inverse root is infinite.
        new = jnp.maximum(new, jnp.asarray(smallest, new.dtype))
        return jnp.where(jnp.isfinite(new).all(axis=1, keepdims=True), new, old)


def _covariances(g: Any, bases: Pair, rows: Any, columns: Any) -> tuple[Pair, Pair]:
    """Return covariances of rows and columns of whitened gradients, and their diagonals in `bases`.

    Args:
        g: The gradients, `[k, m, n]`.
        bases: The eigenvectors of both factors, `[k, m, m]` and `[k, n, n]`.
        rows: The roots of the eigenvalues of the left factor, `[k, m]`.
        columns: The roots of the eigenvalues of the right factor, `[k, n]`.
    """
    # The covariance of rows is X X^T / n with X = G Q_R diag(columns)^-1. Its diagonal in the basis
    # Q_L is the mean square of the rows of Q_L^T X. The formula for columns is the transpose.
    _, m, n = g.shape
    left, right = bases
    g_right = matmul(g, right)
    rotated = matmul(transpose(left), g_right)
    whitened_rows = g_right / columns[:, None, :]
    whitened_columns = matmul(transpose(left), g) / rows[:, :, None]
    covariances = (
        matmul(whitened_rows, transpose(whitened_rows)) / n,
        matmul(transpose(whitened_columns), whitened_columns) / m,
    )
    diagonals = (
        jnp.mean(jnp.square(rotated / columns[:, None, :]), axis=2),
        jnp.mean(jnp.square(rotated / rows[:, :, None]), axis=1),
    )
    return covariances, diagonals


def _power_iteration(factors: Pair, bases: Pair) -> tuple[Pair]:
    # On a CPU, concurrent batches of LAPACK calls can deadlock.
    return (map_sides(sequential(lambda x, q: orthonormal(matmul(x, q), q)), factors, bases),)


@recipe
def kl_shampoo(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.98,
    eps: Scalar = 1e-8,
    weight_decay: Any = 0.01,
    precondition_frequency: int = 10,
    *,
    weight_dimension_numbers: Any = None,
    others: Any = None,
) -> partition:
    r"""KL-Shampoo for matrices, Adam for all other leaves.

    .. math:: u_t = -\eta_t \left(\tilde L^{-1/2} \mu_t\, \tilde R^{-1/2} + \lambda_t\,
              \theta_t\right)

    `scale_by_kl_shampoo` defines the factors and describes the size of the state. Weight decay is
    decoupled as in AdamW; the authors' code applies weight decay after the step.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of factors and eigenvalues, and of Adam's second moment.
        eps: :math:`\epsilon`, added to the roots of eigenvalues and of Adam's second moment.
        weight_decay: :math:`\lambda` of the matrices, a number, a `Schedule` or a transform.
        precondition_frequency: The number of steps between two refreshes of the bases.
        weight_dimension_numbers: The leaves that are matrices, and their axes; see `muon`.
        others: The optimizer of the other leaves; None uses `adam` with the same learning rate.

    Returns:
        A partition with the labels `'kl_shampoo'` and `'adam'`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.kl_shampoo(0.1), {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates, state = tx.update(params, state, params)
        >>> print(f"{updates['w'][0, 0]:.3f}")  # 0.1 (0.1 / 0.1 + 0.01)
        -0.101

    Reference:
        Lin, Lowe, Dangel, Eschenhagen, Xu and Grosse, 2025, arXiv:2509.03378.
    """
    direction = scale_by_kl_shampoo(b1, b2, eps, precondition_frequency)
    adam = {"b1": b1, "b2": b2, "eps": eps}
    rule = weight_dimension_numbers
    return matrix_recipe(
        "kl_shampoo", [direction], learning_rate, weight_decay, rule, others, **adam
    )
