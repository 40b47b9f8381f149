"""PSGD with Kronecker factors: a whitening preconditioner that is updated online."""

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

# Bound of an update's root mean square; a whitened update has 1. These four constants are from
# github.com/evanatyourservice/kron_torch.
_LARGEST_RMS = 1.1
_FLAT, _DECAY, _LEAST = 500, 0.001, 0.03  # how often factors are updated; see `_due`


class ScaleByPsgdKronState(NamedTuple):
    """Step count, the mean gradient, and for every matrix two triangular factors.

    Attributes:
        count: Number of steps.
        mu: The mean gradient.
        factors: Upper triangular factors; the shorter side first, None for a side without a factor.
    """

    count: jax.Array
    mu: Slot
    factors: CustomSlot


class scale_by_psgd_kron(Matrixwise):
    r"""Whiten mean gradients by two triangular factors, which are updated online.

    .. math::
        u_t &= Q_L^\top Q_L\, \hat\mu_t\, Q_R^\top Q_R, \qquad
        A = Q_L\, \hat\mu_t\, Q_R^\top, \qquad B = Q_L^{-\top}\, V\, Q_R^{-1} \\
        Q_L &\leftarrow Q_L - \frac{\rho}{\lVert A A^\top + B B^\top \rVert}\,
        \mathrm{triu}(A A^\top - B B^\top)\, Q_L

    and the same for :math:`Q_R`, with random normal `V`. At the fixed point of these steps,
    whitened gradients have the identity as second moment. The method needs no eigenvalues and no
    inverses, only triangular solves. Factors are updated in each of the first 500 steps, then with
    decreasing frequency, down to every 33rd step; other steps take four products. The initial
    factors are multiples of the identity for which the first update has the mean square 1, so the
    scale of the loss doesn't matter. The author's code normalizes the mean fourth power to 1 by
    default.

    For a matrix `[m, n]`, the state has `m n + m^2 + n^2` numbers. A non-finite gradient doesn't
    change the factors.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        precond_lr: :math:`\rho`, the learning rate of the factors.
        max_size_triangular: The longest side with a factor; longer sides aren't preconditioned.
        random_seed: An integer, the seed of `V`.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.
        initial_scale: Initial value of :math:`Q_L \otimes Q_R`; None uses the multiple above.

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

        def update_factors(known: Any) -> Pair:
            mean, factors = known
            size = _first_scale(mean) if h.initial_scale is None else h.initial_scale
            first = _scale(factors, jnp.where(count == 0, size, jnp.ones_like(size)))
            return _update_factors(mean, first, V, h.precond_lr)

        known = mean, slots.factors
        # A select instead of `cond` would update the factors in every step.
        factors = jax.lax.cond(_due(count), update_factors, lambda known: known[1], known)
        left, right = factors
        u = mean
        u = u if left is None else matmul(transpose(left), matmul(left, u))
        u = u if right is None else matmul(matmul(u, transpose(right)), right)
        return limit_rms(u, _LARGEST_RMS), {"mu": mu, "factors": factors}

    def _random(self, count: Any, index: jax.Array, g: jax.Array) -> jax.Array:
        """Normal numbers that depend only on the step and the index of the matrix."""
        key = jax.random.fold_in(jax.random.key(self.random_seed), count)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index.astype(jnp.uint32))
        return jax.vmap(lambda key: jax.random.normal(key, g.shape[1:], g.dtype))(keys)


def _due(count: jax.Array) -> jax.Array:
    """Whether the factors are updated in this step.

    An update is due whenever the expected number of updates grows by one. The density of updates is
    1 for `_FLAT` steps, then decays exponentially to `_LEAST`.
    """

    def count_updates(steps: jax.Array) -> jax.Array:
        # The integral of the density, in closed form: no count of updates is kept.
        late = jnp.maximum(steps - _FLAT, 0).astype(jnp.float32)
        until = -jnp.log(jnp.float32(_LEAST)) / _DECAY
        falling = -jnp.expm1(-_DECAY * jnp.minimum(late, until)) / _DECAY
        rare = _LEAST * jnp.maximum(late - until, 0.0)
        return jnp.minimum(steps, _FLAT) + jnp.floor(falling + rare).astype(steps.dtype)

    return count_updates(count + 1) > count_updates(count)


def _first_scale(mean: jax.Array) -> jax.Array:
    """Initial scale of `Q_L (x) Q_R`, for an update of mean square 1, `[k, 1, 1]`."""
    rms = root_mean_square(mean)
    known = jnp.isfinite(rms) & (rms > 0)
    return jax.lax.rsqrt(jnp.where(known, rms, jnp.ones_like(rms)))


def _scale(factors: Pair, size: jax.Array) -> Pair:
    """Scale the product of the factors."""
    size = size if any(Q is None for Q in factors) else safe_sqrt(size)
    return map_sides(lambda Q: size * Q, factors)


def _update_factors(mean: jax.Array, factors: Pair, V: jax.Array, rate: jax.Array) -> Pair:
    """One gradient step of the factors."""
    left, right = factors
    A, B = mean, V
    if left is not None:
        A = matmul(left, A)
        B = jax.lax.linalg.triangular_solve(left, B, left_side=True, transpose_a=True)
    if right is not None:
        A = matmul(A, transpose(right))
        B = jax.lax.linalg.triangular_solve(right, B, left_side=False)
    moved = functools.partial(_update_factor, rate=rate)
    return map_sides(moved, factors, (A, transpose(A)), (B, transpose(B)))


def _update_factor(Q: jax.Array, A: jax.Array, B: jax.Array, rate: jax.Array) -> jax.Array:
    ours, wanted = matmul(A, transpose(A)), matmul(B, transpose(B))
    size = nonzero(_norm_from_below(ours + wanted))
    # A NaN would stay in the factor.
    return only_finite(Q - matmul(rate / size * jnp.triu(ours - wanted), Q), Q)


def _norm_from_below(A: jax.Array) -> jax.Array:
    """Lower bound of the spectral norm of symmetric matrices, by two products with one row."""
    # The divisor cancels. A maximum has a NaN slope if XLA computes `A` twice with different
    # rounding.
    largest = jax.lax.stop_gradient(nonzero(jnp.max(jnp.abs(A), axis=(1, 2), keepdims=True)))
    A = A / largest
    i = jnp.argmax(jnp.sum(jnp.square(A), axis=2), axis=1)
    x = jnp.take_along_axis(A, i[:, None, None], axis=1)  # one row of each matrix, `[k, 1, n]`
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

    See `scale_by_psgd_kron`, also for the size of its state. A third of Adam's learning rate is a
    good initial choice.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        weight_decay: :math:`\lambda` of the matrices: a number, a `Schedule` or a transform.
        precond_lr: The learning rate of the factors.
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
