"""Binary cross entropies of logits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.losses._arithmetic import multiply
from fnopt.losses._inputs import pairs


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    # Both terms are positive: nothing cancels, also where a sure answer is right.
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
    """A logarithm with derivative 0 at 0, where it is minus infinity."""
    positive = x > 0
    safe = jnp.log(jnp.where(positive, x, jnp.ones_like(x)))
    return jnp.where(positive, safe, jnp.full_like(x, -jnp.inf))


def sigmoid_focal_loss(
    logits: Any, labels: Any, *, alpha: Any = None, gamma: Any = 2.0
) -> jax.Array:
    r"""The focal loss: binary cross entropy with less weight on easy examples.

    .. math:: \ell(x, y) &= \alpha_t\, (1 - p_t)^\gamma\, H(x, y), \\
              p_t &= y\, \sigma(x) + (1 - y)\, \sigma(-x), \quad
              \alpha_t = y\, \alpha + (1 - y)(1 - \alpha)

    with :math:`H` the binary cross entropy.

    Args:
        logits: :math:`x`, floating, of any shape.
        labels: :math:`y` in [0, 1], of the same shape or a scalar: floats, integers or bools.
        alpha: :math:`\alpha`, the weight of positive examples; None for no weights.
        gamma: :math:`\gamma`; with 0 it is the cross entropy.

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
    # By logarithms: a small power of a probability that underflows has an infinite slope.
    wrong = jnp.logaddexp(
        jax.nn.log_sigmoid(logits) + _log(1 - labels), jax.nn.log_sigmoid(-logits) + _log(labels)
    )
    loss = _cross_entropy(logits, labels) * jnp.exp(jnp.asarray(gamma, logits.dtype) * wrong)
    if alpha is None:
        return loss
    alpha = jnp.asarray(alpha, logits.dtype)
    return (alpha * labels + (1 - alpha) * (1 - labels)) * loss
