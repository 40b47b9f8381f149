"""Losses of scores: hinge, perceptron and ranking losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.losses._inputs import (
    class_labels,
    exclude_scores,
    floats,
    log_softmax,
    mask,
    multiply,
    pairs,
    take_at_label,
    zero_excluded,
)


def hinge_loss(predictor_outputs: Any, targets: Any) -> jax.Array:
    r"""The hinge loss, element by element: :math:`\max(0, 1 - y\, \hat y)`.

    Args:
        predictor_outputs: :math:`\hat y`, floating scores of any shape.
        targets: :math:`y`, -1 or 1, of the same shape or a scalar.

    Returns:
        The losses, of the shape of the scores; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import hinge_loss
        >>> hinge_loss(jnp.asarray([0.5, 2.0, 2.0]), jnp.asarray([1, 1, -1]))
        Array([0.5, 0. , 3. ], dtype=float32)

    Reference:
        Cortes and Vapnik, 1995, Machine Learning 20.
    """
    scores, targets = pairs("hinge_loss", predictor_outputs=predictor_outputs, targets=targets)
    return jnp.maximum(1 - scores * targets, 0)


def perceptron_loss(predictor_outputs: Any, targets: Any) -> jax.Array:
    r"""The perceptron's loss, element by element: :math:`\max(0, -y\, \hat y)`.

    Args:
        predictor_outputs: :math:`\hat y`, floating scores of any shape.
        targets: :math:`y`, -1 or 1, of the same shape or a scalar.

    Returns:
        The losses, of the shape of the scores; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import perceptron_loss
        >>> perceptron_loss(jnp.asarray([0.5, 2.0]), jnp.asarray([1, -1]))
        Array([0., 2.], dtype=float32)

    Reference:
        Rosenblatt, 1958, Psychological Review 65.
    """
    scores, targets = pairs("perceptron_loss", predictor_outputs=predictor_outputs, targets=targets)
    return jnp.maximum(-scores * targets, 0)


def _margins(name: str, scores: Any, labels: Any) -> tuple[jax.Array, jax.Array]:
    """The margin of every class over the labelled one, and which are others."""
    (scores,) = floats(name, scores=scores)
    labels = class_labels(name, labels, scores.shape[:-1])
    others = jnp.arange(scores.shape[-1], dtype=labels.dtype) != labels[..., None]
    # The difference comes first: a margin of 1 is lost beside scores of 1e8.
    return scores - take_at_label(scores, labels)[..., None], others


def multiclass_hinge_loss(scores: Any, labels: Any) -> jax.Array:
    r"""The hinge loss for many classes.

    .. math:: \ell(x, c) = \max_i \left( x_i - x_c + [i \ne c] \right)

    Args:
        scores: :math:`x`, floating; the classes are on the last axis.
        labels: :math:`c`, integers, of the shape of `scores` without its last axis. A label
            outside the classes gives NaN.

    Returns:
        The losses, of the shape of `labels`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import multiclass_hinge_loss
        >>> multiclass_hinge_loss(jnp.asarray([[2.0, 1.5, 0.0]]), jnp.asarray([0]))
        Array([0.5], dtype=float32)

    Reference:
        Crammer and Singer, 2001, Journal of Machine Learning Research 2.
    """
    margins, others = _margins("multiclass_hinge_loss", scores, labels)
    return jnp.max(margins + others.astype(margins.dtype), axis=-1)


def multiclass_perceptron_loss(scores: Any, labels: Any) -> jax.Array:
    r"""The perceptron's loss for many classes: :math:`\max_i x_i - x_c`.

    Args:
        scores: :math:`x`, floating; the classes are on the last axis.
        labels: :math:`c`, integers, of the shape of `scores` without its last axis. A label
            outside the classes gives NaN.

    Returns:
        The losses, of the shape of `labels`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import multiclass_perceptron_loss
        >>> multiclass_perceptron_loss(jnp.asarray([[2.0, 1.5, 0.0]]), jnp.asarray([1]))
        Array([0.5], dtype=float32)

    Reference:
        Collins, 2002, EMNLP, doi:10.3115/1118693.1118694.
    """
    margins, _ = _margins("multiclass_perceptron_loss", scores, labels)
    return jnp.max(margins, axis=-1)


def _reduce(loss: jax.Array, some: jax.Array | None, reduce_fn: Any) -> jax.Array:
    if reduce_fn is None:
        return zero_excluded(some, loss)
    if reduce_fn is jnp.mean and some is not None:
        # The mean of nothing is 0 over 0; its gradient too.
        count = jnp.sum(some.astype(loss.dtype))
        return jnp.sum(zero_excluded(some, loss)) / jnp.maximum(count, 1)
    return reduce_fn(loss, where=some)


def ranking_softmax_loss(
    logits: Any,
    labels: Any,
    *,
    where: Any = None,
    weights: Any = None,
    reduce_fn: Callable[..., jax.Array] | None = jnp.mean,
) -> jax.Array:
    r"""The softmax loss of a list of items with relevances.

    .. math:: \ell(x, y) = -\sum_i w_i\, y_i \log \frac{e^{x_i}}{\sum_j e^{x_j}}

    Args:
        logits: Scores :math:`x`, floating `[..., n]`, the items of a list on the last axis.
        labels: Relevances :math:`y`, of the same shape.
        where: Bools `[..., n]`: which items there are; the others may hold anything.
        weights: Weights :math:`w`, of the same shape; None for 1.
        reduce_fn: How the losses of the lists are reduced, called with `where=` (lists with at
            least one item); None for one loss a list.

    Returns:
        The reduced loss, or `[...]` losses; at least float32. The mean of no list is 0.

    Raises:
        TypeError: If the logits aren't floating.
        ValueError: If the shapes disagree.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import ranking_softmax_loss
        >>> ranking_softmax_loss(jnp.asarray([2.0, 0.0, 9.0]), jnp.asarray([1, 0, 0]),
        ...                      where=jnp.asarray([True, True, False]))
        Array(0.126928, dtype=float32)

    Reference:
        Cao et al., 2007, ICML, doi:10.1145/1273496.1273513.
    """
    scores, relevance, w = pairs(
        "ranking_softmax_loss", logits=logits, labels=labels, weights=weights
    )
    where = mask(where, scores.shape, -1)
    relevance = zero_excluded(where, relevance)
    if w is not None:
        relevance = relevance * zero_excluded(where, w)
    log_p = log_softmax(exclude_scores(where, scores))
    loss = jnp.sum(multiply(relevance, -log_p), axis=-1)
    return _reduce(loss, None if where is None else jnp.any(where, axis=-1), reduce_fn)
