"""The Gauss-Newton direction of a batch, solved among the outputs of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import HIGHEST, matmul
from fnopt.curvature._batch_loss import BatchLoss

_MOST = 32768  # outputs whose Gram matrix is factorised; four such matrices take 17 GB in float32
_MATRICES = 4  # of the Gram matrix's size: itself, in other coordinates, damped, its factor

Map = Callable[[jax.Array], jax.Array]


class OutputStep(NamedTuple):
    r"""A direction by what it does to the outputs.

    Attributes:
        weights: `a`, of which the direction is :math:`-J^\top a` (besides momentum), `[N]`.
        slope: The derivative of the loss along the direction.
        second_derivative: That of the Gauss-Newton model of the loss.
        known: Whether the loss and its derivatives are finite.
    """

    weights: jax.Array
    slope: jax.Array
    second_derivative: jax.Array
    known: jax.Array


class _Solver(NamedTuple):
    r"""What is known of `K`.

    Attributes:
        times: The product with it.
        diagonal: Its diagonal, or about that.
        inverse: The product with :math:`(\sqrt h K \sqrt h + \lambda I)^{-1}`.
        lam: The damping, large enough for rounding.
    """

    times: Map
    diagonal: jax.Array
    inverse: Map
    lam: jax.Array


def output_step(
    loss: BatchLoss, damping: jax.Array, before: jax.Array | None, iterations: int | None = None
) -> OutputStep:
    r"""Solves for the Gauss-Newton direction among the outputs of the batch.

    .. math:: d = v - (G + \lambda I)^{-1} (\nabla L + G v) = v - J^\top a, \qquad
              a = (H K + \lambda I)^{-1} (s + H J v)

    with :math:`K = J J^\top` and :math:`s = \partial L / \partial f`. In coordinates in which `H`
    is diagonal, `h`, and with :math:`M = \sqrt h K \sqrt h + \lambda I`, each component of `s` may
    be taken as :math:`\sqrt h u`, or be left over as `t`:

    .. math:: a = \tfrac1\lambda t + \sqrt h\, M^{-1} \big(u + \sqrt h (J v - \tfrac1\lambda K t)
              \big).

    The first is exact where `h` is large beside :math:`\lambda`, the other where it is small or 0,
    as it is of an example that a classifier is sure about, even if it is wrong.

    Args:
        loss: The loss.
        damping: :math:`\lambda`, positive.
        before: `J v`, `[N]`; `None` for no `v`.
        iterations: How many conjugate gradients to take at most, without `K`; `None` to factorise.

    Returns:
        The direction.
    """
    s, h = loss.into(loss.slope), loss.bend
    root = jnp.sqrt(h)
    v = jnp.zeros_like(s) if before is None else loss.into(before.astype(s.dtype))
    K = _factorised(loss, damping) if iterations is None else _iterated(loss, damping, iterations)
    direct = h * K.diagonal > K.lam
    u = jnp.where(direct, s / jnp.where(direct, root, jnp.ones_like(root)), jnp.zeros_like(s))
    t = jnp.where(direct, jnp.zeros_like(s), s) / K.lam
    a = t + root * K.inverse(u + root * (v - K.times(t)))
    change = v - K.times(a)
    bent = root * change
    return OutputStep(
        loss.back(a),
        jnp.dot(s, change, precision=HIGHEST),
        jnp.dot(bent, bent, precision=HIGHEST),
        jnp.isfinite(loss.value) & jnp.all(jnp.isfinite(jnp.stack([s, h, K.diagonal]))),
    )


def _factorised(loss: BatchLoss, damping: jax.Array) -> _Solver:
    count = loss.bend.size
    if count > _MOST:
        size = _MATRICES * count**2 * loss.dtype.itemsize / 1e9
        raise ValueError(
            f"{loss.name}: the batch has {count} outputs, whose Gram matrix would be factorised in "
            f"{size:,.0f} GB; expected {_MOST} outputs at most. Give smaller batches, or "
            "solver='cg', which needs no such matrix."
        )
    K, root = loss.gram(), jnp.sqrt(loss.bend)
    scaled = root[:, None] * K * root[None, :]
    # The rounding of K must not make it indefinite.
    lam = jnp.maximum(damping, 2 * jnp.finfo(K.dtype).eps * jnp.trace(scaled))
    factor = jax.scipy.linalg.cho_factor(scaled + lam * jnp.eye(count, dtype=K.dtype), lower=True)
    return _Solver(
        lambda x: matmul(K, x),
        jnp.diagonal(K),
        lambda b: jax.scipy.linalg.cho_solve(factor, b),
        lam,
    )


def _iterated(loss: BatchLoss, damping: jax.Array, iterations: int) -> _Solver:
    root = jnp.sqrt(loss.bend)
    signs = jax.random.rademacher(jax.random.key(0), root.shape, root.dtype)
    # Its mean; an estimate is enough to tell what is large beside the damping.
    mean = jnp.abs(jnp.dot(signs, loss.times_gram(signs), precision=HIGHEST)) / root.size

    def damped(x: jax.Array) -> jax.Array:
        return root * loss.times_gram(root * x) + damping * x

    def inverse(b: jax.Array) -> jax.Array:
        tol = float(jnp.finfo(b.dtype).eps) ** 0.75
        return jax.scipy.sparse.linalg.cg(damped, b, tol=tol, maxiter=iterations)[0]

    return _Solver(loss.times_gram, jnp.broadcast_to(mean, root.shape), inverse, damping)
