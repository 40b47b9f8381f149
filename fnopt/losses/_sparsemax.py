"""Fenchel-Young losses, among them sparsemax, whose probabilities may be zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import type_text
from fnopt.losses._inputs import check_broadcast, class_labels, floats, take_at_label
from fnopt.projections import simplex_of_rows


def make_fenchel_young_loss(max_fun: Callable[..., Any]) -> Callable[..., jax.Array]:
    r"""The Fenchel-Young loss of a maximum function.

    .. math:: \ell(x, y) = F(x) - \langle y, x \rangle, \qquad
              F(x) = \max_{y \in \mathcal C} \langle y, x \rangle - \Omega(y)

    Its gradient is :math:`\hat y(x) - y`, with :math:`\hat y` where the maximum is reached. (The
    constant :math:`\Omega(y)` is left out.) With the logarithm of the sum of exponentials it is
    the cross entropy; with a maximum that `fnopt.discrete.make_perturbed_fun` made smooth it
    learns structured predictions.

    Args:
        max_fun: :math:`F`, from scores `[n]` and further arguments to a scalar.

    Returns:
        A function `(scores [..., n], targets [..., n], *args, **kwargs) -> losses [...]`; further
        arguments go to `max_fun`.

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

        def maximum_of_row(x: jax.Array) -> jax.Array:
            return jnp.asarray(max_fun(x, *args, **kwargs)).astype(scores.dtype)

        # Summed rather than as a matrix product, which an accelerator rounds.
        return jnp.vectorize(maximum_of_row, signature="(n)->()")(scores) - jnp.sum(
            targets * scores, -1
        )

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
    yes = jnp.asarray(labels)
    if jnp.issubdtype(yes.dtype, jnp.complexfloating):
        raise TypeError(f"sparsemax_loss: labels are {type_text(yes)}, expected 0 and 1.")
    check_broadcast("sparsemax_loss", logits=x, labels=yes)
    z = jnp.where(yes != 0, -x, x)
    # The square is taken of what is used only: that of 1e30 is infinite.
    square = 0.25 * jnp.square(jnp.clip(z, -1, 1) + 1)
    return jnp.where(z >= 1, z, square)


def multiclass_sparsemax_loss(scores: Any, labels: Any) -> jax.Array:
    r"""The sparsemax loss for many classes.

    .. math:: \ell(x, c) = p^\top (x - x_c \mathbf 1) + \tfrac12 (1 - \|p\|^2), \qquad
              p = \operatorname*{argmin}_{q \in \Delta} \|q - x\|^2

    It is zero when the labelled class is ahead of all others by 1.

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
    labels = class_labels("multiclass_sparsemax_loss", labels, scores.shape[:-1])
    ahead = scores - take_at_label(scores, labels)[..., None]
    p = simplex_of_rows(scores, jnp.ones((), scores.dtype))
    # Classes without probability may have a score of minus infinity.
    terms = jnp.where(p > 0, p * jnp.where(p > 0, ahead, jnp.zeros_like(p)), jnp.zeros_like(p))
    return jnp.sum(terms, axis=-1) + 0.5 * (1 - jnp.sum(jnp.square(p), axis=-1))
