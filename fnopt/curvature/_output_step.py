"""Gauss-Newton direction of a batch, solved in the space of the outputs."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.curvature._batch_loss import BatchLoss
from fnopt.curvature._damped_gram import Map, check_rows, solve_by_cg, solve_by_cholesky
from fnopt.numerics import HIGHEST, matmul


class OutputStep(NamedTuple):
    r"""Direction, represented by one weight per output.

    Attributes:
        weights: `a`, `[N]`, of the direction :math:`-J^\top a` (without momentum).
        slope: The directional derivative of the loss along the direction.
        second_derivative: The second derivative of the Gauss-Newton model along the direction.
        known: Whether the loss and its derivatives are all finite.
    """

    weights: jax.Array
    slope: jax.Array
    second_derivative: jax.Array
    known: jax.Array


class _Solver(NamedTuple):
    r"""Gram matrix :math:`K = J J^\top` in the output space, as products and solves.

    Attributes:
        times: The product with `K`.
        diagonal: The diagonal of `K`, or an estimate of it.
        inverse: The product with :math:`(\sqrt h K \sqrt h + \lambda I)^{-1}`.
        lam: :math:`\lambda`, at least the rounding error of the matrix.
    """

    times: Map
    diagonal: jax.Array
    inverse: Map
    lam: jax.Array


def output_step(
    loss: BatchLoss,
    damping: jax.Array,
    before: jax.Array | None,
    iterations: int | None = None,
    rank: int = 0,
) -> OutputStep:
    r"""Solve for the Gauss-Newton direction in the space of the outputs of the batch.

    .. math:: d = v - (G + \lambda I)^{-1} (\nabla L + G v) = v - J^\top a, \qquad
              a = (H K + \lambda I)^{-1} (s + H J v)

    with :math:`K = J J^\top` and :math:`s = \partial L / \partial f`. Use coordinates in which `H`
    is diagonal, with diagonal `h`, and let :math:`M = \sqrt h K \sqrt h + \lambda I`. Each
    component of `s` is written either as :math:`\sqrt h u` or as `t`:

    .. math:: a = \tfrac1\lambda t + \sqrt h\, M^{-1} \big(u + \sqrt h (J v - \tfrac1\lambda K t)
              \big).

    The first form is accurate if `h` is large relative to :math:`\lambda`, the second if `h` is
    small or 0. For example, `h` is small for a confident prediction of a classifier, even a wrong
    prediction.

    Args:
        loss: The loss.
        damping: :math:`\lambda`, positive.
        before: `J v`, `[N]`; `None` if there is no `v`.
        iterations: Maximum number of conjugate gradient steps, which don't form `K`; with `None`,
            `K` is factorized.
        rank: Rank of the Nyström preconditioner for conjugate gradients; 0 disables it.

    Returns:
        The direction.
    """
    s, h = loss.rotate(loss.slope), loss.curvature
    root = jnp.sqrt(h)
    v = jnp.zeros_like(s) if before is None else loss.rotate(before.astype(s.dtype))
    if iterations is None:
        K = _factorize(loss, damping)
    else:
        K = _iterate(loss, damping, iterations, rank)
    # `s` is divided by the root of `h` for outputs with more curvature than damping, else by the
    # damping, so that neither quotient overflows.
    use_root = h * K.diagonal > K.lam
    u = jnp.where(use_root, s / jnp.where(use_root, root, jnp.ones_like(root)), jnp.zeros_like(s))
    t = jnp.where(use_root, jnp.zeros_like(s), s) / K.lam
    a = t + root * K.inverse(u + root * (v - K.times(t)))
    change = v - K.times(a)
    root_change = root * change
    return OutputStep(
        loss.rotate_back(a),
        jnp.dot(s, change, precision=HIGHEST),
        jnp.dot(root_change, root_change, precision=HIGHEST),
        jnp.isfinite(loss.value) & jnp.all(jnp.isfinite(jnp.stack([s, h, K.diagonal]))),
    )


def _factorize(loss: BatchLoss, damping: jax.Array) -> _Solver:
    check_rows(loss.curvature.size, "outputs", loss.dtype, f"{loss.name}: ")
    K, root = loss.gram(), jnp.sqrt(loss.curvature)
    scaled = solve_by_cholesky(root[:, None] * K * root[None, :], damping)
    return _Solver(lambda x: matmul(K, x), jnp.diagonal(K), scaled.inverse, scaled.lam)


def _iterate(loss: BatchLoss, damping: jax.Array, iterations: int, rank: int) -> _Solver:
    root = jnp.sqrt(loss.curvature)
    signs = jax.random.rademacher(jax.random.key(0), root.shape, root.dtype)
    # An estimate of the mean of the diagonal suffices for the comparison with the damping.
    mean = jnp.abs(jnp.dot(signs, loss.times_gram(signs), precision=HIGHEST)) / root.size

    scaled = solve_by_cg(
        lambda x: root * loss.times_gram(root * x), root.size, root.dtype, damping, iterations, rank
    )
    return _Solver(loss.times_gram, jnp.broadcast_to(mean, root.shape), scaled.inverse, scaled.lam)
