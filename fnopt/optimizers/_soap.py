"""SOAP: Adam in the slowly moving eigenbasis of Shampoo's factors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import CustomSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import (
    as_dtype,
    bias_correction,
    clip_squarable,
    ema,
    matmul,
    positive_root,
    zero_slope_at_zero,
)
from fnopt.optimizers._matrix_factors import (
    Pair,
    identities,
    orthonormal,
    refresh_bases,
    root_mean_square,
    rotate,
    rotate_back,
    rotation_error,
    sides,
    update_factors,
    zeros,
)
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._partition_matrices import matrix_recipe
from fnopt.optimizers._recipe import recipe
from fnopt.sharding import sequential
from fnopt.transforms import partition


class ScaleBySoapState(NamedTuple):
    r"""State of `scale_by_soap`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the gradient, not rotated.
        nu: :math:`\nu_t`, the moving average of the squared rotated gradient.
        factors: :math:`L_t` and :math:`R_t` of every matrix, the shorter side first; None for a
            side that isn't rotated.
        bases: :math:`Q_L` and :math:`Q_R`, the factors' eigenvectors as columns.
    """

    count: jax.Array
    mu: Slot
    nu: Slot
    factors: CustomSlot
    bases: CustomSlot


class scale_by_soap(Matrixwise):
    r"""Adam in the eigenbases of the averaged outer products of a gradient's rows and columns.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, G_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, (Q_L^\top G_t Q_R)^2 \\
        u_t &= Q_L\, \frac{Q_L^\top \hat\mu_t Q_R}{\sqrt{\hat\nu_t} + \epsilon}\, Q_R^\top \\
        L_t &= \beta L_{t-1} + (1-\beta)\, G_t G_t^\top, \qquad
        R_t = \beta R_{t-1} + (1-\beta)\, G_t^\top G_t

    where :math:`\hat\mu_t` and :math:`\hat\nu_t` are bias-corrected as in Adam.

    The first step only initializes the factors. Its update is zero, because the bases would depend
    on the gradient that they transform. Then the bases are refreshed every `precondition_frequency`
    steps by one power iteration and a QR factorization. Matrices of one shape are batched. A step
    without refresh computes no factorization. Entries of the rotated :math:`\mu_t` count as
    zero if they or :math:`\sqrt{\nu_t}` are below the rounding error of :math:`\mu_t`.

    For a matrix `[m, n]`, the state has `2 m n` numbers for Adam, and `2 (m^2 + n^2)` numbers for
    factors and bases. A non-finite gradient makes the averages NaN, as in Adam, but doesn't change
    factors and bases. To skip such steps, wrap the optimizer in `apply_if_finite`.

    Derivatives through the updates are correct if the factors have simple eigenvalues. If
    eigenvalues are equal, the method has no derivative, and the basis of the eigenspace is treated
    as a constant. This occurs for gradients of low rank, and for the longer side of the first
    gradient.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the average of the squared rotated gradient.
        eps: :math:`\epsilon`, added to :math:`\sqrt{\nu_t}` before the bias correction, as in the
            authors' code.
        shampoo_beta: :math:`\beta`, decay rate of the factors; None uses :math:`\beta_2`.
        precondition_frequency: The number of steps between two refreshes of the bases.
        max_precond_dim: The longest side that is rotated. A matrix with two longer sides is updated
            as in Adam.
        one_sided: Whether to rotate only the shorter side.
        normalize_grads: Whether to divide the updates of each matrix by their root mean square.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Raises:
        ValueError: In use, if a leaf isn't a matrix.
        TypeError: From `init`, for complex params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_soap(), jnp.asarray([[3.0, 0.0], [0.0, 0.1]])
        >>> first, state = tx.update(g, tx.init(g))
        >>> print(first[0], tx.update(g, state)[0].round(2) + 0.0)
        [0. 0.] [[1. 0.]
         [0. 1.]]

    Reference:
        Vyas et al., 2024, arXiv:2409.11321.
    """

    State = ScaleBySoapState

    b1: Scalar = hyper(default=0.95, ge=0, lt=1)
    b2: Scalar = hyper(default=0.95, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    shampoo_beta: Scalar | None = hyper(default=None, ge=0, lt=1)
    precondition_frequency: int = static(default=10, least=1)
    max_precond_dim: int = static(default=10_000, least=1)
    one_sided: bool = static(default=False)
    normalize_grads: bool = static(default=False)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def start(self, slot: str, shape: tuple[int, int, int], dtype: Any) -> Pair:
        """Return zero factors, and identity matrices as bases."""
        fits = [n <= self.max_precond_dim for n in shape[1:]]
        is_rotated = fits[0], fits[1] and not self.one_sided
        return sides(identities if slot == "bases" else zeros, shape, dtype, is_rotated)

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        # An infinite square of a finite gradient would stay infinite in the averages.
        is_first, g = count == 0, clip_squarable(g, g.shape[1] * g.shape[2])
        # Adam's step number: the first step only initializes the factors.
        t = jnp.maximum(count, jnp.ones_like(count))
        mu = jnp.where(is_first, slots.mu, ema(slots.mu, g, h.b1))
        nu = jnp.where(is_first, slots.nu, ema(slots.nu, jnp.square(rotate(g, slots.bases)), h.b2))
        rotated, divisor = rotate(mu, slots.bases), positive_root(nu) + h.eps
        is_noise = self._is_noise(h, mu, rotated, divisor, slots.bases)
        u = zero_slope_at_zero(jnp.where(is_noise, jnp.zeros_like(mu), rotated / divisor))
        correction = jnp.sqrt(bias_correction(h.b2, t)) / bias_correction(h.b1, t)
        u = rotate_back(u, slots.bases) * correction
        if self.normalize_grads:
            # 1e-30 is from the authors' code.
            u = u / (1e-30 + jnp.sqrt(jnp.mean(jnp.square(u), axis=(1, 2), keepdims=True)))
        decay = h.b2 if h.shampoo_beta is None else h.shampoo_beta
        factors = update_factors(slots.factors, g, decay)
        bases, nu = refresh_bases(
            count, self.precondition_frequency, _power_iteration, factors, slots.bases, nu
        )
        new = {"mu": mu, "nu": nu, "factors": factors, "bases": bases}
        return jnp.where(is_first, jnp.zeros_like(u), u), new

    def _is_noise(self, h: Any, mu: Any, rotated: Any, divisor: Any, bases: Pair) -> jax.Array:
        """Entries whose rounding errors would become large steps."""
        error = rotation_error(mu, bases)
        # Each step rounds the stored entries. For a constant gradient, 1 / (1 - b1) of these errors
        # add up. Errors of different entries have random signs, so a rotation preserves their size.
        eps = float(jnp.finfo(self.mu_dtype or mu.dtype).eps)
        stored = eps / (1 - h.b1) * root_mean_square(mu)
        return (jnp.abs(rotated) < error) | (divisor < error + stored)


def _power_iteration(factors: Pair, bases: Pair, nu: jax.Array) -> tuple[Pair, jax.Array]:
    """Update the bases by one power iteration, with bases and `nu` sorted by eigenvalue."""
    new: list[Any] = []
    # On a CPU, concurrent batches of LAPACK calls can deadlock.
    orthonormalize = sequential(orthonormal)
    for axis, (factor, old) in enumerate(zip(factors, bases, strict=True), 1):
        if factor is None:
            new.append(None)
            continue
        # One step of orthogonal iteration is enough, because factors change slowly.
        product = matmul(factor, old)
        # Sort by Rayleigh quotients: QR converges to eigenvectors in decreasing order.
        order = jnp.argsort(-jnp.sum(old * product, axis=1), axis=1)
        nu = jnp.take_along_axis(nu, order[:, :, None] if axis == 1 else order[:, None, :], axis)
        product = jnp.take_along_axis(product, order[:, None, :], axis=2)
        old = jnp.take_along_axis(old, order[:, None, :], axis=2)
        new.append(orthonormalize(product, old))
    return (new[0], new[1]), nu


@recipe
def soap(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.95,
    b2: Scalar = 0.95,
    eps: Scalar = 1e-8,
    weight_decay: Any = 0.01,
    precondition_frequency: int = 10,
    *,
    weight_dimension_numbers: Any = None,
    others: Any = None,
) -> partition:
    r"""SOAP for matrices, Adam for all other leaves.

    .. math:: u_t = -\eta_t \left(Q_L\, \frac{Q_L^\top \hat\mu_t Q_R}{\sqrt{\hat\nu_t} + \epsilon}\,
              Q_R^\top + \lambda_t\, \theta_t\right)

    `scale_by_soap` defines the bases and averages, and describes the size of the state. Weight
    decay is decoupled as in AdamW; the authors' code applies weight decay after the step.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`; the authors use 3e-3.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the average of the squared rotated gradient.
        eps: :math:`\epsilon`, added outside the square root.
        weight_decay: :math:`\lambda` of the matrices, a number, a `Schedule` or a transform.
        precondition_frequency: The number of steps between two refreshes of the bases.
        weight_dimension_numbers: The leaves that are matrices, and their axes; see `muon`.
        others: The optimizer of the other leaves; None uses `adam` with the same learning rate.

    Returns:
        A partition with the labels `'soap'` and `'adam'`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.soap(0.1, weight_decay=0.0), {"w": jnp.eye(2), "b": jnp.ones(2)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates, state = tx.update(params, state, params)
        >>> print(f"{updates['w'][0, 0]:.3f}")
        -0.100

    Reference:
        Vyas et al., 2024, arXiv:2409.11321.
    """
    direction = scale_by_soap(b1, b2, eps, precondition_frequency=precondition_frequency)
    adam = {"b1": b1, "b2": b2, "eps": eps}
    rule = weight_dimension_numbers
    return matrix_recipe("soap", [direction], learning_rate, weight_decay, rule, others, **adam)
