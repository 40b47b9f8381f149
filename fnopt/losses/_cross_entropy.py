"""Cross entropies of logits (softmax, sigmoid, focal), and label smoothing."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import type_text
from fnopt.losses._inputs import (
    class_labels,
    exclude_scores,
    floats,
    log_softmax,
    mask,
    move_axes_last,
    multiply,
    pairs,
    take_at_label,
    zero_excluded,
)


def _log_probabilities(
    name: str, logits: Any, labels: Any, axis: Any, where: Any
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Compute log-probabilities, labels and mask, with the classes on the last axis."""
    # Class numbers could broadcast against the logits without an error.
    if jnp.issubdtype(jnp.result_type(labels), jnp.integer) and jnp.ndim(labels) < jnp.ndim(logits):
        raise ValueError(
            f"{name}: labels are {type_text(jnp.asarray(labels))}, expected the shape of the "
            f"logits, {jnp.shape(logits)}. Pass probabilities or one-hot rows. For class numbers, "
            "use fnopt.losses.softmax_cross_entropy_with_integer_labels."
        )
    logits, labels = pairs(name, logits=logits, labels=labels)
    shape = jnp.broadcast_shapes(logits.shape, labels.shape)
    logits, labels = (move_axes_last(jnp.broadcast_to(x, shape), axis) for x in (logits, labels))
    where = mask(where, shape, axis)
    where = where if where is None else move_axes_last(where, axis)
    return log_softmax(exclude_scores(where, logits)), zero_excluded(where, labels), where


def softmax_cross_entropy(logits: Any, labels: Any, axis: Any = -1, where: Any = None) -> jax.Array:
    r"""The cross entropy between a distribution over classes and the softmax of logits.

    .. math:: \ell(x, y) = -\sum_i y_i \log \frac{e^{x_i}}{\sum_j e^{x_j}}

    A class with probability zero contributes zero, even if its logit is minus infinity. A row
    without any class (an empty mask) has loss 0 and gradient 0.

    Args:
        logits: :math:`x`, floating; the classes are along `axis`.
        labels: :math:`y`, of the same shape, usually a distribution: floats, integers (one-hot) or
            bools.
        axis: The axis or axes of the classes; None uses all axes.
        where: A bool mask of the valid classes, of the shape of `logits`, or of this shape without
            `axis`.

    Returns:
        The losses, without `axis`; at least float32.

    Raises:
        TypeError: If the logits aren't floating.
        ValueError: If the shapes disagree.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import softmax_cross_entropy
        >>> logits = jnp.asarray([[2.0, 0.0], [-jnp.inf, 0.0]])
        >>> softmax_cross_entropy(logits, jnp.asarray([[1, 0], [0, 1]]))
        Array([0.126928, 0.      ], dtype=float32)

    Reference:
        Goodfellow, Bengio and Courville, 2016, Deep Learning, section 6.2.
    """
    name = "softmax_cross_entropy"
    log_p, labels, _ = _log_probabilities(name, logits, labels, axis, where)
    return jnp.sum(multiply(labels, -log_p), axis=-1)


def softmax_cross_entropy_with_integer_labels(
    logits: Any, labels: Any, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""The cross entropy between integer labels and the softmax of logits.

    .. math:: \ell(x, c) = -\log \frac{e^{x_c}}{\sum_j e^{x_j}}

    Args:
        logits: :math:`x`, floating; the classes are along `axis`.
        labels: :math:`c`, integers, of the shape of `logits` without `axis`. The loss of a label
            outside the classes (such as -1) is NaN; `jnp.where(labels >= 0, loss, 0)` excludes such
            rows from the loss and its gradient.
        axis: The axis or axes of the classes (counted in row-major order if there are several).
        where: A bool mask of the valid classes, of the shape of `logits`, or of this shape without
            `axis`. A row without any class has loss 0.

    Returns:
        The losses, of the shape of `labels`; at least float32.

    Raises:
        TypeError: If the logits aren't floating or the labels aren't integers.
        ValueError: If the shapes disagree.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import softmax_cross_entropy_with_integer_labels
        >>> logits = jnp.asarray([[2.0, 0.0], [30.0, 0.0]])
        >>> softmax_cross_entropy_with_integer_labels(logits, jnp.asarray([0, 0]))
        Array([1.269280e-01, 9.357623e-14], dtype=float32)
    """
    name = "softmax_cross_entropy_with_integer_labels"
    (scores,) = pairs(name, logits=logits)
    where = mask(where, scores.shape, axis)
    scores = move_axes_last(scores, axis)
    labels = class_labels(name, labels, scores.shape[:-1])
    if where is None:
        # Unlike a product with one-hot rows, indexing isn't rounded on accelerators.
        return -take_at_label(log_softmax(scores), labels)
    where = move_axes_last(where, axis)
    loss = -take_at_label(log_softmax(exclude_scores(where, scores)), labels)
    return zero_excluded(jnp.any(where, axis=-1), loss)


def poly_loss_cross_entropy(
    logits: Any, labels: Any, *, epsilon: Any = 2.0, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""The cross entropy with a modified weight of its first polynomial term (PolyLoss).

    .. math:: \ell(x, y) = -\sum_i y_i \log p_i + \epsilon \sum_i y_i (1 - p_i), \qquad
              p = \mathrm{softmax}(x)

    Args:
        logits: :math:`x`, floating; the classes are along `axis`.
        labels: :math:`y`, of the same shape, usually a distribution.
        epsilon: :math:`\epsilon`; with 0, the loss is the cross entropy.
        axis: The axis or axes of the classes; None uses all axes.
        where: A bool mask of the valid classes, of the shape of `logits`, or of this shape without
            `axis`.

    Returns:
        The losses, without `axis`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import poly_loss_cross_entropy
        >>> poly_loss_cross_entropy(jnp.asarray([2.0, 0.0]), jnp.asarray([1.0, 0.0]))
        Array(0.3653..., dtype=float32)

    Reference:
        Leng et al., 2022, arXiv:2204.12511.
    """
    name = "poly_loss_cross_entropy"
    log_p, labels, _ = _log_probabilities(name, logits, labels, axis, where)
    # 1 - p is computed by expm1, because the difference cancels for p near 1.
    first_term = jnp.sum(labels * -jnp.expm1(log_p), axis=-1)
    entropy = jnp.sum(multiply(labels, -log_p), axis=-1)
    return entropy + jnp.asarray(epsilon, entropy.dtype) * first_term


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    # Both terms are positive, so nothing cancels, even for confident correct answers.
    return multiply(labels, jax.nn.softplus(-logits)) + multiply(
        1 - labels, jax.nn.softplus(logits)
    )


def sigmoid_binary_cross_entropy(logits: Any, labels: Any) -> jax.Array:
    r"""The binary cross entropy of logits, element by element.

    .. math:: \ell(x, y) = -y \log \sigma(x) - (1 - y) \log \sigma(-x)

    Args:
        logits: :math:`x`, floating, of any shape.
        labels: :math:`y` in [0, 1], of the same shape or a scalar: floats, integers or bools.

    Returns:
        The losses, of the shape of `logits`; at least float32.

    Raises:
        TypeError: If the logits aren't floating.
        ValueError: If the shapes disagree.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import sigmoid_binary_cross_entropy
        >>> sigmoid_binary_cross_entropy(jnp.asarray([0.0, 30.0]), jnp.asarray([1, 1]))
        Array([6.9314...e-01, 9.3576...e-14], dtype=float32)

    Reference:
        Goodfellow, Bengio and Courville, 2016, Deep Learning, section 6.2.
    """
    logits, labels = pairs("sigmoid_binary_cross_entropy", logits=logits, labels=labels)
    return _cross_entropy(logits, labels)


def _log(x: jax.Array) -> jax.Array:
    """Logarithm with derivative 0 at 0, where the value is minus infinity."""
    positive = x > 0
    safe = jnp.log(jnp.where(positive, x, jnp.ones_like(x)))
    return jnp.where(positive, safe, jnp.full_like(x, -jnp.inf))


def sigmoid_focal_loss(
    logits: Any, labels: Any, *, alpha: Any = None, gamma: Any = 2.0
) -> jax.Array:
    r"""The focal loss: the binary cross entropy with lower weights for easy examples.

    .. math:: \ell(x, y) &= \alpha_t\, (1 - p_t)^\gamma\, H(x, y), \\
              p_t &= y\, \sigma(x) + (1 - y)\, \sigma(-x), \quad
              \alpha_t = y\, \alpha + (1 - y)(1 - \alpha)

    where :math:`H` is the binary cross entropy.

    Args:
        logits: :math:`x`, floating, of any shape.
        labels: :math:`y` in [0, 1], of the same shape or a scalar: floats, integers or bools.
        alpha: :math:`\alpha`, the weight of positive examples; None disables weights.
        gamma: :math:`\gamma`; with 0, the loss is the cross entropy.

    Returns:
        The losses, of the shape of `logits`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import sigmoid_focal_loss
        >>> sigmoid_focal_loss(jnp.asarray([0.0, 4.0]), jnp.asarray([1, 1]))
        Array([1.7328...e-01, 5.8715...e-06], dtype=float32)

    Reference:
        Lin et al., 2017, arXiv:1708.02002.
    """
    logits, labels = pairs("sigmoid_focal_loss", logits=logits, labels=labels)
    # The formula takes log(1 - p_t) instead of 1 - p_t, which may underflow to 0. A power of 0 with
    # an exponent below 1 has an infinite derivative.
    log_miss = jnp.logaddexp(
        jax.nn.log_sigmoid(logits) + _log(1 - labels), jax.nn.log_sigmoid(-logits) + _log(labels)
    )
    loss = _cross_entropy(logits, labels) * jnp.exp(jnp.asarray(gamma, logits.dtype) * log_miss)
    if alpha is None:
        return loss
    alpha = jnp.asarray(alpha, logits.dtype)
    return (alpha * labels + (1 - alpha) * (1 - labels)) * loss


def smooth_labels(labels: Any, alpha: Any, *, axis: Any = -1, where: Any = None) -> jax.Array:
    r"""Mix distributions with the uniform distribution (label smoothing).

    .. math:: y'_i = (1 - \alpha)\, y_i + \alpha / K

    Args:
        labels: :math:`y`, floating, distributions (such as one-hot labels) along `axis`.
        alpha: :math:`\alpha` in [0, 1].
        axis: The axis or axes of the classes; None uses all axes.
        where: A bool mask of the :math:`K` valid classes, of the shape of `labels`, or of this
            shape without `axis`.

    Returns:
        The smoothed labels, of the shape and dtype of `labels`.

    Raises:
        TypeError: If the labels aren't floating. One-hot integers can't represent smoothed labels.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import smooth_labels
        >>> smooth_labels(jnp.asarray([0.0, 1.0]), 0.5)
        Array([0.25, 0.75], dtype=float32)

    Reference:
        Müller, Kornblith and Hinton, 2019, arXiv:1906.02629.
    """
    (y,) = floats("smooth_labels", labels=labels)
    alpha = jnp.asarray(alpha, y.dtype)
    valid = mask(where, y.shape, axis)
    if valid is None:
        axes = range(y.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        classes = jnp.asarray(math.prod(y.shape[a] for a in axes), y.dtype)
    else:
        classes = jnp.sum(valid.astype(y.dtype), axis=axis, keepdims=True)
    # At least 1, because the quotient would be infinite for a row without classes.
    smoothed = (1 - alpha) * y + alpha / jnp.maximum(classes, 1)
    return smoothed.astype(jnp.asarray(labels).dtype)
