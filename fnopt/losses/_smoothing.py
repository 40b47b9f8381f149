"""Label smoothing."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.losses._inputs import floats, mask


def smooth_labels(labels: Any, alpha: Any, *, axis: Any = -1, where: Any = None) -> jax.Array:
    r"""Mix distributions with the uniform distribution (label smoothing).

    .. math:: y'_i = (1 - \alpha)\, y_i + \alpha / K

    Args:
        labels: :math:`y`, floating, distributions (one-hot, say) along `axis`.
        alpha: :math:`\alpha` in [0, 1].
        axis: The axis or axes of the classes; None for all.
        where: Bools: which of the :math:`K` classes there are. Either of the shape of `labels`, or
            without `axis`.

    Returns:
        The smoothed labels, of the shape and dtype of `labels`.

    Raises:
        TypeError: If the labels aren't floating: one-hot integers can't be smoothed in place.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import smooth_labels
        >>> smooth_labels(jnp.asarray([0.0, 1.0]), 0.5)
        Array([0.25, 0.75], dtype=float32)

    Reference:
        Müller, Kornblith and Hinton, 2019, arXiv:1906.02629.
    """
    (wide,) = floats("smooth_labels", labels=labels)
    alpha = jnp.asarray(alpha, wide.dtype)
    shown = mask(where, wide.shape, axis)
    if shown is None:
        axes = range(wide.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        classes = jnp.asarray(math.prod(wide.shape[a] for a in axes), wide.dtype)
    else:
        classes = jnp.sum(shown.astype(wide.dtype), axis=axis, keepdims=True)
    smoothed = (1 - alpha) * wide + alpha / jnp.maximum(classes, 1)
    return smoothed.astype(jnp.asarray(labels).dtype)
