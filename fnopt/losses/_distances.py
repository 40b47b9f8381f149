"""Distances of predictions from targets: regression losses, and divergences of distributions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.losses._inputs import mask, multiply, pairs, zero_excluded


def _errors(name: str, predictions: Any, targets: Any) -> jax.Array:
    predictions, targets = pairs(name, predictions=predictions, targets=targets)
    return predictions if targets is None else predictions - targets


def squared_error(predictions: Any, targets: Any = None) -> jax.Array:
    r"""The squared error, element by element: :math:`(\hat y - y)^2`.

    Args:
        predictions: :math:`\hat y`, floating, of any shape.
        targets: :math:`y`, of the same shape or a scalar; None means zero.

    Returns:
        The squares, of the shape of `predictions`; at least float32.

    Raises:
        TypeError: If the predictions aren't floating.
        ValueError: If the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import squared_error
        >>> squared_error(jnp.asarray([1.0, 3.0]), jnp.asarray([1, 1]))
        Array([0., 4.], dtype=float32)
    """
    return jnp.square(_errors("squared_error", predictions, targets))


def l2_loss(predictions: Any, targets: Any = None) -> jax.Array:
    r"""Half the squared error, element by element: :math:`\tfrac12 (\hat y - y)^2`.

    Args:
        predictions: :math:`\hat y`, floating, of any shape.
        targets: :math:`y`, of the same shape or a scalar; None means zero.

    Returns:
        The losses, of the shape of `predictions`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import l2_loss
        >>> l2_loss(jnp.asarray([1.0, 3.0]), jnp.asarray([1.0, 1.0]))
        Array([0., 2.], dtype=float32)
    """
    return 0.5 * jnp.square(_errors("l2_loss", predictions, targets))


def huber_loss(predictions: Any, targets: Any = None, *, delta: Any = 1.0) -> jax.Array:
    r"""The Huber loss: quadratic for small errors, linear for large errors.

    .. math:: \ell(e) = \begin{cases} \tfrac12 e^2 & |e| \le \delta \\
              \delta\, (|e| - \tfrac12 \delta) & |e| > \delta \end{cases}
              \qquad e = \hat y - y

    Args:
        predictions: :math:`\hat y`, floating, of any shape.
        targets: :math:`y`, of the same shape or a scalar; None means zero.
        delta: :math:`\delta` > 0, the error at which the linear part begins.

    Returns:
        The losses, of the shape of `predictions`; at least float32.

    Raises:
        ValueError: If `delta` is a number that isn't positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import huber_loss
        >>> huber_loss(jnp.asarray([0.5, -3.0]), delta=1.0)
        Array([0.125, 2.5  ], dtype=float32)

    Reference:
        Huber, 1964, Annals of Mathematical Statistics 35.
    """
    if isinstance(delta, (int, float)) and not delta > 0:
        raise ValueError(f"huber_loss: delta is {delta}, expected a number > 0.")
    size = jnp.abs(_errors("huber_loss", predictions, targets))
    delta = jnp.asarray(delta, size.dtype)
    # With a `where` of both pieces, the square of a large error could overflow, and the derivative
    # would be NaN.
    quadratic = jnp.minimum(size, delta)
    return 0.5 * jnp.square(quadratic) + delta * (size - quadratic)


@jax.custom_jvp
def _log_cosh(e: jax.Array) -> jax.Array:
    size = jnp.abs(e)
    is_small = size < 1
    # log(cosh(e)) = log1p(m^2 / (2 (1 + m))) with m = exp(-|e|) - 1, which has no cancellation.
    m = jnp.expm1(-jnp.where(is_small, size, jnp.zeros_like(e)))
    small_value = jnp.log1p(0.5 * m * m / (1 + m))
    large_value = size - jnp.log(jnp.asarray(2, e.dtype)) + jnp.log1p(jnp.exp(-2 * size))
    return jnp.where(is_small, small_value, large_value)


@_log_cosh.defjvp
def _log_cosh_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    return _log_cosh(*primals), jnp.tanh(primals[0]) * tangents[0]


def log_cosh(predictions: Any, targets: Any = None) -> jax.Array:
    r"""The logarithm of the hyperbolic cosine of the error: :math:`\log \cosh(\hat y - y)`.

    The loss is about :math:`\tfrac12 e^2` for small errors and :math:`|e| - \log 2` for large
    errors, and is computed to full precision for both.

    Args:
        predictions: :math:`\hat y`, floating, of any shape.
        targets: :math:`y`, of the same shape or a scalar; None means zero.

    Returns:
        The losses, of the shape of `predictions`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import log_cosh
        >>> log_cosh(jnp.asarray([0.0, 1e-4, 100.0]))
        Array([0.0000000e+00, 5.0000000e-09, 9.9306854e+01], dtype=float32)

    Reference:
        Chen et al., 2019, OpenReview rkglvsC9Ym.
    """
    return _log_cosh(_errors("log_cosh", predictions, targets))


def _inputs(name: str, axis: Any, where: Any, **arrays: Any) -> tuple[jax.Array, jax.Array]:
    a, b = pairs(name, **arrays)
    where = mask(where, jnp.broadcast_shapes(a.shape, b.shape), axis)
    return zero_excluded(where, a), zero_excluded(where, b)


def _log(p: jax.Array) -> jax.Array:
    """Logarithm with value 0 and derivative 0 at 0, for products `p log p`."""
    return jnp.log(jnp.where(p == 0, jnp.ones_like(p), p))


def kl_divergence(
    log_predictions: Any, targets: Any, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""The Kullback-Leibler divergence of a predicted distribution from the true distribution.

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_i p_i \left( \log p_i - \log q_i \right)

    Terms with :math:`p_i = 0` are zero, even if :math:`q_i = 0`.

    Args:
        log_predictions: :math:`\log q`, floating.
        targets: :math:`p`, of the same shape.
        axis: The axis or axes of the distribution; None uses all axes.
        where: A bool mask of the elements to include. It has the shape of the targets, or this
            shape without `axis`.

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
    r"""The Kullback-Leibler divergence of two distributions, as a function of their logarithms.

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_i e^{\log p_i} \left( \log p_i - \log q_i \right)

    Terms with :math:`\log p_i = -\infty` are zero.

    Args:
        log_predictions: :math:`\log q`, floating.
        log_targets: :math:`\log p`, of the same shape.
        axis: The axis or axes of the distribution; None uses all axes.
        where: A bool mask of the elements to include. It has the shape of the targets, or this
            shape without `axis`.

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
    # Excluded elements were set to log p = log q = 0, whose term is zero.
    return jnp.sum(terms, axis=axis)


def generalized_kl_divergence(
    log_predictions: Any, targets: Any, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""The Kullback-Leibler divergence of two measures that aren't normalized.

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_i p_i \log \frac{p_i}{q_i} - p_i + q_i

    Every term is nonnegative, and jointly convex in both arguments.

    Args:
        log_predictions: :math:`\log q`, floating.
        targets: :math:`p`, of the same shape.
        axis: The axis or axes of the measure; None uses all axes.
        where: A bool mask of the elements to include. It has the shape of the targets, or this
            shape without `axis`.

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
    is_near = jnp.abs(ratio) < 1
    # Where p and q nearly agree, the terms cancel, so expm1 is used. Elsewhere q / p may overflow.
    small_ratio = jnp.where(is_near, ratio, jnp.zeros_like(ratio))
    near_terms = p * (jnp.expm1(small_ratio) - small_ratio)
    terms = jnp.where(is_near, near_terms, jnp.exp(log_q) - p - multiply(p, ratio))
    terms = jnp.where(p == 0, jnp.exp(log_q), terms)
    return jnp.sum(zero_excluded(mask(where, terms.shape, axis), terms), axis=axis)
