"""PSGD-Kron: a whitening preconditioner with Kronecker factors, updated online."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import CustomSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import as_dtype, bias_correction, ema, matmul, nonzero, safe_sqrt
from fnopt.optimizers._matrix_factors import (
    Pair,
    identities,
    limit_rms,
    map_sides,
    only_finite,
    root_mean_square,
    sides,
    transpose,
)
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._partition_matrices import matrix_recipe
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import partition

# These constants are from github.com/evanatyourservice/kron_torch.
_LARGEST_RMS = 1.1  # bound of an update's root mean square, which is 1 for a whitened update
# Frequency of the updates of the factors: 1 for a number of steps, a decay rate, and a lower bound.
_STEPS_WITH_UPDATE, _FREQUENCY_DECAY, _LOWEST_FREQUENCY = 500, 0.001, 0.03


class ScaleByPsgdKronState(NamedTuple):
    r"""State of `scale_by_psgd_kron`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the gradient.
        factors: :math:`Q_L` and :math:`Q_R`, upper triangular factors of the shorter and the longer
            side of a matrix; None for a side without a factor.
    """

    count: jax.Array
    mu: Slot
    factors: CustomSlot


class scale_by_psgd_kron(Matrixwise):
    r"""Whiten averaged gradients by two triangular factors, which are updated online.

    .. math::
        u_t &= Q_L^\top Q_L\, \hat\mu_t\, Q_R^\top Q_R, \qquad
        A = Q_L\, \hat\mu_t\, Q_R^\top, \qquad B = Q_L^{-\top}\, V\, Q_R^{-1} \\
        Q_L &\leftarrow Q_L - \frac{\rho}{\lVert A A^\top + B B^\top \rVert}\,
        \mathrm{triu}(A A^\top - B B^\top)\, Q_L

    and the transposed update for :math:`Q_R`, with random normal `V` and Adam's bias-corrected
    average :math:`\hat\mu_t`. At the fixed point of these updates, the second moment of whitened
    gradients is the identity. The method needs neither eigenvalues nor inverses, only triangular
    solves.

    Factors are updated in each of the first 500 steps, then with decreasing frequency, down to
    every 33rd step. Other steps need only four matrix products. The initial factors are multiples
    of the identity, chosen so that the first update has the mean square 1. Therefore the method
    doesn't depend on the scale of the loss. By default, the author's code normalizes the mean
    fourth power to 1.

    For a matrix `[m, n]`, the state has `m n + m^2 + n^2` numbers. A non-finite gradient doesn't
    change the factors.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        precond_lr: :math:`\rho`, the learning rate of the factors.
        max_size_triangular: The longest side with a factor; longer sides aren't preconditioned.
        random_seed: The integer seed of `V`.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.
        initial_scale: The multiple of the identity that is the initial :math:`Q_L \otimes Q_R`;
            None uses the multiple described above.

    Raises:
        ValueError: In use, if a leaf isn't a matrix.
        TypeError: From `init`, for complex params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_psgd_kron(), {"w": jnp.ones((2, 3))}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> [x.shape for x in state.factors["w"][0]]
        [(1, 2, 2), (1, 3, 3)]

    Reference:
        Li, 2018, arXiv:1512.04202; Pooladzandi and Li, 2024, arXiv:2402.04553.
    """

    State = ScaleByPsgdKronState
    numbered = True

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    precond_lr: Scalar = hyper(default=0.1, gt=0)
    max_size_triangular: int = static(default=8192, least=1)
    random_seed: int = static(default=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)
    initial_scale: Scalar | None = hyper(default=None, gt=0)

    def start(self, slot: str, shape: tuple[int, int, int], dtype: Any) -> Pair:
        """Return identity matrices."""
        del slot
        return sides(identities, shape, dtype, [n <= self.max_size_triangular for n in shape[1:]])

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        mu = ema(slots.mu, g, h.b1)
        mean = mu / bias_correction(h.b1, count + 1)
        V = self._random(count, slots.index, g)

        def update_factors(operands: Any) -> Pair:
            mean, factors = operands
            scale = _initial_scale(mean) if h.initial_scale is None else h.initial_scale
            factors = _scale(factors, jnp.where(count == 0, scale, jnp.ones_like(scale)))
            return _update_factors(mean, factors, V, h.precond_lr)

        operands = mean, slots.factors
        # `select` instead of `cond` would update the factors in every step.
        factors = jax.lax.cond(_due(count), update_factors, lambda x: x[1], operands)
        left, right = factors
        u = mean
        u = u if left is None else matmul(transpose(left), matmul(left, u))
        u = u if right is None else matmul(matmul(u, transpose(right)), right)
        return limit_rms(u, _LARGEST_RMS), {"mu": mu, "factors": factors}

    def _random(self, count: Any, index: jax.Array, g: jax.Array) -> jax.Array:
        """Sample normal numbers that depend only on the step and the index of the matrix."""
        # One key per matrix, so the numbers don't depend on how matrices are stacked or sharded.
        key = jax.random.fold_in(jax.random.key(self.random_seed), count)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index.astype(jnp.uint32))
        return jax.vmap(lambda key: jax.random.normal(key, g.shape[1:], g.dtype))(keys)


def _due(count: jax.Array) -> jax.Array:
    """Whether the factors are updated in this step.

    The frequency of updates is 1 at first, then decreases exponentially to a lower bound. An update
    is due if the integral of the frequency passes an integer.
    """

    def count_updates(steps: jax.Array) -> jax.Array:
        # The integral in closed form, so the state needs no count of updates.
        late_steps = jnp.maximum(steps - _STEPS_WITH_UPDATE, 0).astype(jnp.float32)
        decay_steps = -jnp.log(jnp.float32(_LOWEST_FREQUENCY)) / _FREQUENCY_DECAY
        exponent = -_FREQUENCY_DECAY * jnp.minimum(late_steps, decay_steps)
        updates = -jnp.expm1(exponent) / _FREQUENCY_DECAY
        updates += _LOWEST_FREQUENCY * jnp.maximum(late_steps - decay_steps, 0.0)
        return jnp.minimum(steps, _STEPS_WITH_UPDATE) + jnp.floor(updates).astype(steps.dtype)

    return count_updates(count + 1) > count_updates(count)


def _initial_scale(mean: jax.Array) -> jax.Array:
    """Initial scale of `Q_L (x) Q_R`, `[k, 1, 1]`, for which the update has the mean square 1."""
    # The factors enter the update twice, so the scale is the inverse root of the gradient's size.
    rms = root_mean_square(mean)
    is_valid = jnp.isfinite(rms) & (rms > 0)
    return jax.lax.rsqrt(jnp.where(is_valid, rms, jnp.ones_like(rms)))


def _scale(factors: Pair, scale: jax.Array) -> Pair:
    """Scale the Kronecker product of the factors."""
    scale = scale if any(Q is None for Q in factors) else safe_sqrt(scale)
    return map_sides(lambda Q: scale * Q, factors)


def _update_factors(mean: jax.Array, factors: Pair, V: jax.Array, rate: jax.Array) -> Pair:
    """Take one relative gradient step of the factors."""
    left, right = factors
    A, B = mean, V
    if left is not None:
        A = matmul(left, A)
        B = jax.lax.linalg.triangular_solve(left, B, left_side=True, transpose_a=True)
    if right is not None:
        A = matmul(A, transpose(right))
        B = jax.lax.linalg.triangular_solve(right, B, left_side=False)
    update = functools.partial(_update_factor, rate=rate)
    return map_sides(update, factors, (A, transpose(A)), (B, transpose(B)))


def _update_factor(Q: jax.Array, A: jax.Array, B: jax.Array, rate: jax.Array) -> jax.Array:
    AA, BB = matmul(A, transpose(A)), matmul(B, transpose(B))
    norm = nonzero(_spectral_norm_bound(AA + BB))
    # Once NaN, a factor would stay NaN.
    return only_finite(Q - matmul(rate / norm * jnp.triu(AA - BB), Q), Q)


def _spectral_norm_bound(A: jax.Array) -> jax.Array:
    """Lower bound of the spectral norm of symmetric matrices, from two products with one row."""
    # The divisor cancels in the result, so its derivative isn't needed. The derivative of a maximum
    # would be NaN if XLA computed `A` twice with different rounding errors.
    largest = jax.lax.stop_gradient(nonzero(jnp.max(jnp.abs(A), axis=(1, 2), keepdims=True)))
    A = A / largest
    i = jnp.argmax(jnp.sum(jnp.square(A), axis=2), axis=1)
    x = jnp.take_along_axis(A, i[:, None, None], axis=1)  # the longest row of A, `[k, 1, n]`
    y = matmul(x, A)
    y = y / nonzero(safe_sqrt(jnp.sum(jnp.square(y), axis=2, keepdims=True)))
    return largest * safe_sqrt(jnp.sum(jnp.square(matmul(y, A)), axis=2, keepdims=True))


@recipe
def psgd_kron(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    weight_decay: Any = 0.0,
    precond_lr: Scalar = 0.1,
    max_size_triangular: int = 8192,
    *,
    weight_dimension_numbers: Any = None,
    others: Any = None,
) -> partition:
    r"""PSGD with Kronecker factors for matrices, Adam for all other leaves.

    .. math:: u_t = -\eta_t \left(Q_L^\top Q_L\, \hat\mu_t\, Q_R^\top Q_R + \lambda_t\,
              \theta_t\right)

    `scale_by_psgd_kron` defines the factors and describes the size of the state. Start with a third
    of the learning rate for Adam.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        weight_decay: :math:`\lambda` of the matrices, a number, a `Schedule` or a transform.
        precond_lr: :math:`\rho`, the learning rate of the factors.
        max_size_triangular: The longest side with a factor; longer sides aren't preconditioned.
        weight_dimension_numbers: The leaves that are matrices, and their axes; see `muon`.
        others: The optimizer of the other leaves; None uses `adam` with the same learning rate.

    Returns:
        A partition with the labels `'psgd_kron'` and `'adam'`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.psgd_kron(0.1), {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> print(f"{updates['b'][0]:.3f}")
        -0.100

    Reference:
        Li, 2018, arXiv:1512.04202; Pooladzandi and Li, 2024, arXiv:2402.04553.
    """
    direction = scale_by_psgd_kron(b1, precond_lr, max_size_triangular)
    adam = {"b1": b1}
    rule = weight_dimension_numbers
    return matrix_recipe(
        "psgd_kron", [direction], learning_rate, weight_decay, rule, others, **adam
    )
