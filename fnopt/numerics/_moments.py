"""Moving averages with bias corrections, their roots and their dtypes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnopt.numerics._dtypes import safe_increment


def as_dtype(dtype: Any) -> Any:
    """Convert a storage dtype to its canonical, hashable form; None stays None."""
    if dtype is None:
        return None
    try:
        canonical = jnp.dtype(dtype)
    except TypeError:
        canonical = None
    # jnp.dtype accepts an array, whose dtype it returns, and "a", the name of the string dtype.
    is_array = isinstance(dtype, (np.generic, np.ndarray, jax.Array))
    if is_array or canonical is None or not jnp.issubdtype(canonical, jnp.inexact):
        raise TypeError(
            f"{dtype!r} is not a floating dtype, expected a dtype such as jnp.bfloat16, or None."
        )
    return canonical


def ema(mean: jax.Array, x: jax.Array, decay: jax.Array, gain: jax.Array | None = None) -> Any:
    r"""Take one step of an exponential moving average: :math:`\beta m + (1-\beta)\, x`.

    Args:
        mean: :math:`m`, the previous average.
        x: The array to average, of the same shape.
        decay: :math:`\beta`, a scalar.
        gain: :math:`1-\beta`, if already computed for all leaves (see `Leafwise.scalars`).

    Returns:
        The new average.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.numerics import ema
        >>> ema(jnp.asarray([4.0]), jnp.asarray([8.0]), 0.75)
        Array([5.], dtype=float32)
    """
    return decay * mean + (1 - decay if gain is None else gain) * x


def bias_correction(decay: jax.Array, count: jax.Array) -> jax.Array:
    r"""Compute the bias correction of an average initialized at zero: :math:`1-\beta^t`.

    The formula is :math:`-\mathrm{expm1}(t \log \beta)`. For a decay near one the power is also
    near one, and a subtraction would lose three of float32's seven digits in the first steps.

    Args:
        decay: :math:`\beta`, a floating scalar array.
        count: :math:`t`, an integer of at least 1.

    Returns:
        A scalar in the dtype of `decay`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.numerics import bias_correction
        >>> bias_correction(jnp.asarray(0.5), jnp.asarray(2))
        Array(0.75, dtype=float32)
    """
    if isinstance(decay, np.floating) and decay >= 0:
        # A concrete decay needs three operations. The difference is exact for decays of at least
        # 1/2 (Sterbenz's lemma), so log1p keeps the digits of 1 - decay.
        log = math.log1p(decay - 1) if decay > 0 else -math.inf
        t = lax.convert_element_type(count, decay.dtype)
        return lax.neg(lax.expm1(lax.mul(t, np.asarray(log, decay.dtype))))
    decay, t = jnp.broadcast_arrays(decay, count) if decay.shape != count.shape else (decay, count)
    # lax operations instead of jnp functions, which are jitted: tracing them separately was half of
    # the trace time of a step of one leaf.
    t = lax.convert_element_type(t, decay.dtype)
    zero, half, one = (lax.full_like(decay, value) for value in (0, 0.5, 1))
    positive = lax.gt(decay, zero)
    safe_decay = lax.select(positive, decay, half)
    # log1p of the exact difference keeps the digits of 1 - beta, which log alone would round.
    correction = lax.neg(lax.expm1(lax.mul(t, lax.log1p(lax.sub(safe_decay, one)))))
    return lax.select(positive, correction, lax.sub(one, lax.pow(decay, t)))


def mean_weights(
    decay: jax.Array, count: jax.Array, nesterov: bool = False
) -> tuple[jax.Array, jax.Array]:
    r"""Weights of the average and of the new gradient in the bias-corrected mean gradient.

    .. math:: \hat\mu_t = a\, \mu_t + b\, g_t, \qquad (a, b) = \begin{cases}
              (1/(1-\beta^t),\ 0) \\
              (\beta/(1-\beta^{t+1}),\ (1-\beta)/(1-\beta^t)) & \text{Nesterov} \end{cases}

    Args:
        decay: :math:`\beta`, a floating scalar array.
        count: :math:`t`, an integer of at least 1.
        nesterov: Whether to use Nesterov's form.

    Returns:
        :math:`a` and :math:`b`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.numerics import mean_weights
        >>> [float(x) for x in mean_weights(jnp.asarray(0.5), jnp.asarray(1))]
        [2.0, 0.0]
    """
    correction = bias_correction(decay, count)
    if not nesterov:
        return 1 / correction, jnp.zeros_like(correction)
    return decay / bias_correction(decay, safe_increment(count)), (1 - decay) / correction


def positive_root(x: jax.Array) -> jax.Array:
    r"""Compute the square root of a second moment, bounded below: :math:`\sqrt{\max(x, x_{min})}`.

    :math:`x_{min}` is the smallest normal number of the dtype (its root is 1e-19 in float32), below
    which a sum of squares has no correct digits. Zero divided by the root of a zero moment is then
    zero, even without an epsilon. Below :math:`x_{min}` the derivative is defined as zero, because
    the infinite derivative of the square root would make every hyper-gradient NaN. NaN stays NaN.

    Args:
        x: A real array, not negative.

    Returns:
        An array of the same shape and dtype, positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.numerics import positive_root
        >>> 0.0 / positive_root(jnp.asarray([0.0, 4.0]))
        Array([0., 0.], dtype=float32)
    """
    return lax.sqrt(lax.max(x, jnp.finfo(x.dtype).tiny))
