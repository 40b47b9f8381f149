"""Ranking losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.losses._arithmetic import exclude_scores, log_softmax, multiply
from fnopt.losses._inputs import mask, pairs, zero_excluded


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
