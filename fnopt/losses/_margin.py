"""Losses of scores: hinge, perceptron, ranking, sparsemax and other Fenchel-Young losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import type_text
from fnopt.losses._inputs import (
    check_broadcast,
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
from fnopt.projections import simplex_of_rows


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
    r"""The perceptron loss, element by element: :math:`\max(0, -y\, \hat y)`.

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
    """Scores minus the score of the labeled class, and the mask of the other classes."""
    (scores,) = floats(name, scores=scores)
    labels = class_labels(name, labels, scores.shape[:-1])
    others = jnp.arange(scores.shape[-1], dtype=labels.dtype) != labels[..., None]
    # The scores are subtracted before a margin of 1 is added, which would be lost at scores of 1e8.
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
    # The margin of the labeled class itself is 0, so that the loss is never negative.
    return jnp.max(margins + others.astype(margins.dtype), axis=-1)


def multiclass_perceptron_loss(scores: Any, labels: Any) -> jax.Array:
    r"""The perceptron loss for many classes: :math:`\max_i x_i - x_c`.

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


def _reduce(loss: jax.Array, has_items: jax.Array | None, reduce_fn: Any) -> jax.Array:
    if reduce_fn is None:
        return zero_excluded(has_items, loss)
    if reduce_fn is jnp.mean and has_items is not None:
        # `jnp.mean` over zero lists, and its gradient, would be 0 / 0.
        count = jnp.sum(has_items.astype(loss.dtype))
        return jnp.sum(zero_excluded(has_items, loss)) / jnp.maximum(count, 1)
    return reduce_fn(loss, where=has_items)


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
        where: A bool mask `[..., n]` of the valid items; other items are ignored.
        weights: Weights :math:`w`, of the same shape; None uses 1.
        reduce_fn: The reduction over the lists' losses; None returns one loss per list. The
            reduction is called with `where=`, a mask of the lists with at least one item.

    Returns:
        The reduced loss, or `[...]` losses; at least float32. The mean over zero lists is 0.

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


def make_fenchel_young_loss(max_fun: Callable[..., Any]) -> Callable[..., jax.Array]:
    r"""The Fenchel-Young loss of a maximum function.

    .. math:: \ell(x, y) = F(x) - \langle y, x \rangle, \qquad
              F(x) = \max_{y \in \mathcal C} \langle y, x \rangle - \Omega(y)

    The gradient of the loss is :math:`\hat y(x) - y`, where :math:`\hat y` is the maximizer. The
    constant :math:`\Omega(y)` is omitted. With log-sum-exp as `max_fun`, the loss is the cross
    entropy. With a maximum smoothed by `fnopt.discrete.make_perturbed_fun`, it is a loss for
    structured prediction.

    Args:
        max_fun: :math:`F`, from scores `[n]` and additional arguments to a scalar.

    Returns:
        A function `(scores [..., n], targets [..., n], *args, **kwargs) -> losses [...]`;
        additional arguments are passed to `max_fun`.

    Raises:
        TypeError: If `max_fun` isn't a function, or scores aren't floating.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import make_fenchel_young_loss
        >>> cross_entropy = make_fenchel_young_loss(jax.nn.logsumexp)
        >>> cross_entropy(jnp.asarray([2.0, 0.0]), jnp.asarray([1.0, 0.0]))
        Array(0.12692..., dtype=float32)

    Reference:
        Blondel, Martins and Niculae, 2020, arXiv:1901.02324.
    """
    if not callable(max_fun):
        raise TypeError(f"make_fenchel_young_loss: max_fun is {max_fun!r}, expected a function.")

    def fenchel_young_loss(scores: Any, targets: Any, *args: Any, **kwargs: Any) -> jax.Array:
        scores, targets = floats("fenchel_young_loss", scores=scores, targets=targets)

        # `jnp.dot` would be a matrix product, which accelerators compute from rounded factors.
        return jnp.vectorize(
            lambda x: jnp.asarray(max_fun(x, *args, **kwargs)).astype(scores.dtype),
            signature="(n)->()",
        )(scores) - jnp.sum(targets * scores, -1)

    return fenchel_young_loss


def sparsemax_loss(logits: Any, labels: Any) -> jax.Array:
    r"""The binary sparsemax loss, element by element.

    .. math:: \ell(x, y) = f\bigl((1 - 2y)\, x\bigr), \qquad f(z) = \begin{cases}
              0 & z \le -1 \\ \tfrac14 (z + 1)^2 & |z| < 1 \\ z & z \ge 1 \end{cases}

    Args:
        logits: :math:`x`, floating, of any shape.
        labels: :math:`y`, 0 or 1 (integers, bools or floats), of the same shape or a scalar.

    Returns:
        The losses, of the shape of `logits`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import sparsemax_loss
        >>> sparsemax_loss(jnp.asarray([0.0, 2.0, 2.0]), jnp.asarray([1, 1, 0]))
        Array([0.25, 0.  , 2.  ], dtype=float32)

    Reference:
        Martins and Astudillo, 2016, arXiv:1602.02068.
    """
    (x,) = floats("sparsemax_loss", logits=logits)
    targets = jnp.asarray(labels)
    if jnp.issubdtype(targets.dtype, jnp.complexfloating):
        raise TypeError(f"sparsemax_loss: labels are {type_text(targets)}, expected 0 and 1.")
    check_broadcast("sparsemax_loss", logits=x, labels=targets)
    z = jnp.where(targets != 0, -x, x)
    # The argument is clipped, because the square of 1e30 is infinite.
    square = 0.25 * jnp.square(jnp.clip(z, -1, 1) + 1)
    return jnp.where(z >= 1, z, square)


def multiclass_sparsemax_loss(scores: Any, labels: Any) -> jax.Array:
    r"""The sparsemax loss for many classes.

    .. math:: \ell(x, c) = p^\top (x - x_c \mathbf 1) + \tfrac12 (1 - \|p\|^2), \qquad
              p = \operatorname*{argmin}_{q \in \Delta} \|q - x\|^2

    The loss is zero if the score of the labeled class exceeds all other scores by at least 1.

    Args:
        scores: :math:`x`, floating; the classes are on the last axis.
        labels: :math:`c`, integers, of the shape of `scores` without its last axis. A label
            outside the classes gives NaN.

    Returns:
        The losses, of the shape of `labels`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import multiclass_sparsemax_loss
        >>> multiclass_sparsemax_loss(jnp.asarray([[1.0, 0.0], [0.5, 0.0]]), jnp.asarray([0, 0]))
        Array([0.    , 0.0625], dtype=float32)

    Reference:
        Martins and Astudillo, 2016, arXiv:1602.02068.
    """
    (scores,) = floats("multiclass_sparsemax_loss", scores=scores)
    margins, _ = _margins("multiclass_sparsemax_loss", scores, labels)
    p = simplex_of_rows(scores, jnp.ones((), scores.dtype))
    # Classes of probability zero may have a score of minus infinity, and 0 times infinity is NaN.
    terms = jnp.where(p > 0, p * jnp.where(p > 0, margins, jnp.zeros_like(p)), jnp.zeros_like(p))
    return jnp.sum(terms, axis=-1) + 0.5 * (1 - jnp.sum(jnp.square(p), axis=-1))
