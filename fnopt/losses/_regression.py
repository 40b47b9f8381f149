"""Regression losses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.losses._inputs import pairs


def _errors(name: str, predictions: Any, targets: Any) -> jax.Array:
    predictions, targets = pairs(name, predictions=predictions, targets=targets)
    return predictions if targets is None else predictions - targets


def squared_error(predictions: Any, targets: Any = None) -> jax.Array:
    r"""The squared error, element by element: :math:`(\hat y - y)^2`.

    Args:
        predictions: :math:`\hat y`, floating, of any shape.
        targets: :math:`y`, of the same shape or a scalar; None for zero.

    Returns:
        The squares, of the shape of `predictions`; at least float32.

    Raises:
        TypeError: If the predictions aren't floating.
        ValueError: If the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import squared_error
        >>> squared_error(jnp.asarray([1.0, 3.0]), jnp.asarray([1, 1]))
        Array([0., 4.], dtype=float32)
    """
    return jnp.square(_errors("squared_error", predictions, targets))


def l2_loss(predictions: Any, targets: Any = None) -> jax.Array:
    r"""Half the squared error, element by element: :math:`\tfrac12 (\hat y - y)^2`.

    Args:
        predictions: :math:`\hat y`, floating, of any shape.
        targets: :math:`y`, of the same shape or a scalar; None for zero.

    Returns:
        The losses, of the shape of `predictions`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import l2_loss
        >>> l2_loss(jnp.asarray([1.0, 3.0]), jnp.asarray([1.0, 1.0]))
        Array([0., 2.], dtype=float32)
    """
    return 0.5 * jnp.square(_errors("l2_loss", predictions, targets))


def huber_loss(predictions: Any, targets: Any = None, *, delta: Any = 1.0) -> jax.Array:
    r"""Huber's loss: a parabola for small errors, straight lines for large ones.

    .. math:: \ell(e) = \begin{cases} \tfrac12 e^2 & |e| \le \delta \\
              \delta\, (|e| - \tfrac12 \delta) & |e| > \delta \end{cases}
              \qquad e = \hat y - y

    Args:
        predictions: :math:`\hat y`, floating, of any shape.
        targets: :math:`y`, of the same shape or a scalar; None for zero.
        delta: :math:`\delta`, where the line begins.

    Returns:
        The losses, of the shape of `predictions`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import huber_loss
        >>> huber_loss(jnp.asarray([0.5, -3.0]), delta=1.0)
        Array([0.125, 2.5  ], dtype=float32)

    Reference:
        Huber, 1964, Annals of Mathematical Statistics 35.
    """
    size = jnp.abs(_errors("huber_loss", predictions, targets))
    delta = jnp.asarray(delta, size.dtype)
    # No select between both pieces: the square of an error that is not used might overflow, and
    # its derivative would be NaN.
    small = jnp.minimum(size, delta)
    return 0.5 * jnp.square(small) + delta * (size - small)


@jax.custom_jvp
def _log_cosh(e: jax.Array) -> jax.Array:
    size = jnp.abs(e)
    small = size < 1
    # cosh(e) - 1 without a difference; without the select it would overflow for large errors.
    m = jnp.expm1(-jnp.where(small, size, jnp.zeros_like(e)))
    near = jnp.log1p(0.5 * m * m / (1 + m))
    far = size - jnp.log(jnp.asarray(2, e.dtype)) + jnp.log1p(jnp.exp(-2 * size))
    return jnp.where(small, near, far)


@_log_cosh.defjvp
def _log_cosh_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    return _log_cosh(*primals), jnp.tanh(primals[0]) * tangents[0]


def log_cosh(predictions: Any, targets: Any = None) -> jax.Array:
    r"""The logarithm of the hyperbolic cosine of the error: :math:`\log \cosh(\hat y - y)`.

    About :math:`\tfrac12 e^2` for small errors and :math:`|e| - \log 2` for large ones; accurate
    in all digits for both.

    Args:
        predictions: :math:`\hat y`, floating, of any shape.
        targets: :math:`y`, of the same shape or a scalar; None for zero.

    Returns:
        The losses, of the shape of `predictions`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import log_cosh
        >>> log_cosh(jnp.asarray([0.0, 1e-4, 100.0]))
        Array([0.0000000e+00, 5.0000000e-09, 9.9306854e+01], dtype=float32)

    Reference:
        Chen et al., 2019, OpenReview rkglvsC9Ym.
    """
    return _log_cosh(_errors("log_cosh", predictions, targets))
