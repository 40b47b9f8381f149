"""Overlap losses for segmentation: Dice and Tversky."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import check_choice
from fnopt.losses._inputs import floats


def _align(name: str, predictions: Any, targets: Any) -> tuple[jax.Array, jax.Array]:
    """Reshape predictions and targets to equal shapes, with the classes on the last axis."""
    predictions, targets = floats(name, predictions=predictions, targets=targets)
    if predictions.ndim == targets.ndim - 1:
        predictions = predictions[..., None]
    if targets.ndim == predictions.ndim - 1:
        targets = targets[..., None]
    if predictions.shape != targets.shape:
        raise ValueError(
            f"{name}: predictions have shape {predictions.shape}, targets have shape "
            f"{targets.shape}, expected equal shapes. Encode the targets one-hot, with the classes "
            "on the last axis."
        )
    return predictions, targets


def _ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """Quotient of overlap and size; 1 for two empty regions."""
    empty = denominator == 0
    one = jnp.ones_like(denominator)
    return jnp.where(empty, one, numerator / jnp.where(empty, one, denominator))


def dice_loss(
    predictions: Any,
    targets: Any,
    *,
    class_weights: Any = None,
    smooth: Any = 1.0,
    alpha: Any = 0.5,
    beta: Any = 0.5,
    apply_softmax: bool = True,
    reduction: str = "mean",
    ignore_background: bool = False,
    axis: Any = None,
) -> jax.Array:
    r"""One minus the overlap of predicted and true regions, class by class.

    .. math:: \ell_c &= 1 - \frac{I_c + s}{I_c + \alpha\, (P_c - I_c) + \beta\, (T_c - I_c) + s}, \\
              I_c &= \sum p_c t_c, \quad P_c = \sum p_c, \quad T_c = \sum t_c

    With :math:`\alpha = \beta = \tfrac12` this is the Dice loss, with other values the Tversky
    loss.

    Args:
        predictions: Logits `[B, ..., C]`, floating (probabilities if `apply_softmax` is False).
            With one class, or without a class axis, a sigmoid replaces the softmax.
        targets: One-hot regions :math:`t`, of the same shape: floats, integers or bools.
        class_weights: A factor for each class, `[C]`; None uses 1.
        smooth: :math:`s`, which reduces the weight of small regions. With 0, two empty regions have
            loss 0.
        alpha: :math:`\alpha`, the weight of false positives.
        beta: :math:`\beta`, the weight of false negatives.
        apply_softmax: Whether the predictions are logits.
        reduction: The reduction over classes: `'mean'`, `'sum'` or `'none'`.
        ignore_background: Whether to exclude class 0 (if there are other classes).
        axis: The axes of a region; None uses all axes between the first and the last.

    Returns:
        The losses `[B]`, or `[B, C]` for `'none'`; at least float32.

    Raises:
        ValueError: If the shapes disagree or the reduction is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import dice_loss
        >>> targets = jax.nn.one_hot(jnp.asarray([[[0, 1], [1, 1]]]), 2)
        >>> dice_loss(100 * targets, targets)
        Array([0.], dtype=float32)

    Reference:
        Milletari, Navab and Ahmadi, 2016, arXiv:1606.04797; Salehi et al., 2017, arXiv:1706.05721.
    """
    check_choice(reduction, ("mean", "sum", "none"), "reduction", "dice_loss")
    predictions, targets = _align("dice_loss", predictions, targets)
    p, dtype = predictions, predictions.dtype
    if apply_softmax:  # one class is present or absent
        p = jax.nn.sigmoid(p) if p.shape[-1] == 1 else jax.nn.softmax(p, axis=-1)
    axis = tuple(range(1, p.ndim - 1)) if axis is None else axis
    smooth, alpha, beta = (jnp.asarray(x, dtype) for x in (smooth, alpha, beta))
    overlap = jnp.sum(p * targets, axis=axis)
    # Sums of products, because the differences P - I and T - I cancel for nearly equal regions.
    false_positives = jnp.sum(p * (1 - targets), axis=axis)
    false_negatives = jnp.sum(targets * (1 - p), axis=axis)
    loss = 1 - _ratio(
        overlap + smooth, overlap + alpha * false_positives + beta * false_negatives + smooth
    )
    if class_weights is not None:
        loss = loss * jnp.asarray(class_weights).astype(dtype)
    if ignore_background and p.shape[-1] > 1:
        loss = loss[..., 1:]
    if reduction == "none":
        return loss
    return jnp.mean(loss, axis=-1) if reduction == "mean" else jnp.sum(loss, axis=-1)


def multiclass_generalized_dice_loss(
    predictions: Any,
    targets: Any,
    *,
    smooth: Any = 1.0,
    apply_softmax: bool = True,
    ignore_background: bool = False,
) -> jax.Array:
    r"""The Dice loss with classes weighted inversely to their frequency.

    .. math:: \ell = \frac1{BC} \sum_{b, c} w_c\, \ell_{bc}, \qquad
              w_c \propto \frac1{n_c^2 + 10^{-7}}, \quad \sum_c w_c = C

    where :math:`n_c` is the size of class :math:`c` in the whole batch.

    Args:
        predictions: Logits `[B, ..., C]`, floating (probabilities if `apply_softmax` is False).
        targets: One-hot regions, of the same shape: floats, integers or bools.
        smooth: As in `dice_loss`.
        apply_softmax: Whether the predictions are logits.
        ignore_background: Whether to exclude class 0.

    Returns:
        The loss of the batch, a scalar; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import multiclass_generalized_dice_loss
        >>> targets = jax.nn.one_hot(jnp.asarray([[[0, 1], [1, 2]]]), 3)
        >>> multiclass_generalized_dice_loss(100 * targets, targets)
        Array(0., dtype=float32)

    Reference:
        Sudre et al., 2017, arXiv:1707.03237.
    """
    predictions, targets = _align("multiclass_generalized_dice_loss", predictions, targets)
    sizes = jnp.sum(targets, axis=tuple(range(targets.ndim - 1)))
    # Sudre et al. (2017); 1e-7 keeps the weight of an absent class finite.
    weights = 1 / (jnp.square(sizes) + jnp.asarray(1e-7, sizes.dtype))
    losses = dice_loss(
        predictions,
        targets,
        class_weights=weights / jnp.mean(weights),
        smooth=smooth,
        apply_softmax=apply_softmax,
        reduction="none",
        ignore_background=ignore_background,
    )
    return jnp.mean(losses)


def binary_dice_loss(
    predictions: Any, targets: Any, *, smooth: Any = 1.0, apply_sigmoid: bool = True
) -> jax.Array:
    r"""The Dice loss of one region.

    .. math:: \ell = 1 - \frac{\sum p\, t + s}{\tfrac12 \sum p + \tfrac12 \sum t + s}

    Args:
        predictions: Logits `[B, ...]` or `[B, ..., 1]`, floating (probabilities if
            `apply_sigmoid` is False).
        targets: The region, of the same shape: floats, integers or bools.
        smooth: :math:`s`, which reduces the weight of small regions.
        apply_sigmoid: Whether the predictions are logits.

    Returns:
        The losses `[B]`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import binary_dice_loss
        >>> region = jnp.asarray([[[0, 1], [1, 1]]])
        >>> binary_dice_loss(jnp.where(region == 1, 100.0, -100.0), region)
        Array([0.], dtype=float32)

    Reference:
        Milletari, Navab and Ahmadi, 2016, arXiv:1606.04797.
    """
    predictions, targets = floats("binary_dice_loss", predictions=predictions, targets=targets)
    if predictions.ndim == targets.ndim and predictions.shape[-1] != 1:
        predictions, targets = predictions[..., None], targets[..., None]
    return dice_loss(predictions, targets, smooth=smooth, apply_softmax=apply_sigmoid)
