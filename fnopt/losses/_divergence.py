"""Divergences between distributions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.losses._inputs import mask, multiply, pairs, zero_excluded


def _inputs(name: str, axis: Any, where: Any, **arrays: Any) -> tuple[jax.Array, jax.Array]:
    a, b = pairs(name, **arrays)
    where = mask(where, jnp.broadcast_shapes(a.shape, b.shape), axis)
    return zero_excluded(where, a), zero_excluded(where, b)


def _log(p: jax.Array) -> jax.Array:
    """A logarithm with 0 and derivative 0 at 0: it is multiplied by `p`."""
    return jnp.log(jnp.where(p == 0, jnp.ones_like(p), p))


def kl_divergence(
    log_predictions: Any, targets: Any, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""The Kullback-Leibler divergence of a predicted distribution from the true one.

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_i p_i \left( \log p_i - \log q_i \right)

    Terms with :math:`p_i = 0` are zero, also where :math:`q_i = 0`.

    Args:
        log_predictions: :math:`\log q`, floating.
        targets: :math:`p`, of the same shape.
        axis: The axis or axes of the distribution; None for all.
        where: A bool mask of the elements that count. Either of the shape of the targets, or
            without `axis`.

    Returns:
        The divergences, without `axis`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import kl_divergence
        >>> kl_divergence(jnp.log(jnp.asarray([0.5, 0.5, 0.0])), jnp.asarray([1.0, 0.0, 0.0]))
        Array(0.6931472, dtype=float32)

    Reference:
        Kullback and Leibler, 1951, Annals of Mathematical Statistics 22.
    """
    log_q, p = _inputs(
        "kl_divergence", axis, where, log_predictions=log_predictions, targets=targets
    )
    return jnp.sum(multiply(p, _log(p) - log_q), axis=axis)


def kl_divergence_with_log_targets(
    log_predictions: Any, log_targets: Any, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""The Kullback-Leibler divergence of distributions that are given by their logarithms.

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_i e^{\log p_i} \left( \log p_i - \log q_i \right)

    Terms with :math:`\log p_i = -\infty` are zero.

    Args:
        log_predictions: :math:`\log q`, floating.
        log_targets: :math:`\log p`, of the same shape.
        axis: The axis or axes of the distribution; None for all.
        where: A bool mask of the elements that count. Either of the shape of the targets, or
            without `axis`.

    Returns:
        The divergences, without `axis`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import kl_divergence_with_log_targets
        >>> q, p = jnp.asarray([0.5, 0.5]), jnp.asarray([1.0, 0.0])
        >>> kl_divergence_with_log_targets(jnp.log(q), jnp.log(p))
        Array(0.6931472, dtype=float32)
    """
    log_q, log_p = _inputs(
        "kl_divergence_with_log_targets",
        axis,
        where,
        log_predictions=log_predictions,
        log_targets=log_targets,
    )
    p = jnp.exp(log_p)
    finite = jnp.where(log_p == -jnp.inf, jnp.zeros_like(log_p), log_p)
    terms = multiply(p, finite - log_q)
    # What the mask excludes was set to log p = log q = 0, whose term is zero.
    return jnp.sum(terms, axis=axis)


def generalized_kl_divergence(
    log_predictions: Any, targets: Any, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""The Kullback-Leibler divergence of measures that need not sum to one.

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_i p_i \log \frac{p_i}{q_i} - p_i + q_i

    Every term is at least 0, and convex in both arguments together.

    Args:
        log_predictions: :math:`\log q`, floating.
        targets: :math:`p`, of the same shape.
        axis: The axis or axes of the measure; None for all.
        where: A bool mask of the elements that count. Either of the shape of the targets, or
            without `axis`.

    Returns:
        The divergences, without `axis`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import generalized_kl_divergence
        >>> generalized_kl_divergence(jnp.log(jnp.asarray([2.0, 1.0])), jnp.asarray([1.0, 1.0]))
        Array(0.30685..., dtype=float32)
    """
    log_q, p = _inputs(
        "generalized_kl_divergence", axis, where, log_predictions=log_predictions, targets=targets
    )
    ratio = log_q - _log(p)
    near = jnp.abs(ratio) < 1
    # p and q nearly cancel where they nearly agree; far from it their ratio may overflow.
    small = jnp.where(near, ratio, jnp.zeros_like(ratio))
    close = p * (jnp.expm1(small) - small)
    terms = jnp.where(near, close, jnp.exp(log_q) - p - multiply(p, ratio))
    terms = jnp.where(p == 0, jnp.exp(log_q), terms)
    return jnp.sum(zero_excluded(mask(where, terms.shape, axis), terms), axis=axis)
