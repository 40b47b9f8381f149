"""Softmax cross entropies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import type_text
from fnopt.losses._arithmetic import (
    exclude_scores,
    log_softmax,
    move_axes_last,
    multiply,
    take_at_label,
)
from fnopt.losses._inputs import class_labels, mask, pairs, zero_excluded


def _log_probabilities(
    name: str, logits: Any, labels: Any, axis: Any, where: Any
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Log-probabilities, labels and mask with the classes on the last axis."""
    _check_is_distribution(name, logits, labels)
    logits, labels = pairs(name, logits=logits, labels=labels)
    shape = jnp.broadcast_shapes(logits.shape, labels.shape)
    logits, labels = (move_axes_last(jnp.broadcast_to(x, shape), axis) for x in (logits, labels))
    where = mask(where, shape, axis)
    where = where if where is None else move_axes_last(where, axis)
    return log_softmax(exclude_scores(where, logits)), zero_excluded(where, labels), where


def _check_is_distribution(name: str, logits: Any, labels: Any) -> None:
    """Refuses class numbers, which as many rows as classes would let pass for a distribution."""
    if jnp.issubdtype(jnp.result_type(labels), jnp.integer) and jnp.ndim(labels) < jnp.ndim(logits):
        raise ValueError(
            f"{name}: labels are {type_text(jnp.asarray(labels))}, expected the shape of the "
            f"logits, {jnp.shape(logits)}: probabilities, or one-hot rows. For class numbers see "
            "fnopt.losses.softmax_cross_entropy_with_integer_labels."
        )


def softmax_cross_entropy(logits: Any, labels: Any, axis: Any = -1, where: Any = None) -> jax.Array:
    r"""The cross entropy between a distribution over classes and the softmax of scores.

    .. math:: \ell(x, y) = -\sum_i y_i \log \frac{e^{x_i}}{\sum_j e^{x_j}}

    A class of probability zero may have a logit of minus infinity: it counts nothing. A row
    without any class (an empty mask) has loss 0 and gradient 0.

    Args:
        logits: :math:`x`, floating; the classes are along `axis`.
        labels: :math:`y`, of the same shape, usually a distribution: floats, integers (one-hot) or
            bools.
        axis: The axis or axes of the classes; None for all.
        where: Bools: which classes there are. Either of the shape of `logits`, or without `axis`.

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
    r"""The cross entropy of class numbers and the softmax of scores.

    .. math:: \ell(x, c) = -\log \frac{e^{x_c}}{\sum_j e^{x_j}}

    Args:
        logits: :math:`x`, floating; the classes are along `axis`.
        labels: :math:`c`, integers, of the shape of `logits` without `axis`. A label outside the
            classes (-1) gives NaN; `jnp.where(labels >= 0, loss, 0)` excludes such rows, also from
            the gradient.
        axis: The axis or axes of the classes (counted in row-major order if there are several).
        where: Bools: which classes there are. Either of the shape of `logits`, or without `axis`.
            A row without any class has loss 0.

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
        return -take_at_label(log_softmax(scores), labels)
    where = move_axes_last(where, axis)
    loss = -take_at_label(log_softmax(exclude_scores(where, scores)), labels)
    return zero_excluded(jnp.any(where, axis=-1), loss)


def poly_loss_cross_entropy(
    logits: Any, labels: Any, *, epsilon: Any = 2.0, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""The cross entropy with another weight on its first polynomial term.

    .. math:: \ell(x, y) = -\sum_i y_i \log p_i + \epsilon \sum_i y_i (1 - p_i), \qquad
              p = \mathrm{softmax}(x)

    Args:
        logits: :math:`x`, floating; the classes are along `axis`.
        labels: :math:`y`, of the same shape, usually a distribution.
        epsilon: :math:`\epsilon`; with 0 it is the cross entropy.
        axis: The axis or axes of the classes; None for all.
        where: Bools: which classes there are. Either of the shape of `logits`, or without `axis`.

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
    missed = jnp.sum(labels * -jnp.expm1(log_p), axis=-1)
    entropy = jnp.sum(multiply(labels, -log_p), axis=-1)
    return entropy + jnp.asarray(epsilon, entropy.dtype) * missed
