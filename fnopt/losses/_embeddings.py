"""Losses of embeddings: cosine similarity, contrastive and triplet losses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.losses._inputs import floats


def _scale(x: jax.Array, axis: Any, where: Any) -> tuple[jax.Array, jax.Array]:
    """Divide a vector by its largest modulus; return the quotient and the divisor, a constant."""
    included = jnp.abs(x) if where is None else jnp.where(where, jnp.abs(x), jnp.zeros_like(x))
    # The divisor cancels in the unit vector, so it needs no derivative.
    top = jax.lax.stop_gradient(jnp.max(included, axis=axis, keepdims=True, initial=0))
    top = jnp.where((top > 0) & jnp.isfinite(top), top, jnp.ones_like(top))
    return x / top, top


def unit(x: jax.Array, epsilon: Any, axis: Any, where: Any = None) -> tuple[jax.Array, jax.Array]:
    r"""Return :math:`x / \max(\|x\|, \sqrt\epsilon)`, and one minus the square of its norm.

    A zero vector stays zero. The norm is computed from the vector divided by its largest modulus,
    because squares of 1e20 and 1e-24 are infinite and zero in float32.
    """
    x, top = _scale(x, axis, where)
    square = jnp.sum(jnp.square(x), axis=axis, keepdims=True, where=where)
    # Divided by its largest modulus, a nonzero vector has a norm of at least 1.
    is_zero = square == 0
    length = jnp.sqrt(jnp.where(is_zero, jnp.ones_like(square), square))
    min_length = jnp.sqrt(jnp.asarray(epsilon, x.dtype)) / top
    is_short = length < min_length
    ratio = square / jnp.square(jnp.where(is_short, min_length, jnp.ones_like(min_length)))
    deficit = jnp.where(is_short, 1 - ratio, jnp.zeros_like(square))
    deficit = jnp.where(is_zero, jnp.ones_like(square), deficit)
    x = jnp.where(is_zero, jnp.zeros_like(x), x / jnp.maximum(length, min_length))
    return x, jnp.squeeze(deficit, axis=axis)


def _check_lengths(name: str, a: jax.Array, b: jax.Array, axis: Any) -> None:
    """Check that vectors have equal lengths along `axis`; other axes may broadcast."""
    ndim = max(a.ndim, b.ndim)
    axes = range(ndim) if axis is None else ((axis,) if isinstance(axis, int) else axis)
    shapes = [(1,) * (ndim - x.ndim) + x.shape for x in (a, b)]
    if any(shapes[0][i] != shapes[1][i] for i in axes):
        raise ValueError(
            f"{name}: predictions have shape {a.shape}, targets have shape {b.shape}, expected "
            f"equal lengths along axis {axis}."
        )


def _unit_vectors(
    name: str, predictions: Any, targets: Any, epsilon: Any, axis: Any, where: Any
) -> tuple[Any, ...]:
    a, b = floats(name, predictions=predictions, targets=targets)
    _check_lengths(name, a, b, axis)
    if where is not None:
        where = jnp.broadcast_to(jnp.asarray(where, bool), jnp.broadcast_shapes(a.shape, b.shape))
        a, b = (jnp.where(where, x, jnp.zeros_like(x)) for x in (a, b))
    return *unit(a, epsilon, axis, where), *unit(b, epsilon, axis, where)


def cosine_similarity(
    predictions: Any, targets: Any, *, epsilon: Any = 0.0, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""The cosine of the angle between two vectors.

    .. math:: \cos(\hat y, y) = \frac{\hat y^\top y}
              {\max(\|\hat y\|, \sqrt\epsilon)\, \max(\|y\|, \sqrt\epsilon)}

    The cosine of a zero vector, which has no direction, is 0, with derivative 0.

    Args:
        predictions: :math:`\hat y`, floating, vectors along `axis`.
        targets: :math:`y`, vectors along `axis`; the other axes may broadcast.
        epsilon: The lower bound of the squared lengths in the denominator.
        axis: The axis or axes of the vectors; None uses all axes.
        where: A bool mask of the elements to include.

    Returns:
        The cosines, without `axis`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import cosine_similarity
        >>> cosine_similarity(jnp.asarray([3.0, 4.0]), jnp.asarray([0.0, 2.0]))
        Array(0.8, dtype=float32)
    """
    name = "cosine_similarity"
    a, _, b, _ = _unit_vectors(name, predictions, targets, epsilon, axis, where)
    return jnp.sum(a * b, axis=axis)


def cosine_distance(
    predictions: Any, targets: Any, *, epsilon: Any = 0.0, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""One minus the cosine of the angle between two vectors.

    .. math:: 1 - \cos(\hat y, y) = \tfrac12 \left\| \frac{\hat y}{\|\hat y\|} -
              \frac{y}{\|y\|} \right\|^2

    The function evaluates the right-hand side, which is accurate for nearly equal vectors.

    Args:
        predictions: :math:`\hat y`, floating, vectors along `axis`.
        targets: :math:`y`, vectors along `axis`; the other axes may broadcast.
        epsilon: The lower bound of the squared lengths in the denominator.
        axis: The axis or axes of the vectors; None uses all axes.
        where: A bool mask of the elements to include.

    Returns:
        The distances, without `axis`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import cosine_distance
        >>> cosine_distance(jnp.asarray([1.0, 0.0]), jnp.asarray([0.0, 1.0]))
        Array(1., dtype=float32)
    """
    name = "cosine_distance"
    a, a_deficit, b, b_deficit = _unit_vectors(name, predictions, targets, epsilon, axis, where)
    return 0.5 * (jnp.sum(jnp.square(a - b), axis=axis) + a_deficit + b_deficit)


def ntxent(embeddings: Any, labels: Any, temperature: Any = 0.07) -> jax.Array:
    r"""The normalized temperature-scaled cross entropy (NT-Xent, InfoNCE) of a batch.

    .. math:: \ell = \operatorname*{mean}_{i \ne j,\, c_i = c_j} -\log
              \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{k:\, c_k \ne c_i} e^{s_{ik}}}, \qquad
              s_{ij} = \cos(z_i, z_j) / \tau

    Args:
        embeddings: :math:`z`, floating `[B, D]`.
        labels: :math:`c`, `[B]`: views of the same example have the same label.
        temperature: :math:`\tau`.

    Returns:
        The mean over all pairs with equal labels, a scalar (0 without pairs); at least float32.

    Raises:
        TypeError: If the embeddings aren't floating.
        ValueError: If there isn't one label for each embedding.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import ntxent
        >>> z = jnp.asarray([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> bool(ntxent(z, jnp.asarray([0, 0, 1, 1])) < ntxent(z, jnp.asarray([0, 1, 0, 1])))
        True

    Reference:
        Chen et al., 2020, arXiv:2002.05709.
    """
    (z,) = floats("ntxent", embeddings=embeddings)
    labels = jnp.asarray(labels)
    if z.ndim != 2 or labels.shape != z.shape[:1]:
        raise ValueError(
            f"ntxent: embeddings have shape {z.shape}, labels have shape {labels.shape}, expected "
            "[B, D] and [B]. Pass one label per embedding."
        )
    z, _ = unit(z, jnp.finfo(z.dtype).eps, axis=-1)
    # bfloat16 factors have errors of 0.4 %; division by the temperature 0.07 (Wu et al., 2018)
    # increases an error of the score to 0.06.
    scores = jnp.matmul(z, z.T, precision="highest") / jnp.asarray(temperature, z.dtype)
    has_same_label = labels[:, None] == labels
    is_positive = has_same_label & ~jnp.eye(len(z), dtype=bool)
    # log(e^s + e^n) - s = softplus(n - s), where n is the log-sum-exp over the negatives.
    negatives = _logsumexp(scores, ~has_same_label)[:, None]
    terms = jax.nn.softplus(negatives - scores)
    # The loss of a batch without positive pairs is 0, not 0 / 0.
    count = jnp.sum(is_positive.astype(z.dtype))
    return jnp.sum(jnp.where(is_positive, terms, jnp.zeros_like(terms))) / jnp.maximum(count, 1)


def _logsumexp(x: jax.Array, where: jax.Array) -> jax.Array:
    """Masked log-sum-exp over the last axis; a large negative number for an empty mask."""
    is_nonempty = jnp.any(where, axis=-1)
    included = where | ~is_nonempty[:, None]
    total = jax.nn.logsumexp(jnp.where(included, x, -jnp.inf), axis=-1)
    # Half of the lowest number, so that its difference from a score is finite.
    lowest = jnp.full_like(total, jnp.finfo(x.dtype).min / 2)
    return jnp.where(is_nonempty, total, lowest)


def triplet_margin_loss(
    anchors: Any,
    positives: Any,
    negatives: Any,
    axis: Any = -1,
    norm_degree: Any = 2,
    margin: Any = 1.0,
    eps: Any = 1e-6,
) -> jax.Array:
    r"""The triplet margin loss: anchors should be closer to positives than to negatives.

    .. math:: \ell = \max\left( 0,\, d(a, p) - d(a, n) + m \right), \qquad
              d(x, y) = \Bigl( \sum_i |x_i - y_i|^q + \epsilon \Bigr)^{1/q}

    Args:
        anchors: :math:`a`, floating, vectors along `axis`.
        positives: :math:`p`, of the same shape.
        negatives: :math:`n`, of the same shape.
        axis: The axis of the vectors.
        norm_degree: :math:`q`, at least 1, the degree of the norm.
        margin: :math:`m`.
        eps: :math:`\epsilon`, which keeps the derivative finite where two vectors are equal.

    Returns:
        The losses, of the shape of `anchors` without `axis`; float32 or wider.

    Raises:
        TypeError: If the anchors aren't floating.
        ValueError: If the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import triplet_margin_loss
        >>> a, p, n = jnp.zeros(2), jnp.asarray([3.0, 4.0]), jnp.asarray([0.0, 4.0])
        >>> triplet_margin_loss(a, p, n)
        Array(2., dtype=float32)

    Reference:
        Schultz and Joachims, 2003, NeurIPS; Balntas et al., 2016, doi:10.5244/C.30.119.
    """
    a, p, n = floats(
        "triplet_margin_loss", anchors=anchors, positives=positives, negatives=negatives
    )
    if not a.shape == p.shape == n.shape:
        raise ValueError(
            f"triplet_margin_loss: anchors, positives and negatives have shapes {a.shape}, "
            f"{p.shape}, {n.shape}, expected equal shapes."
        )
    difference = _distance(a - p, axis, norm_degree, eps) - _distance(a - n, axis, norm_degree, eps)
    return jnp.maximum(difference + jnp.asarray(margin, a.dtype), 0)


def _distance(x: jax.Array, axis: Any, degree: Any, eps: Any) -> jax.Array:
    """Norm of a given degree, with the largest entry as scale so that powers don't overflow."""
    degree = jnp.asarray(degree, x.dtype)
    smallest = jnp.asarray(eps, x.dtype) ** (1 / degree)
    size = jnp.abs(x)
    top = jnp.maximum(jnp.max(size, axis=axis, keepdims=True, initial=0), smallest)
    # The scale cancels in the norm, so it needs no derivative.
    top = jax.lax.stop_gradient(jnp.where(top > 0, top, jnp.ones_like(top)))
    is_zero = size == 0
    powers = jnp.where(is_zero, 0, jnp.where(is_zero, 1, size / top) ** degree).astype(x.dtype)
    total = jnp.sum(powers, axis=axis) + (smallest / jnp.squeeze(top, axis)) ** degree
    empty = total == 0  # only without eps
    root = jnp.where(empty, jnp.ones_like(total), total) ** (1 / degree)
    return jnp.squeeze(top, axis) * jnp.where(empty, jnp.zeros_like(total), root)
